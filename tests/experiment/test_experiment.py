"""The experiment file: the examples of the design parse, every fault is reported, and `--set` changes one key."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from skillmix.errors import UserError
from skillmix.experiment.document import with_changes
from skillmix.experiment.experiment import experiment_of, load_experiment
from skillmix.experiment.steps import EvaluateStep
from skillmix.prompts.prompt_set import shipped_prompt_sets

EVALUATION = """
name: held-out-check
seed: 0
catalog: paper
partition: category
students:
  base:  {model: "openai:mistral-7b@http://localhost:8000/v1"}
  tuned: {model: "local:runs/tune/m123/model"}
graders:
  gpt: {model: "openai:gpt-4o", rounds: 3, prompts: gpt}
budget: {max_usd: 40}
steps:
  - {name: eval, stage: evaluate, students: [base, tuned], graders: [gpt], k: [1, 2, 3]}
  - {name: report, stage: report}
"""

ROUNDS = """
name: rounds
seed: 0
catalog: verifiable
students:
  base:   {model: "bundled:smollm2-135m"}
  writer: {model: "bundled:smollm2-135m", prompts: worked}
graders: {rules: {model: "rules:"}}
steps:
  - {name: d1,   stage: dataset, writer: writer,     graders: [rules], k: [1], skills: all, target: 1000}
  - {name: m1,   stage: train,   base: base, data: [d1], steps: 250}
  - {name: d2,   stage: dataset, writer: "step:m1",  graders: [rules], k: [2], target: 1000}
  - {name: m12,  stage: train,   base: base, data: [d1, d2], steps: 250}
  - {name: eval, stage: evaluate, students: [base, "step:m1", "step:m12"], graders: [rules], k: [1, 2, 3, 4, 5]}
  - {name: report, stage: report}
