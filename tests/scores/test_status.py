"""The cost of a run so far: known, none, or unknown with the reason."""

import json
from pathlib import Path
from typing import Any

import pytest

import skillmix
from skillmix.calls import GenerateKey, Outcome, Reply, Request
from skillmix.models.scripted import ScriptedModel
from skillmix.scores.status import Status
from skillmix.steps import checks
from tests.commands.command_line import EXAMPLE, run


def evaluated(name: str) -> None:
    models: dict[str, Any] = {"student": "scripted:student", "grader": {"model": "scripted:grader", "rounds": 1}}
    skillmix.evaluate(name=name, **models, k=[1], settings=["all"], combinations=2, generations=1)


def shown(capsys: pytest.CaptureFixture[str], name: str) -> tuple[str, dict[str, Any]]:
    """The line about the cost, and the JSON document."""
    capsys.readouterr()
    _, page, _ = run(capsys, "status", name)
    _, document, _ = run(capsys, "status", name, "--json")
    [line] = [line for line in page.splitlines() if line.startswith("cost: ")]
    return line, json.loads(document)


def test_a_run_of_free_models_costs_nothing(capsys: pytest.CaptureFixture[str], in_folder: Path) -> None:
    evaluated("free")

    line, document = shown(capsys, "free")

    assert line == "cost: none, as every reply was free"
    assert document["cost_usd"] == 0.0 and "unpriced" not in document


def test_a_model_without_a_price_makes_the_cost_unknown(
    capsys: pytest.CaptureFixture[str], in_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checks, "price_of_calls", lambda settings, prices: None)
    evaluated("paid")

    line, document = shown(capsys, "paid")

    assert line == (
        "cost: unknown, as the price of scripted:student is unknown (4 calls) and the price of scripted:grader is "
        "unknown (2 calls)"
    )
    assert document["unpriced"] == {"scripted:student": 4, "scripted:grader": 2}


def test_the_cost_of_imported_replies_is_unknown(capsys: pytest.CaptureFixture[str], in_folder: Path) -> None:
    run(capsys, "import-texts", str(EXAMPLE), "--run", "demo")

    line, document = shown(capsys, "demo")

    assert line == f"cost: unknown, as other programs made {document['unpriced']['imported']} calls"


def test_the_name_of_a_model_without_a_price_cannot_command_the_terminal() -> None:
    line = Status(3, 0, 0, 0, 0.0, unpriced={"openai:\x1b[2Ja\nb": 1}).cost_line()

    assert line.isprintable() and "openai:" in line


def test_replies_that_end_in_their_thought_are_counted_and_sent_to_no_grader(
    capsys: pytest.CaptureFixture[str], in_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def thinks(model: ScriptedModel, request: Request) -> Outcome:
        assert isinstance(request.key, GenerateKey), "there is no answer to grade"
        return Reply("<think>Answer: The needle is a fish, but", "length")

    monkeypatch.setattr(ScriptedModel, "answer", thinks)
    evaluated("thinking")

    _, page, _ = run(capsys, "status", "thinking")
    _, document, _ = run(capsys, "status", "thinking", "--json")

    assert "calls: 4 done, 0 missing, 0 failed" in page
    assert "replies truncated while thinking: 2; raise max_tokens" in page
    assert json.loads(document)["cut_in_thought"] == 2
    _, rows, _ = run(capsys, "scores", "thinking", "--json")
    [score] = [s for s in json.loads(rows) if s["metric"] == "full_marks"]
    assert (score["value"], score["format_failures"], score["written"]) == (0.0, 2, 2)
