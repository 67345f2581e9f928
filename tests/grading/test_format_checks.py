"""Output formats: which texts keep to them, how their units are counted, and what that does to the point for length."""

from functools import partial
from pathlib import Path
from typing import Any

import pytest
import yaml

import skillmix
from skillmix.calls import Subject
from skillmix.errors import UserError
from skillmix.experiment.experiment import Experiment, experiment_of
from skillmix.grading.answers import RULES, Answer
from skillmix.grading.points import check_format, decide_points, format_reasons, reasons_of
from skillmix.grading.reader import read_grades
from skillmix.models.scripted import ScriptedModel, code
from skillmix.prompts.prompt_set import load_prompts
from skillmix.prompts.rubric import OUTPUT_FORMATS, FormatName, length_limit, rubric_of
from skillmix.steps.run import run_checked
from tests.nasty_texts import takes_longer

KEPT: dict[FormatName, dict[str, int]] = {
    "list": {
        "- Warm bread.\n- Cold milk.": 2,
        "* one\n* two\n* three": 3,
        "1. one\n2) two": 2,
        "To pack:\n• socks\n• a book\n  with a red cover": 2,
        "- **Bread**: warm.\n\n- Milk: cold. And white.": 3,
        "(a) one\n(b) two": 2,
    },
    "dialogue": {
        "Ann: Is it late?\nBo: It is.": 2,
        "**Ann:** Is it late?\n\n**Bo:** It is. Go home.": 3,
        "(A kitchen.)\nAnn (softly): Late?\nBo: Late.\nAnn: Then good night.": 3,
        "Mr O'Neil: Soup?\nThe cook: Soup.": 2,
    },
    "poem": {
        "Rain on the roof,\nrain on the road,\nrain all day.": 3,
        "One\n\ntwo\nthree\nfour": 4,
    },
}
BROKEN: dict[FormatName, dict[str, str]] = {
    "list": {
        "Warm bread and cold milk.": "it has 0 items where at least 2 are required",
        "- Only bread. And butter.": "it has 1 item where at least 2 are required",
        "- one\n- two\nAnd that is all.": "1 line outside its items",
        "-one\n-two": "it has 0 items where at least 2 are required",
    },
    "dialogue": {
        "Ann and Bo talk about soup.": "1 line without a speaker",
        "Ann: Hello.": "it has 1 turn where at least 2 are required",
        "Ann: Hello.\nAnn: Hello again.": "it has one speaker",
        "Ann: Hello.\nBo: Hi.\nThey leave.": "1 line without a speaker",
    },
    "poem": {
        "Rain on the roof, rain on the road.": "it has 1 line where at least 3 are required",
        "One\ntwo": "it has 2 lines where at least 3 are required",
        "One\ntwo\n" + "word " * 13: "a line has 13 words where 12 are allowed",
        "": "it has 0 lines where at least 3 are required",
    },
}


@pytest.mark.parametrize(("name", "text", "units"), [(n, t, u) for n, texts in KEPT.items() for t, u in texts.items()])
def test_a_text_in_its_format(name: FormatName, text: str, units: int) -> None:
    assert check_format(text, name) == (units, None)


@pytest.mark.parametrize(("name", "text", "why"), [(n, t, w) for n, texts in BROKEN.items() for t, w in texts.items()])
def test_a_text_that_is_not_in_its_format(name: FormatName, text: str, why: str) -> None:
    assert check_format(text, name).fault == f"it is not a {name}: {why}"


def test_prose_is_in_no_format() -> None:
    prose = "The rain had stopped by noon, and the children went out to look for snails in the wet grass of the park."

    assert all(check_format(prose, name).fault for name in OUTPUT_FORMATS)


@pytest.mark.parametrize("name", OUTPUT_FORMATS)
@pytest.mark.parametrize("k", range(1, 8))
def test_every_k_leaves_room_for_the_format_and_no_more_units_than_sentences_would_need(
    name: FormatName, k: int
) -> None:
    form = OUTPUT_FORMATS[name]

    assert form.fewest <= form.limit(k)
    assert form.limit(k) == max(form.room, length_limit(k))


@pytest.mark.parametrize("name", OUTPUT_FORMATS)
def test_the_prompts_say_the_format_and_its_limit(name: FormatName) -> None:
    from skillmix.catalog.combinations import combination_of
    from skillmix.catalog.files import load_catalog

    catalog, prompts = load_catalog("verifiable"), load_prompts("standard", name)
    combination = combination_of(["alliteration", "end rhyme"], "Picnics")
    form = OUTPUT_FORMATS[name]

    turns = prompts.student_prompts(catalog, combination)
    assert all(prompt.endswith(form.request) for prompt in turns)
    assert f"It may have {'four' if name == 'poem' else 'two'} {form.unit}s at the most" in turns[1]
    graded = prompts.grader_prompt(catalog, combination, answer="x", variant="gpt")
    assert f"- Has at most {'four' if name == 'poem' else 'two'} {form.unit}s" in graded
    plain = load_prompts("standard")
    assert plain.student_prompts(catalog, combination)[0] == turns[0].removesuffix(f"\n\n{form.request}")
    assert prompts.content_hash() != plain.content_hash()