"""


def parsed(text: str, **changes: Any) -> Any:
    return experiment_of(yaml.safe_load(text) | changes, source="test.yaml")


def test_an_evaluation_parses() -> None:
    experiment = parsed(EVALUATION)

    step = experiment.steps[0]
    assert isinstance(step, EvaluateStep)
    assert (step.combinations, step.generations, step.k) == (100, 3, [1, 2, 3])
    assert experiment.graders["gpt"].votes == 3
    assert experiment.budget.max_usd == 40


def test_rounds_of_data_and_training_parse() -> None:
    experiment = parsed(ROUNDS)

    assert [step.stage for step in experiment.steps] == ["dataset", "train", "dataset", "train", "evaluate", "report"]
    assert experiment.graders["rules"].votes == 1


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"sed": 1}, 'sed: there is no such key. Did you mean "seed"'),
        ({"name": "Bad Name"}, "name: 'Bad Name' may contain only lowercase letters"),
        ({"steps": [{"name": "x", "stage": "dance"}]}, "steps.x.stage: 'dance' is not one of evaluate,"),
        ({"graders": {"gpt": {"model": "openai:x", "rounds": 2}}}, "rounds must be odd"),
        ({"graders": {"gpt": {"model": "openai:x", "temperature": 0}}}, "temperature 0 all give the same grade"),
        ({"graders": {"gpt": {"model": "rules:", "rounds": 3}}}, "rules: always gives the same grade"),
        ({"graders": {"gpt": {"model": "gpt-4"}}}, "'gpt-4' is not a model"),
        ({"graders": {}}, "there is no grader 'gpt'"),
        ({"students": {"base": {"model": "openai:x"}}}, "there is no student 'tuned'"),
        ({"students": {"base": {"model": "rules:"}, "tuned": {"model": "openai:x"}}}, "writes no texts"),
        ({"budget": {"max_usd": -1}}, "budget.max_usd"),
        ({"steps": [{"name": "journal", "stage": "report"}]}, "the name is reserved for a folder of the run"),
    ],
)
def test_a_faulty_experiment_is_refused_with_the_location(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        parsed(EVALUATION, **changes)


GENERATE = {"name": "write", "stage": "generate", "students": ["base"], "k": [1]}
GRADE = {"name": "again", "stage": "grade", "of": ["eval"], "graders": ["gpt"]}


@pytest.mark.parametrize(
    ("step", "key"),
    [
        *((0, key) for key in ("students", "graders", "settings", "k")),
        *((2, key) for key in ("students", "settings", "k")),
        *((3, key) for key in ("of", "graders")),
    ],
)
def test_an_empty_list_in_a_step_is_refused_with_its_keys(step: int, key: str) -> None:
    document = yaml.safe_load(EVALUATION)
    document["steps"] += [dict(GENERATE), dict(GRADE)]
    experiment_of(document, source="test.yaml")

    document["steps"][step][key] = []

    name = document["steps"][step]["name"]
    with pytest.raises(UserError, match=rf"steps\.{name}\.{key}: the list is empty") as caught:
        experiment_of(document, source="test.yaml")
    assert "`skillmix schema`" in str(caught.value.hint)


@pytest.mark.parametrize(
    ("path", "hint"),
    [
        (
            ["steps", 0],
            "Keys of an evaluate step: name, stage, catalog, partition, students, settings, k, combinations,",
        ),
        (["steps", 1], "Keys of a report step: name, stage, rules, published, tokens, runs, contrasts."),
        (["students", "base"], "Keys of a student: key, insecure, proxy, system, extra, batch, model,"),
        (["graders", "gpt"], "Keys of a grader: key, insecure, proxy, system, extra, batch, model, rounds,"),
        (["budget"], "Keys of budget: max_usd, max_calls."),
    ],
)
def test_the_hint_for_a_wrong_key_names_the_keys_of_its_section(path: list[str | int], hint: str) -> None:
    document = yaml.safe_load(EVALUATION)
    section = document
    for part in path:
        section = section[part]
    section["colour"] = "red"

    with pytest.raises(UserError, match="colour: there is no such key") as caught:
        experiment_of(document, source="test.yaml")

    assert str(caught.value.hint).startswith(hint)
    assert "Keys of an experiment" not in str(caught.value.hint)


def test_the_hint_for_wrong_keys_in_several_sections_names_the_keys_of_each() -> None:
    document = yaml.safe_load(ROUNDS) | {"colour": "red"}
    document["steps"][0]["per_skill"] = {"middle": 3}
    document["steps"][1]["lora"] = {"size": 3}

    with pytest.raises(UserError) as caught:
        experiment_of(document, source="test.yaml")

    titles = [sentence.split(":")[0] for sentence in str(caught.value.hint).split(". ")]
    assert titles[:3] == ["Keys of per_skill", "Keys of lora", "Keys of an experiment"]


def test_steps_may_only_use_what_came_before() -> None:
    document = yaml.safe_load(ROUNDS)
    document["steps"] = [document["steps"][2], *document["steps"][:2]]

    with pytest.raises(UserError, match="there is no earlier train step 'm1'"):
        experiment_of(document, source="test.yaml")


def test_all_faults_are_reported_at_once() -> None:
    with pytest.raises(UserError) as caught:
        parsed(EVALUATION, sed=1, name="Bad Name", budget={"max_calls": "many"})

    assert "3 faults" in caught.value.message


MANY_FAULTS = """
name: Bad Name
sed: 3
catalog: papr
exclude: [metafor]
prompts: standart
students:
  weak: {model: "scriptd:student", temperature: -1}
  strong: {model: "scripted:student", promts: standard}
graders:
  judge: {model: "scripted:grader", rounds: 2}
  other: {model: "openai:x", key: [sk-abc]}
budget: {max_calls: many}
steps:
  - {name: eval, stage: evaluate, students: [weak, stong], graders: [juge], combination: 30, settings: [all]}
  - {name: tune, stage: trian, base: weak}
  - {name: more, stage: evaluate, students: ["step:tune"], graders: [judge]}
  - {stage: report, published: maybe}
