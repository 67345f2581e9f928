"""The reasons for denied points, in `grade-text`, `texts`, the export and the report."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from skillmix.checkers.registry import LOOKS_FOR, why_not_shown
from skillmix.commands import main
from skillmix.scores.text_rows import run_texts
from skillmix.steps.run import run_experiment
from tests.commands.command_line import give_input, run
from tests.report.test_pages import EVIL, chunk

ANAPHORA = "code found no passage that shows it; the check looks for " + LOOKS_FOR["anaphora"]
NAMED = ("grade-text", "verifiable", "--skills", "anaphora", "--topic", "Sourdough bread")
UNWOVEN = "not about the topic"
STOCK = "scripted:student?skill=0.5&length=0.5&empty=0.1&refusal=0.1"


def unwrapped(page: str, indent: int = 4) -> list[str]:
    """The lines of a page, joined with those that continue them."""
    return page.replace("\n" + indent * " ", " ").splitlines()


def graded(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, text: str, *options: str) -> str:
    give_input(monkeypatch, text.encode())
    status, out, _ = run(capsys, *NAMED, *options)
    assert status == 0
    return out


def test_grade_text_says_why_in_json(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    text = "The ship is late. We are cold. Night comes over the sea."

    printed = json.loads(graded(capsys, monkeypatch, text, "--json"))

    assert list(printed) == [
        *("points", "problem", "notes", "scores", "woven_full_marks"),
        *("evidence", "woven", "reasons", "grader_words", "unrequested"),
    ]
    assert printed["reasons"] == {
        "anaphora": ANAPHORA,
        "topic": "it has no word of the topic",
        "length": "it has 3 sentences where 1 is allowed",
    }


def test_grade_text_says_why_on_the_terminal_once(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    out = graded(capsys, monkeypatch, "The bread, the loaf, the oven, the dough.")

    assert unwrapped(out)[:4] == [
        f"anaphora: 0  {ANAPHORA}",
        "topic: 1",
        "sense: 0  most of it has no finite verb",
        "length: 1",
    ]
    assert out.count("no finite verb") == 1


def test_words_that_show_a_named_skill_stand_beside_the_reason(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    text = "Every anaphora needs bread, every loaf needs an oven, every oven needs a baker."

    out = graded(capsys, monkeypatch, text)

    assert out.startswith("anaphora: 0  “Every anaphora needs")
    assert unwrapped(out)[0].endswith('”; it names the skill "anaphora"')


def test_a_model_is_not_given_the_reasons_of_code(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    text = "The ship is late. It is cold."
    length = {"length": "it has 2 sentences where 1 is allowed"}

    mixed = json.loads(graded(capsys, monkeypatch, text, "--grader", "rules:scripted:grader", "--json"))
    model = json.loads(graded(capsys, monkeypatch, text, "--grader", "scripted:grader", "--json"))

    assert mixed["points"]["topic"] == model["points"]["topic"] == 0
    assert mixed["reasons"] == {"anaphora": ANAPHORA, **length}
    assert model["reasons"] == length


def coded_run(folder: Path, grader: str = "rules:", student: str = STOCK) -> None:
    step = {"name": "e", "stage": "evaluate", "students": ["s"], "graders": ["g"], "settings": ["all"]}
    document = {
        "name": "coded",
        "catalog": "verifiable",
        "students": {"s": {"model": student}},
        "graders": {"g": {"model": grader}},
        "steps": [{**step, "k": [1, 2], "combinations": 10, "generations": 2}],
    }
    (folder / "coded.yaml").write_text(yaml.safe_dump(document), encoding="utf-8")
    run_experiment(folder / "coded.yaml")


def test_under_rules_exactly_the_denied_points_have_a_reason(in_folder: Path) -> None:
    coded_run(in_folder)

    texts = run_texts("coded")

    nothing = {"the student wrote no text", "the student refused to answer, or a filter blocked the reply"}
    assert nothing < {reason for text in texts for reason in text.reasons.values()}
    for text in texts:
        assert set(text.reasons) == {name for name, point in text.points.items() if not point}


def test_texts_show_the_reasons(in_folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    coded_run(in_folder)
    _, as_json, _ = run(capsys, "texts", "coded", "--n", "100", "--json")
    _, page, _ = run(capsys, "texts", "coded", "--n", "100")

    rows = json.loads(as_json)
    reasons = [(name, reason) for row in rows for name, reason in row["reasons"].items()]
    assert len(rows) == 40 and len(reasons) > 40
    assert {f"- {name}: {reason}" for name, reason in reasons} <= {line.strip() for line in unwrapped(page, indent=6)}
    assert max(map(len, page.splitlines())) <= 102


def test_exported_texts_hold_the_reasons(in_folder: Path) -> None:
    coded_run(in_folder)
    assert main(["export", "coded", "--what", "texts"]) == 0

    rows = [json.loads(line) for line in (in_folder / "runs/coded/texts.jsonl").read_text("utf-8").splitlines()]

    assert len(rows) == 40
    for row in rows:
        denied = [point["criterion"] for point in row["points"] if not point["earned"]]
        assert [entry["criterion"] for entry in row["reasons"]] == denied
        assert all(entry["reason"] for entry in row["reasons"])


def report_texts(folder: Path) -> tuple[dict[str, Any], list[Any]]:
    index = chunk(folder / "data" / "index.js")
    combinations = chunk(folder / "data" / "texts-0.js")
    assert isinstance(index, dict) and isinstance(combinations, list)
    return index, combinations


@pytest.mark.parametrize("most", [0, 1000], ids=["reasons in the texts", "reasons in the index"])
def test_the_report_has_every_reason_beside_its_point(
    in_folder: Path, monkeypatch: pytest.MonkeyPatch, most: int
) -> None:
    monkeypatch.setattr("skillmix.report.archive._MAX_REASONS", most)
    coded_run(in_folder)
    assert main(["report", "coded", "--no-figures"]) == 0

    index, combinations = report_texts(in_folder / "runs" / "coded" / "report")

    shown = {}
    for _, skills, topic, texts in combinations:
        names = [*(index["skills"][skill] for skill in skills), "topic", "sense", "length"]
        for text in texts:
            ((_, points, *rest),) = text[4]
            remarks = [index["reasons"][r] if isinstance(r, int) else r for r in (rest[0] if rest else [])]
            reasons = [None if remark == UNWOVEN else remark for remark in remarks]
            assert [reason is not None for reason in reasons] == ([point == "0" for point in points] if rest else [])
            found = {name: reason for name, reason in zip(names, reasons, strict=False) if reason}
            shown[(*names, index["topics"][topic], text[1])] = found
    expected = {(*text.points, text.topic, text.generation): text.reasons for text in run_texts("coded")}
    assert shown == expected
    known = {r for own in expected.values() for r in own.values()}
    assert set(index["reasons"]) - {UNWOVEN} == (known if most else set())


def test_under_a_mixed_grader_the_report_gives_reasons_for_skills_alone(in_folder: Path) -> None:
    coded_run(in_folder, "rules:scripted:grader?noise=0.5", "scripted:student?topic=0.1")
    assert main(["report", "coded", "--no-figures"]) == 0

    index, combinations = report_texts(in_folder / "runs" / "coded" / "report")

    entries = [entry for combination in combinations for text in combination[3] for entry in text[4]]
    assert any(points[-3] == "0" for _, points, *_ in entries)
    assert all(reasons[-3] is None and reasons[-2] is None for _, _, reasons in entries)
    assert any(index["reasons"][reasons[0]].startswith("code found no passage") for _, _, reasons in entries)


def make_evil_reasons(folder: Path) -> str:
    """A run whose reasons hold the name of a skill that is markup; the reason."""
    name = "<img src=x onerror=window.ran=3>"
    side = {"skills": ["plain"], "categories": []}
    catalog = {
        "skills": [{"name": n, "category": "c", "definition": "d", "example": "e"} for n in (name, "plain")],
        "topics": ["Sewing", "Golf"],
        "partitions": {
            "default": "half",
            "partitions": {"half": {"train": {**side, "skills": [name]}, "held-out": side}},
            "topics": {"train": ["Sewing"], "held-out": ["Golf"]},
        },
    }
    (folder / "evil").mkdir()
    for file, content in catalog.items():
        (folder / "evil" / f"{file}.yaml").write_text(yaml.safe_dump(content), encoding="utf-8")
    grading = f"| {name} | 1 |\n| topic | 1 |\n| sense | 1 |"
    line = {"student": "s", "skills": [name], "topic": "Sewing", "text": f"It says {name} {EVIL}"}
    (folder / "evil.jsonl").write_text(json.dumps({**line, "gradings": {"g": [grading]}}) + "\n", encoding="utf-8")
    assert main(["import-texts", str(folder / "evil.jsonl"), "--run", "evil", "--catalog", str(folder / "evil")]) == 0
    return f'it names the skill "{name}"'


def test_a_reason_is_data_and_goes_into_the_page_as_text(in_folder: Path) -> None:
    reason = make_evil_reasons(in_folder)
    assert main(["report", "evil", "--no-figures"]) == 0
    folder = in_folder / "runs" / "evil" / "report"

    index, combinations = report_texts(folder)

    assert index["reasons"] == [reason]
    assert combinations[0][3][0][4] == [[0, "0111", [0, None, None, None]]]
    for page in folder.glob("*.html"):
        assert "<img src=x" not in page.read_text(encoding="utf-8")
    script = (folder / "cards.js").read_text(encoding="utf-8")
    assert re.findall(r'.*"reason".*', script) == re.findall(r'.*labelled\("span", "reason", .*', script) != []


def test_a_terminal_is_not_given_control_characters_by_a_reason(
    in_folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("skillmix.checkers.judge.why_not_shown", lambda skill: f"\x1b[31m{why_not_shown(skill)}\u202e")

    out = graded(capsys, monkeypatch, "The bread is in the oven.")

    assert "\x1b" not in out and "\u202e" not in out and "code found no passage" in out
