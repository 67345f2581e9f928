"""The commands `prompts`, `parse-reply` and `grade-text`."""

import asyncio
import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from skillmix.commands import main
from skillmix.models.scripted import code
from tests.commands.command_line import DATA, give_input, run
from tests.models.stub import chat, serving

NAMED = ["--skills", "metaphor; complex question", "--topic", "Sewing"]
REPLY = "| metaphor | 1 |\n| complex question | 0 |\n| Pertains to Sewing | 1 |\n| Makes sense | ½ |"


def test_prompts_are_shown_as_sent(capsys: pytest.CaptureFixture[str]) -> None:
    _, out, _ = run(capsys, "prompts", *NAMED, "--answer", "My text", "--json")

    rendered = json.loads(out)
    assert set(rendered) == {
        "generate-1.txt",
        "generate-2.txt",
        "grade-gpt.txt",
        "grade-claude.txt",
        "grade-llama2.txt",
    }
    assert "My text" in rendered["grade-gpt.txt"]


def test_parse_reply_json_has_the_documented_form(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    give_input(monkeypatch, REPLY.encode())

    status, out, _ = run(capsys, "parse-reply", "paper", *NAMED, "--json")

    assert status == 0
    assert json.loads(out) == {
        "points": {
            "metaphor": 1.0,
            "complex question (loaded question with implicit assumption)": 0.0,
            "topic": 1.0,
            "sense": 0.5,
            "length": None,
        },
        "problem": None,
        "notes": [],
    }


def test_an_unreadable_reply_is_a_result_not_an_error(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    give_input(monkeypatch, b"I would rather not.")

    status, out, _ = run(capsys, "parse-reply", *NAMED, "--json")

    assert status == 0
    assert json.loads(out)["points"] is None
    assert json.loads(out)["problem"] == "no table and no point lines were found"


def test_parse_reply_knows_the_students_text(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "text.txt").write_text(REPLY, encoding="utf-8")
    give_input(monkeypatch, REPLY.encode())

    _, out, _ = run(capsys, "parse-reply", *NAMED, "--text", str(tmp_path / "text.txt"), "--json")

    assert json.loads(out)["points"] is None


def test_the_points_of_grade_text_are_the_same_as_json_and_as_text(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    long = "My laundry is as stubborn as a mule. It balks. It bites. It waits. It hums."
    asked = ["verifiable", "--skills", "simile", "--topic", "Laundry day", "--grader", "rules:"]
    shown = {}
    for form in ((), ("--json",)):
        give_input(monkeypatch, long.encode())
        _, shown[form], _ = run(capsys, "grade-text", *asked, *form)

    points = json.loads(shown["--json",])["points"]
    lines = dict(line.split(":")[:2] for line in shown[()].splitlines() if ": " in line[:40])
    assert points["length"] == 0.0
    assert {name: int(lines[name].split()[0]) for name in points} == points


def test_grade_text_asks_one_grader(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    give_input(monkeypatch, f"Scripted words {code('metaphor')} {code('Sewing')}.".encode())

    status, out, _ = run(capsys, "grade-text", *NAMED, "--grader", "scripted:grader", "--json")

    complex_question = "complex question (loaded question with implicit assumption)"
    graded = json.loads(out)
    assert status == 0
    assert graded["points"] == {"metaphor": 1.0, complex_question: 0.0, "topic": 1.0, "sense": 1.0, "length": 1.0}
    assert graded["scores"] == {"full_marks": 0.0, "all_skills": 0.0, "skill_fraction": 0.5}
    assert graded["evidence"] == {"metaphor": None, complex_question: None}


@pytest.mark.parametrize("variant", ["gpt", "claude", "llama2"])
def test_every_variant_of_the_graders_prompt_is_answered_readably(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, variant: str
) -> None:
    give_input(monkeypatch, b"Nothing of it.")

    _, out, _ = run(capsys, "grade-text", *NAMED, "--grader", "scripted:grader", "--variant", variant, "--json")

    assert json.loads(out)["problem"] is None


def test_a_variant_of_the_graders_prompt_is_one_more_file(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    folder = tmp_path / "own"
    shutil.copytree(DATA / "prompts/standard", folder)
    shutil.copy(folder / "grade-claude.txt", folder / "grade-mine.txt")
    mine = [*NAMED, "--prompts", str(folder), "--variant", "mine", "--grader", "scripted:grader", "--json"]
    give_input(monkeypatch, b"Nothing of it.")

    status, out, _ = run(capsys, "grade-text", *mine)

    assert status == 0
    assert json.loads(out)["problem"] is None


@pytest.mark.parametrize("grader", ["scripted:grader", "rules:"])
def test_an_unknown_variant_is_an_error_with_the_known_ones(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, grader: str
) -> None:
    give_input(monkeypatch, b"Nothing of it.")

    status, _, err = run(capsys, "grade-text", *NAMED, "--variant", "gtp", "--grader", grader)

    assert status == 2
    assert err.splitlines() == [
        "error: Prompt set 'standard' has no grader prompt 'gtp'.",
        'hint: Did you mean "gpt"? Its grader prompts: gpt, claude, llama2. To add this one, write grade-gtp.txt.',
    ]


def graded_by_server(system: list[str]) -> tuple[int, list[dict[str, Any]]]:
    """The exit status of `grade-text`, and the messages that a server got."""

    async def main_on_server() -> tuple[int, list[dict[str, Any]]]:
        async with serving(lambda body: chat(REPLY)) as stub:
            words = ["grade-text", *NAMED, "--grader", f"openai:m@{stub.address}", *system]
            status = await asyncio.to_thread(main, words)
            return status, [message for body in stub.bodies for message in body["messages"]]

    return asyncio.run(main_on_server())


def test_a_system_text_comes_before_the_graders_prompt(monkeypatch: pytest.MonkeyPatch) -> None:
    give_input(monkeypatch, b"A text.")
    status, with_text = graded_by_server(["--system", "Be strict."])
    give_input(monkeypatch, b"A text.")
    _, without = graded_by_server([])

    assert status == 0
    assert with_text == [{"role": "system", "content": "Be strict."}, *without]
    assert [message["role"] for message in without] == ["user"]


@pytest.mark.parametrize(
    ("words", "error"),
    [
        (
            ["verifiable", "--skills", "isocolon", "--topic", "Kites", "--system", "Hi"],
            "--system cannot be used with rules:",
        ),
        ([*NAMED, "--grader", "scripted:grader", "--system", " "], "--system: the text is empty"),
        ([*NAMED, "--grader", "scripted:grader", "--system", f"sk-{'a1' * 20}"], "--system: a value looks like a key"),
    ],
)
def test_a_system_text_that_cannot_be_sent_is_refused(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, words: list[str], error: str
) -> None:
    give_input(monkeypatch, b"A text.")

    status, _, err = run(capsys, "grade-text", *words)

    assert status == 2
    assert error in err and "a1a1" not in err