"""


def test_faults_of_every_kind_come_at_once_in_our_words() -> None:
    with pytest.raises(UserError) as caught:
        experiment_of(yaml.safe_load(MANY_FAULTS), source="test.yaml", checks_outside=True)

    subject, *faults = caught.value.message.splitlines()
    assert subject == "test.yaml has 16 faults:"
    assert [fault.strip() for fault in faults] == [
        "name: 'Bad Name' may contain only lowercase letters, digits, dots, dashes and underscores",
        "students.weak.temperature: -1 is below 0.0",
        'students.strong.promts: there is no such key. Did you mean "prompts"?',
        "graders.judge: rounds must be odd, not 2",
        "graders.other.key: the value is not text; quote it",
        "budget.max_calls: 'many' is not an integer",
        'steps.eval.combination: there is no such key. Did you mean "combinations"?',
        "steps.tune.stage: 'trian' is not one of evaluate, generate, grade, dataset, train, annotate, graders, "
        'report. Did you mean "train"?',
        "steps.4.name: this key is missing",
        "steps.4.published: 'maybe' is not true or false",
        'sed: there is no such key. Did you mean "seed"?',
        "students.weak: 'scriptd:student' is not a model. Did you mean \"scripted\"? Write PROVIDER:NAME with one of "
        "these providers: openai, anthropic, gemini, mistral, together, openrouter, groq, deepseek, xai, azure, "
        "ollama, lmstudio, vllm, llamacpp, local, bundled, new, scripted, composer, rules.",
        "steps.eval: there is no student 'stong'. Did you mean \"strong\"?",
        "steps.eval: there is no grader 'juge'. Did you mean \"judge\"?",
        "catalog: There is no catalog 'papr'. Did you mean \"paper\"? Shipped: figures, paper, safety, verifiable. "
        "Or give a folder with skills.yaml, topics.yaml and partitions.yaml.",
        "prompts: There is no prompt set 'standart'. Did you mean \"standard\"? Shipped: "
        + ", ".join(shipped_prompt_sets())
        + ". Or give a folder that has generate-1.txt.",
    ]
    assert "sk-abc" not in caught.value.message


@pytest.mark.parametrize("document", [None, 3, [], "text", {"steps": 3}, {"steps": [3]}, {"students": []}, {3: 4}])
def test_a_document_of_any_form_gets_an_error(document: object) -> None:
    with pytest.raises(UserError):
        experiment_of(document, source="test.yaml")


@pytest.mark.parametrize(
    "path", sorted((Path(__file__).parents[2] / "experiments").glob("*.yaml")), ids=lambda p: p.name
)
def test_every_experiment_that_ships_can_be_read(path: Path) -> None:
    assert load_experiment(path).name == path.stem


CHANGED_DOCUMENT = {"seed": 0, "budget": None, "steps": [{"name": "eval", "k": [1, 2]}, {"name": "report"}]}


@pytest.mark.parametrize(
    ("change", "path", "value"),
    [
        ("seed=7", ["seed"], 7),
        ("budget.max_usd=2.5", ["budget", "max_usd"], 2.5),
        ("steps.eval.k=[3]", ["steps", 0, "k"], [3]),
        ("steps.2.name=end", ["steps", 1, "name"], "end"),
        ("students.a.model=openai:m@http://h/v1?x=1", ["students", "a", "model"], "openai:m@http://h/v1?x=1"),
        ("seed=", ["seed"], None),
    ],
)
def test_a_change_reaches_its_key_and_nothing_else(change: str, path: list[str | int], value: object) -> None:
    document: object = with_changes(CHANGED_DOCUMENT, [change])

    found: object = document
    for part in path:
        found = found[part]  # type: ignore[index]
    assert found == value
    assert CHANGED_DOCUMENT["steps"] == [{"name": "eval", "k": [1, 2]}, {"name": "report"}]


@pytest.mark.parametrize("change", ["seed", "=3", "steps.nobody.k=1", "steps.9.k=1", "seed.deeper=1", "seed=[1"])
def test_a_faulty_change_is_refused_with_a_hint(change: str) -> None:
    with pytest.raises(UserError) as caught:
        with_changes(CHANGED_DOCUMENT, [change])

    assert caught.value.hint


def test_yaml_that_makes_objects_is_refused() -> None:
    with pytest.raises(UserError, match="not valid YAML"):
        with_changes(CHANGED_DOCUMENT, ["seed=!!python/object/apply:os.system [ls]"])


def test_a_step_without_skills_needs_a_catalog_of_probes(tmp_path: Path) -> None:
    step = {"name": "eval", "stage": "evaluate", "students": ["s"], "graders": ["g"], "k": [1, 0]}
    document = {
        "name": "plain",
        "students": {"s": {"model": "scripted:student"}},
        "graders": {"g": {"model": "scripted:grader"}},
        "steps": [step],
    }

    with pytest.raises(UserError, match=r"steps\.eval\.k\.2: 0 is below 1"):
        experiment_of(document, source="test", checks_outside=True)
    probes = {**document, "catalog": "safety", "prompts": "safety"}
    assert experiment_of(probes, source="test", checks_outside=True).steps[0].name == "eval"
