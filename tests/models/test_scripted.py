"""The scripted models: deterministic, at the rates set, and understood by the real reader."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from skillmix.calls import CallProblem, Decoding, GenerateKey, Message, Reply, Request, Subject
from skillmix.catalog.combinations import Draw, draw_combinations
from skillmix.catalog.files import load_catalog
from skillmix.commands import main
from skillmix.errors import UserError
from skillmix.grading.answers import count_sentences, extract_answer, names_skill
from skillmix.grading.reader import read_grades
from skillmix.models.specs import check_spec, parse_spec
from skillmix.prompts.prompt_set import load_prompts
from skillmix.prompts.rubric import rubric_of
from skillmix.scores.scoring import run_scores
from skillmix.steps.run import run_experiment
from tests.models.reading_model import ReadingModel

CATALOG, PROMPTS = load_catalog("paper"), load_prompts("standard")


def model(spec: str) -> ReadingModel:
    return ReadingModel(parse_spec(spec))


def asked(seed: int, *prompts: str) -> Request:
    messages = tuple(Message("user", prompt) for prompt in prompts)
    return Request(GenerateKey("s", "c", 0, 1), "scripted", messages, Decoding(), seed)


def reply(spec: str, seed: int, *prompts: str) -> str:
    outcome = model(spec).answer(asked(seed, *prompts))
    assert isinstance(outcome, Reply)
    return outcome.text


@pytest.mark.parametrize("variant", ["gpt", "claude", "llama2"])
@pytest.mark.parametrize("k", [1, 3, 5])
def test_what_the_student_shows_is_what_the_grader_sees(variant: Any, k: int) -> None:
    student = "scripted:student?skill=0.6&topic=0.7&sense=0.7&length=0.7"
    seen = set()
    for seed, combination in enumerate(draw_combinations(Draw(CATALOG.pool("all"), "all", k, 0), 40)):
        first, second = PROMPTS.student_prompts(CATALOG, combination)
        text = extract_answer(reply(student, seed, first, second)).text
        prompt = PROMPTS.grader_prompt(CATALOG, combination, answer=text, variant=variant)
        rubric = rubric_of(combination.skills, combination.topic, phrases=PROMPTS.phrases)

        reading = read_grades(rubric, reply("scripted:grader", seed, prompt), text=text)

        assert reading.points is not None, reading.problem
        assert reading.points[-1] == float(count_sentences(text) <= rubric.limit)
        assert not any(names_skill(text, skill) for skill in combination.skills)
        seen.add(reading.points)
    assert len(seen) > 3


def test_rates_are_met() -> None:
    combination = draw_combinations(Draw(CATALOG.pool("all"), "all", 2, 0), 1)[0]
    first, _ = PROMPTS.student_prompts(CATALOG, combination)
    from skillmix.models.scripted import code

    shown = sum(code(combination.skills[0]) in reply("scripted:student?skill=0.3", seed, first) for seed in range(2000))

    assert 0.27 < shown / 2000 < 0.33


def test_the_same_seed_gives_the_same_reply_and_another_seed_another() -> None:
    combination = draw_combinations(Draw(CATALOG.pool("all"), "all", 5, 0), 1)[0]
    first, _ = PROMPTS.student_prompts(CATALOG, combination)

    replies = [reply("scripted:student?skill=0.5", seed % 20, first) for seed in range(40)]

    assert replies[:20] == replies[20:]
    assert len(set(replies)) > 5


def test_format_failures_refusals_and_forgotten_rows_can_be_asked_for() -> None:
    combination = draw_combinations(Draw(CATALOG.pool("all"), "all", 1, 0), 1)[0]
    first, _ = PROMPTS.student_prompts(CATALOG, combination)
    prompt = PROMPTS.grader_prompt(CATALOG, combination, answer="x.", variant="gpt")

    assert extract_answer(reply("scripted:student?marker=0", 0, first)).status == "no marker"
    assert extract_answer(reply("scripted:student?empty=1", 0, first)).status == "empty"
    assert isinstance(model("scripted:student?refusal=1").answer(asked(0, first)), CallProblem)
    rubric = rubric_of(combination.skills, combination.topic)
    assert read_grades(rubric, reply("scripted:grader?unreadable=1", 0, prompt)).points is None


@pytest.mark.parametrize(
    "spec", ["scripted:nobody", "scripted:student?skil=1", "scripted:student?skill=2", "scripted:student?skill=x"]
)
def test_a_wrong_script_is_refused(spec: str) -> None:
    with pytest.raises(UserError):
        model(spec)


def test_all_faults_of_a_script_are_in_one_error_with_the_nearest_names() -> None:
    with pytest.raises(UserError) as error:
        model("scripted:student?skil=0.5&topic=2&sense=x&cut=0&cut=1")

    message, hint = error.value.message, error.value.hint or ""
    for fault in ("there is no rate 'skil'", "topic is 2, which is", "sense is 'x', which is", "'cut' is given twice"):
        assert fault in message
    assert hint.startswith('Did you mean "skill"?')


@pytest.mark.parametrize(
    ("spec", "meant"),
    [
        ("scripted:studnt", "student"),
        ("scripted:student?skil=0.5", "skill"),
        ("scripted:grader?nois=1", "noise"),
        ("rules:scripted:grader?nois=1", "noise"),
    ],
)
def test_a_spec_with_a_wrong_script_is_refused_before_a_model_is_opened(spec: str, meant: str) -> None:
    with pytest.raises(UserError) as error:
        check_spec(spec)

    assert f'Did you mean "{meant}"?' in (error.value.hint or "")


def test_a_dry_run_refuses_wrong_scripts_of_students_and_graders(
    in_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    step = {"name": "e", "stage": "evaluate", "students": ["a"], "graders": ["g"], "k": [1], "combinations": 2}
    models = {
        "students": {"a": {"model": "scripted:student?skil=0.5"}},
        "graders": {"g": {"model": "scripted:grader?nois=1"}},
    }
    (in_folder / "e.yaml").write_text(yaml.safe_dump({"name": "e", **models, "steps": [step]}), encoding="utf-8")

    status = main(["run", "e.yaml", "--dry-run"])

    error = capsys.readouterr().err
    assert status == 2
    assert "students.a: " in error and 'Did you mean "skill"?' in error
    assert "graders.g: " in error and 'Did you mean "noise"?' in error
    assert not (in_folder / "runs").exists()


@pytest.mark.parametrize("spec", ["gpt-4", "openai:", "nowhere:x", "openai:x@localhost:8000", ""])
def test_a_wrong_spec_is_refused(spec: str) -> None:
    with pytest.raises(UserError):
        parse_spec(spec)


OWN_PROMPTS = {
    "generate-1.txt": "Schreib über {topic}: {skills}. Hinweise:\n{definitions}\n- Achtung: kurz!",
    "generate-2.txt": "Besser, in {limit}.",
    "grade-gpt.txt": "{limit} / {topic} / {skills}\n{definitions}\n<<{answer}>>\nPunkte für {rubric_items}.",
}


def own_prompts(folder: Path) -> Path:
    folder.mkdir()
    for name, text in OWN_PROMPTS.items():
        (folder / name).write_text(text, encoding="utf-8")
    return folder


def evaluated(folder: Path, name: str, prompts: str) -> list[tuple[object, ...]]:
    document: dict[str, Any] = {
        "name": name,
        "prompts": prompts,
        "students": {"base": {"model": "scripted:student?skill=0.8&topic=0.9"}},
        "graders": {"judge": {"model": "scripted:grader?noise=0.05&unreadable=0.2", "rounds": 3}},
        "steps": [
            {
                "name": "eval",
                "stage": "evaluate",
                "students": ["base"],
                "graders": ["judge"],
                "settings": ["all"],
                "k": [1, 3],
                "combinations": 20,
                "generations": 1,
            }
        ],
    }
    (folder / "own.yaml").write_text(yaml.safe_dump(document), encoding="utf-8")
    assert run_experiment(folder / "own.yaml").is_complete
    return [(s.k, s.metric, s.value, s.ungraded) for s in run_scores(name)]


def test_prompts_of_ones_own_are_answered_as_the_shipped_ones(in_folder: Path) -> None:
    shipped = evaluated(in_folder, "shipped", "standard")

    own = evaluated(in_folder, "own", str(own_prompts(in_folder / "words")))

    assert own == shipped
    assert any(value for _, metric, value, _ in shipped if metric == "full_marks")


@pytest.mark.parametrize("prompts", ["standard", "worked"])
@pytest.mark.parametrize("variant", ["gpt", "claude", "llama2"])
def test_what_is_read_from_a_shipped_prompt_is_what_the_request_is_about(prompts: str, variant: Any) -> None:
    words = load_prompts(prompts)
    student, grader = model("scripted:student?skill=0.6"), model("scripted:grader?noise=0.2")
    for seed, combination in enumerate(draw_combinations(Draw(CATALOG.pool("all"), "all", 3, 0), 10)):
        lead = [text for turn in words.lead_turns(CATALOG, combination) for text in turn[:1]]
        request = asked(seed, *lead, *words.student_prompts(CATALOG, combination))
        written = student.answer(request)
        assert isinstance(written, Reply)
        text = extract_answer(written.text).text
        graded = asked(seed, words.grader_prompt(CATALOG, combination, answer=text, variant=variant))
        criteria = words.criteria(combination)

        assert student.answer(replace(request, subject=Subject(combination))) == written
        assert grader.answer(replace(graded, subject=Subject(combination, criteria, text))) == grader.answer(graded)


@pytest.mark.parametrize("spec", ["scripted:student", "scripted:grader"])
def test_prompts_that_cannot_be_read_are_refused_where_nothing_else_is_known(spec: str, tmp_path: Path) -> None:
    words = load_prompts(str(own_prompts(tmp_path / "words")))
    combination = draw_combinations(Draw(CATALOG.pool("all"), "all", 2, 0), 1)[0]
    prompts = [
        *words.student_prompts(CATALOG, combination)[:1],
        words.grader_prompt(CATALOG, combination, answer="x.", variant="gpt"),
    ]

    for prompt in (*prompts, "Hello", ""):
        outcome = model(spec).answer(asked(0, prompt))
        assert isinstance(outcome, CallProblem) and outcome.kind == "fatal", outcome


def test_what_a_request_is_about_is_no_part_of_its_identity() -> None:
    combination = draw_combinations(Draw(CATALOG.pool("all"), "all", 2, 0), 1)[0]
    plain = asked(1, "Hello")
    about = replace(plain, subject=Subject(combination, ("Shows x",), "A text."))

    assert plain == about
    assert plain.content_hash == about.content_hash == "45c4c87ef2e65c71d99e8b8a6229dcb0"
