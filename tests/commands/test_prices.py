"""Prices come from a dated file, which a command refreshes from a list that the user names."""

import json
from datetime import UTC, date, datetime
from pathlib import Path

import pytest

from skillmix.commands import main
from skillmix.experiment.costs import Price, load_prices, price_warnings
from tests.runs.batches.experiments import written

LITELLM = {
    "sample_spec": {"litellm_provider": "one of the providers", "input_cost_per_token": 0.0},
    "gpt-4o": {"litellm_provider": "openai", "input_cost_per_token": 3e-06, "output_cost_per_token": 1.2e-05},
    "gemini/gemini-x": {"litellm_provider": "gemini", "input_cost_per_token": 1e-06, "output_cost_per_token": "2e-06"},
    "together_ai/a/b": {"litellm_provider": "together_ai", "input_cost_per_token": 2e-07, "output_cost_per_token": 0},
    "broken": {"litellm_provider": "openai", "input_cost_per_token": -1, "output_cost_per_token": 1},
}
OPENROUTER = {"data": [{"id": "a/b", "pricing": {"prompt": "0.0000005", "completion": "0.0000015"}}, "odd"]}


def test_prices_are_refreshed_from_a_list_and_dated(in_folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Path("list.json").write_text(json.dumps(LITELLM), encoding="utf-8")
    Path("mine.yaml").write_text(
        "openai:gpt-4o: {input: 2.5, output: 10.0, batch: 0.4, noted: 2020-01-01}\n"
        "openai:other: {input: 1, output: 1}\n"
    )

    more = ["gemini:gemini-x", "together:a/b", "openai:broken"]
    code = main(["prices", *more, "--prices", "mine.yaml", "--from", "list.json", "--output", "mine.yaml"])

    today = datetime.now(UTC).date().isoformat()
    assert code == 1, "two models are not in the list"
    assert load_prices(Path("mine.yaml")) == {
        "openai:gpt-4o": Price(3.0, 12.0, noted=today, source="list.json", batch=0.4),
        "openai:other": Price(1.0, 1.0),
        "gemini:gemini-x": Price(1.0, 2.0, noted=today, source="list.json"),
        "together:a/b": Price(0.2, 0.0, noted=today, source="list.json"),
    }
    said = capsys.readouterr().err
    assert "no price for openai:other; the old price is kept" in said and "no price for openai:broken\n" in said


def test_prices_of_openrouter_come_from_its_list_of_models(in_folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Path("models.json").write_text(json.dumps(OPENROUTER), encoding="utf-8")
    Path("none.yaml").write_text("{}\n", encoding="utf-8")

    assert main(["prices", "openrouter:a/b", "--prices", "none.yaml", "--from", "models.json", "--json"]) == 0

    assert json.loads(capsys.readouterr().out)["openrouter:a/b"] | {"noted": None} == {
        **{"input": 0.5, "output": 1.5, "noted": None, "source": "models.json", "batch": None}
    }


@pytest.mark.parametrize("content", ["[]", "no JSON", "3"])
def test_what_is_no_price_list_is_one_line(in_folder: Path, capsys: pytest.CaptureFixture[str], content: str) -> None:
    Path("list.json").write_text(content, encoding="utf-8")

    assert main(["prices", "--from", "list.json"]) == 2

    assert "price list" in capsys.readouterr().err


def test_a_price_older_than_90_days_is_a_warning() -> None:
    prices = {
        "old": Price(1, 1, noted="2026-01-01"),
        "new": Price(1, 1, noted="2026-01-02"),
        "free": Price(0, 0, noted="2020-01-01"),
        "undated": Price(1, 1),
        "unknown": None,
    }

    (warning,) = price_warnings(prices, today=date(2026, 4, 2))

    assert warning.startswith("the price of old is from 2026-01-01, more than 90 days ago")


def test_a_run_and_its_dry_run_warn_about_old_prices(in_folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Path("p.yaml").write_text(
        "openai:student: {input: 1, output: 1, noted: 2020-01-01}\nopenai:grader: {input: 1, output: 1}\n"
    )
    file = str(written(in_folder, "http://models.example/v1", batch=False))

    assert main(["run", file, "--dry-run", "--prices", "p.yaml"]) == 0

    assert "the price of openai:student@http://models.example/v1 is from 2020-01-01" in capsys.readouterr().err


def test_a_limit_in_dollars_without_a_price_says_how_to_give_one(
    in_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = str(written(in_folder, "http://models.example/v1", batch=False, budget={"max_usd": 1}))

    assert main(["run", file]) == 2

    said = " ".join(capsys.readouterr().err.split())
    assert (
        "the price of openai:grader@http://models.example/v1, openai:student@http://models.example/v1 is unknown"
        in said
    )
    assert (
        "Add --prices FILE with a line such as openai:grader: {input: 2.5, output: 10.0}" in said
        and "--prices FILE" in said
    )