def points(text: str, name: FormatName) -> tuple[bool | None, ...]:
    rubric = rubric_of(["metaphor"], "Rain", phrases=load_prompts("standard", name).phrases)
    reply = "\n".join(f"| {c.phrase} | 1 |" for c in rubric.criteria)
    reading = read_grades(rubric, f"| Criteria | Points Earned |\n|---|---|\n{reply}")
    assert reading.points == (1.0,) * 4
    return decide_points(rubric, Answer(text, "fine"), [reading], rounds=1, rules=RULES["default"])


def test_the_point_for_length_needs_the_format_whatever_the_grader_says() -> None:
    assert points("- Rain is a drum.\n- Rain is a guest.", "list") == (True, True, True, True)
    assert points("Rain is a drum.", "list") == (True, True, True, False)
    assert points("- a\n- b\n- c", "list")[-1] is False
    assert points("- Rain is a drum. It beats.\n- Rain is a guest.", "list")[-1] is False
    assert points("Rain\nis a drum\nall night", "poem")[-1] is True


def test_the_reason_for_a_lost_point_names_the_format_or_its_units() -> None:
    def reason(text: str) -> str:
        lost = (True, True, True, False)
        given = format_reasons(text, 1, "list")
        return reasons_of(lost, ["metaphor"], Answer(text, "fine"), RULES["default"], given)["length"]

    assert reason("Rain.") == "it is not a list: it has 0 items where at least 2 are required"
    assert reason("- a\n- b\n- c") == "it has 3 items where 2 are allowed"


@pytest.mark.parametrize("piece", ["- a\n", "a: b\n", "(", "- ", "a b ", "**", "a:", "1. x. y. ", "\n"])
def test_long_texts_take_linear_time(piece: str) -> None:
    for name in OUTPUT_FORMATS:
        assert not takes_longer(partial(check_format, piece * 20_000, name), seconds=1)


def experiment(**more: object) -> Experiment:
    step = {"name": "e", "stage": "evaluate", "students": ["s"], "graders": ["g"], "k": [2], "combinations": 2}
    document = {
        "name": "f",
        "students": {"s": {"model": "scripted:student"}},
        "graders": {"g": {"model": "scripted:grader", "rounds": 1}},
        "steps": [step],
        **more,
    }
    return experiment_of(document, source="test")


def test_an_experiment_without_a_format_keeps_its_old_form() -> None:
    assert "format" not in experiment().model_dump(mode="json")
    assert experiment(format="poem").model_dump(mode="json")["format"] == "poem"
    assert experiment_of(experiment(format="list").model_dump(mode="json"), source="again").format == "list"


def test_a_run_asks_for_its_format_checks_it_and_keeps_it(in_folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from skillmix.commands import main
    from skillmix.scores.text_rows import run_texts

    file = in_folder / "f.yaml"
    file.write_text(yaml.safe_dump(experiment(format="dialogue").model_dump(mode="json")), encoding="utf-8")

    assert main(["run", str(file)]) == 0
    rows = run_texts("f")
    assert all(row.points["length"] is False for row in rows)  # scripted students write prose
    assert {row.reasons["length"] for row in rows} == {"it is not a dialogue: 1 line without a speaker"}
    assert main(["run", str(file), "--set", "format=poem"]) == 2
    assert "exists with another format (" in capsys.readouterr().err


class ListWriter(ScriptedModel):
    """Writes the code words of all skills and of the topic as a list."""

    def _write(self, task: Subject, chance: Any) -> str:
        words = [code(name) for name in (*task.combination.skills, task.combination.topic)]
        return (
            f"Answer: - Scripted words {' '.join(words)}\n- and more of it {task.combination.id}.\n\nExplanation: so."
        )


def test_the_rows_of_a_data_set_ask_for_the_format_of_their_run(
    in_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("skillmix.runs.calling.open_model", lambda spec, _: ListWriter(spec))
    step = {"name": "d", "stage": "dataset", "writer": "s", "graders": ["g"], "k": [1], "target": 3}
    run_checked(experiment(name="listed", steps=[step], format="list"))
    run_checked(experiment(name="prose"))

    rows = [
        row for file in Path("runs/listed/d/dataset").glob("*.jsonl") for row in file.read_text("utf-8").splitlines()
    ]

    assert len(rows) == 3
    assert all(row.count("Write the text as a list") == 2 for row in rows)
    with pytest.raises(UserError, match="different output formats"):
        skillmix.build_dataset(["listed", "prose"], k=[1], output="both")
