"""The paper's experiment files: a rehearsal of all stages with scripted models, and the rules that the files state."""

import json
from pathlib import Path

import pandas as pd
import pytest

from skillmix.commands import main
from skillmix.experiment.experiment import load_experiment
from skillmix.experiment.steps import DatasetStep
from skillmix.experiment.train_step import TrainStep
from skillmix.runs.run import open_run

EXPERIMENTS = Path(__file__).parents[2] / "experiments"
FILES = sorted(EXPERIMENTS.glob("paper-*.yaml"))
WHOLE = ["paper-llama2-13b", "paper-mistral-7b"]
TRAINED = ["m1", "m12", "m123", "m123-8000", "m1234"]
EVALUATED = ["eval", "figure-2", "table-4", "table-6"]
REPLAYED = Path("texts/replay.txt")
_GRADED = "{topic}, {skills_str}, {num_sentences_str}: {student_answer}\n{skills_defs}\n{rubric_items}"
PROMPTS = {
    "generate-1.txt": "Own words on {topic}: {skills_str}.\n{skills_defs_and_examples_simple}\nBegin with 'Answer:'.",
    "generate-2.txt": "Own words again, with up to {num_sentences_str}. Begin with 'Answer:'.",
    "grade-gpt.txt": f"Own words on {_GRADED}",
    "grade-claude.txt": f"Other words on {_GRADED}",
}
"""Prompts of a user, with the slots of the original templates."""


def rehearsal(model: Path) -> list[str]:
    """Changes that replace every model and make every step small; the steps themselves stay as they are."""
    changes: dict[str, object] = {
        "prompts": "own-prompts",
        "students.gpt.model": "scripted:student?skill=0.95",
        "students.base.model": f"local:{model}",
        "students.base.max_tokens": 4,
        "graders.gpt.model": "scripted:grader?noise=0.05",
        "graders.claude.model": "scripted:grader?noise=0.2",
        "steps.d1.target": 20,
        "steps.d1.most": 20,
        "steps.d2.target": 30,
        "steps.d2.most": 30,
        "steps.d3.target": 30,
        "steps.d3.most": 30,
        "steps.d4.target": 3,
        "steps.d4.most": 20,
        "steps.d123-8000.size": 15,
    }
    for name in TRAINED:
        changes |= {f"steps.{name}.steps": 1, f"steps.{name}.batch": 2}
        changes |= {f"steps.{name}.replay.sources": [str(REPLAYED)]}
    for name in EVALUATED:
        changes |= {f"steps.{name}.combinations": 2, f"steps.{name}.generations": 1}
    return [word for key, value in changes.items() for word in ("--set", f"{key}={value}")]


def test_a_rehearsal_goes_through_all_stages_and_writes_every_table(in_folder: Path, small_model: Path) -> None:
    REPLAYED.parent.mkdir()
    REPLAYED.write_text("Plain text of common crawl, and code.\n" * 20, encoding="utf-8")

    Path("own-prompts").mkdir()
    for name, words in PROMPTS.items():
        Path("own-prompts", name).write_text(words, encoding="utf-8")

    assert main(["run", str(EXPERIMENTS / "paper-mistral-7b.yaml"), *rehearsal(small_model)]) == 0

    run = open_run("paper-mistral-7b")
    # The prompts of the user reach the writer, both graders and the training data.
    assert main(["export", run.name, "--what", "calls", "--output", "calls.jsonl"]) == 0
    calls = [json.loads(line) for line in Path("calls.jsonl").read_text(encoding="utf-8").splitlines()]
    prompts = [next(m["content"] for m in call["messages"] if m["role"] == "user") for call in calls]
    starts = {prompt.partition(" on ")[0] for prompt in prompts}
    assert starts == {"Own words", "Other words"}
    data = (run.path / "d3" / "dataset" / "train.jsonl").read_text(encoding="utf-8").splitlines()
    assert data and all(json.loads(row)["messages"][0]["content"].startswith("Own words on") for row in data)
    tables = run.path / "report" / "tables"

    def table(name: str) -> pd.DataFrame:
        return pd.read_csv(tables / f"{name}.csv")

    # Tables 1 and 3, and with all metrics tables 10 and 11.
    for setting in ("train", "held-out", "all"):
        for name, metrics in ((f"scores-{setting}", 2), (f"scores-{setting}-all-metrics", 3)):
            rows = table(name)
            own = rows[rows["grader"] == "gpt"]
            assert {"base", "m1", "m12", "m123"} <= set(own["student"])
            for metric in ("full marks", "skill fraction", "all skills")[:metrics]:
                assert own[f"k = 5, {metric} value"].notna().any()
    # Table 4: the two full data sets, and the sample between them.
    sizes = table("data-efficiency").set_index("student")["conversations"]
    assert sizes["m123-8000"] == 15
    assert sizes["m12"] < sizes["m123"] and sizes["m123-8000"] < sizes["m123"]
    # Table 5: both graders on the same texts.
    graders = table("graders-side-by-side")
    assert set(zip(graders["student"], graders["setting"], graders["grader"], strict=True)) == {
        (student, "all", grader) for student in ("base", "m1", "m123") for grader in ("gpt", "claude")
    }
    agreement = table("graders-agreement")
    # Three students, k = 2 to 5, two combinations with one text each; an answer without a word is not graded.
    assert dict(zip(agreement["criterion"], agreement["criteria of texts"], strict=True))["sense"] <= 3 * 4 * 2
    # Table 6: k = 5 without common skills, and data with four skills.
    removed = table("common-skills-removed")
    assert list(removed["student"]) == ["base", "m123", "m1234"]
    for setting in ("train", "held-out", "all"):
        assert removed[f"{setting}-without-common, full marks value"].notna().all()
    common = set(run.catalog.exclude["common"])
    uncommon = [cell for cell in run.cells if cell.step == "table-6"]
    assert uncommon and not any(common & set(c.skills) for cell in uncommon for c in cell.combinations)
    # Figure 2, which has GPT-4 on held-out skills, and the paper's own figures beside ours.
    assert (run.path / "report" / "figures" / "full-marks.svg").is_file()
    assert set(table("scores-held-out")["student"]) == {"base", "m1", "m12", "m123", "gpt"}
    # Every own row of a published table has its values; the step for figure 2 begins at k = 2.
    for number in (1, 3, 4, 5, 6, 10, 11):
        printed = pd.read_csv(tables / f"paper-table-{number}.csv", keep_default_na=False)
        own = printed[printed["source"] != "paper"]
        assert len(own), number
        shown = [
            c for c in map(str, own) if c.endswith(("full marks", "skill fraction", "all skills")) and "k = 1," not in c
        ]
        values = own[shown]
        assert values.shape[1] and not (values == "").any().any(), (number, own.to_string())


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_the_files_state_the_rules_of_the_paper(file: Path) -> None:
    experiment = load_experiment(file)

    assert experiment.rules == "paper"
    asked = [(s.model, s.temperature) for s in experiment.students.values()]
    asked += [(g.model, g.temperature) for g in experiment.graders.values()]
    for model, temperature in asked:
        assert "gpt" not in model or model == "openai:gpt-4"
        # The original code sends no temperature to paid models, and their default is 1.
        assert temperature == (1.0 if model.startswith(("openai:gpt", "anthropic:")) else 0.7)
    data = [step for step in experiment.steps if isinstance(step, DatasetStep)]
    assert not data or (experiment.reserved, experiment.leakage.shown) == (0, "count")
    for step in data:
        assert (step.near_duplicates, step.exact_duplicates, step.example_copies) == (None, "keep", "keep")
        assert step.validation == 0 and step.leakage is None and step.rules is None
        # A reply that the limit cuts would be trained on as if it were complete.
        assert all(experiment.students[name].max_tokens == 1024 for name in step.student_names)
    assert all(step.too_long == "cut" for step in experiment.steps if isinstance(step, TrainStep))


@pytest.mark.parametrize("name", WHOLE)
def test_the_whole_files_have_the_sizes_of_the_paper(name: str) -> None:
    experiment = load_experiment(EXPERIMENTS / f"{name}.yaml")

    steps = {step.name: step for step in experiment.steps}
    written = {
        name: (step.target_of(step.data_recipe.ks[0]), step.max_conversations(step.data_recipe.ks[0]))
        for name, step in steps.items()
        if isinstance(step, DatasetStep) and step.writer
    }
    assert written == {"d1": (5000, 5000), "d2": (10000, 10000), "d3": (10000, 10000), "d4": (1000, 6000)}
    assert [name for name, step in steps.items() if step.trains_model] == ["m1", "m12", "m123", "m1234", "m123-8000"]
    for name in EVALUATED:
        assert {(c.count, c.generations) for c in steps[name].undrawn_cells(experiment.steps)} == {(100, 3)}


def test_both_whole_files_differ_in_the_model_alone() -> None:
    llama, mistral = (load_experiment(EXPERIMENTS / f"{name}.yaml").model_dump() for name in WHOLE)

    llama["name"] = mistral["name"]
    llama["students"]["base"]["model"] = mistral["students"]["base"]["model"]
    assert llama == mistral
