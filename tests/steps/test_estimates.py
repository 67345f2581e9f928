"""Estimates for `--dry-run`: the paper's recipes, sums, expected costs, roles, budgets and prices."""

import json
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import yaml

from skillmix.calls import Reply
from skillmix.commands import main as command
from skillmix.errors import UserError
from skillmix.experiment.costs import load_prices
from skillmix.runs.run import open_run
from skillmix.steps.estimates import CallEstimate, estimate_table
from skillmix.steps.run import run_experiment
from tests.steps.estimating import dry_run

TODAY = datetime.now(UTC).date().isoformat()
EXPERIMENTS = Path(__file__).parents[2] / "experiments"


@pytest.mark.parametrize("name", ["paper-llama2-13b", "paper-mistral-7b"])
def test_the_papers_recipes_tell_calls_tokens_cost_and_gpu_hours(name: str) -> None:
    found = dry_run(EXPERIMENTS / f"{name}.yaml", prices=None)

    by_step = {(e.step, e.model): e for e in found}
    assert {step for step, _ in by_step} >= {"d1, at least", "d3, at most", "m1", "m12", "m123", "eval"}
    assert by_step["m123", "base"].input_tokens == 4000 * 64 * (1024 + 256)
    assert 6 < (by_step["m123", "base"].gpu_hours or 0) < 14
    assert all(e.cost_usd is not None and e.gpu_hours is not None for e in found)
    assert sum(e.calls for e in found if e.step == "d1, at most") == 5000 * (2 + 3 * 3)
    assert sum(e.calls for e in found if e.step == "d1, at least") == 5000 * (2 + 3)
    assert {e.role for e in found if e.step == "d1, at most"} == {"writer", "grader"}
    assert {e.role for e in found if e.step == "m1"} == {"training"}
    assert {e.step for e in found if e.is_lower_bound} == {f"d{k}, at least" for k in (1, 2, 3, 4)}
    assert sum(e.calls for e in found if (e.step, e.model) == ("eval", "step:m123")) == pytest.approx(
        2 * 3 * 3 * 5 * 100, rel=0.01
    )


def test_an_unknown_part_makes_an_unknown_sum() -> None:
    unknown, known, lower = (
        CallEstimate("m", "b", 0, None, 0, 0.0, None),
        CallEstimate("e", "x", 5, 10, 20, 1.5, 0.0),
        CallEstimate("d", "x", 9, 9, 9, 9.0, 9.0, is_lower_bound=True),
    )

    table = estimate_table([unknown, known, lower])

    last = [cell.strip() for cell in table.splitlines()[-1].split("|")]
    assert last[1:-1] == ["all", "", "", "5", "unknown", "20", "0.00", "1.50", "unknown", ""]


STUDENT, GRADER = "scripted:student?skill=0.7", "scripted:grader?unreadable=0.3"


def written(folder: Path, *, steps: list[dict[str, Any]] | None = None, **changes: Any) -> Path:
    evaluate = {"name": "eval", "stage": "evaluate", "students": ["base"], "graders": ["judge"], "settings": ["all"]}
    document = {
        "name": "tiny",
        "students": {"base": {"model": STUDENT}},
        "graders": {"judge": {"model": GRADER}},
        "steps": steps or [evaluate | {"k": [2], "combinations": 10, "generations": 1}],
    }
    path = folder / "tiny.yaml"
    path.write_text(yaml.safe_dump(document | changes), encoding="utf-8")
    return path


@pytest.fixture
def prices(in_folder: Path) -> Path:
    path = in_folder / "prices.yaml"
    lines = [
        f"'{GRADER}': {{input: 1000, output: 2000, noted: {TODAY}, source: a letter}}",
        "other: {input: 1, output: 1}",
    ]
    path.write_text("\n".join(lines), encoding="utf-8")
    return path


def test_at_most_counts_every_attempt_at_an_unreadable_grade(in_folder: Path, prices: Path) -> None:
    student, grader = dry_run(written(in_folder), prices=prices)

    assert (student.calls, grader.calls) == (20, 3 * 3 * 10)
    assert grader.output_tokens == 3 * 3 * 10 * 1024
    assert grader.expected is not None
    assert (grader.expected.calls, grader.expected.basis) == (3 * 10, "typical lengths")
    assert 0 < (grader.expected.cost_usd or 0) < (grader.cost_usd or 0) / 3


def test_expected_costs_come_from_this_run_then_from_other_runs_with_the_same_model(
    in_folder: Path, prices: Path
) -> None:
    path = written(in_folder)
    assert run_experiment(path, changes=["steps.eval.combinations=4"]).is_complete
    with open_run("tiny").read() as journal:
        replies = [call.outcome for call in journal.calls("grade")]
    tokens = [(r.input_tokens or 0, r.output_tokens or 0) for r in replies if isinstance(r, Reply)]
    again = len(tokens) / (3 * 4)
    cost = sum(1000 * first + 2000 * second for first, second in tokens) / 1e6 / len(tokens)

    _, grader = dry_run(path, prices=prices)
    _, elsewhere = dry_run(path, prices=prices, changes=["name=new", "graders.judge.rounds=1"])
    _, other_model = dry_run(path, prices=prices, changes=["name=new", "graders.judge.extra={reasoning_effort: low}"])

    assert again > 1
    assert grader.expected is not None and elsewhere.expected is not None and other_model.expected is not None
    assert grader.expected.basis == f"this run ({len(tokens)} calls)"
    assert grader.expected.calls == round(3 * 10 * again)
    assert grader.expected.cost_usd == pytest.approx(3 * 10 * again * cost)
    assert elsewhere.expected.basis == f"other runs ({len(tokens)} calls)"
    assert elsewhere.expected.cost_usd == pytest.approx(10 * again * cost)
    assert other_model.expected.basis == "typical lengths"


def test_expected_tokens_follow_the_k_of_past_calls(in_folder: Path, prices: Path) -> None:
    path = written(in_folder)
    assert run_experiment(path, changes=["steps.eval.k=[1, 4]"]).is_complete

    costs = [dry_run(path, prices=prices, changes=[f"steps.eval.k=[{k}]"])[1].expected for k in (1, 2, 4, 5)]

    inputs = [expected.input_tokens / expected.calls for expected in costs if expected]
    assert inputs[0] == pytest.approx(inputs[1], rel=0.01)
    assert inputs[2] == pytest.approx(inputs[3], rel=0.01)
    assert inputs[2] > 1.3 * inputs[0]


def test_a_damaged_journal_of_another_run_is_left_out(in_folder: Path, prices: Path) -> None:
    journal = in_folder / "runs/broken/journal"
    journal.mkdir(parents=True)
    (journal / "calls.sqlite").write_bytes(b"no database at all")

    _, grader = dry_run(written(in_folder), prices=prices)

    assert grader.expected is not None
    assert grader.expected.basis == "typical lengths"


def test_every_row_has_its_role(in_folder: Path, prices: Path) -> None:
    drawn = {"settings": ["all"], "k": [1], "combinations": 2, "generations": 1}
    steps: list[dict[str, Any]] = [
        {"name": "write", "stage": "generate", "students": ["base"]} | drawn,
        {"name": "first", "stage": "grade", "of": ["write"], "graders": ["judge"]},
        {"name": "second", "stage": "grade", "of": ["write"], "graders": ["judge"]},
        {"name": "eval", "stage": "evaluate", "students": ["base"], "graders": ["judge"]} | drawn,
        {"name": "again", "stage": "grade", "of": ["eval"], "graders": ["judge"]},
    ]

    found = dry_run(written(in_folder, steps=steps), prices=prices)

    assert [(e.step, e.role) for e in found] == [
        ("write", "student"),
        ("first", "grader"),
        ("second", "re-grader"),
        ("eval", "student"),
        ("eval", "grader"),
        ("again", "re-grader"),
    ]


@pytest.mark.parametrize(
    ("budget", "expected"),
    [
        ({"max_usd": 0.01}, "warning: budget.max_usd is 0.01, below the expected"),
        ({"max_usd": 60}, "warning: budget.max_usd is 60.00, below the maximum of"),
        ({"max_calls": 30}, "warning: budget.max_calls is 30, below the expected 50 calls: the run will stop"),
        ({"max_calls": 60}, "warning: budget.max_calls is 60, below the maximum of 110 calls: the run may stop"),
        ({"max_usd": 10000, "max_calls": 110}, ""),
        ({}, ""),
    ],
)
def test_a_budget_below_the_estimates_is_a_warning(
    in_folder: Path, prices: Path, capsys: pytest.CaptureFixture[str], budget: dict[str, float], expected: str
) -> None:
    status = command(["run", str(written(in_folder, budget=budget)), "--dry-run", "--prices", str(prices)])

    err = capsys.readouterr().err
    assert status == 0
    assert err.startswith(expected) if expected else err == ""


def test_a_budget_in_dollars_warns_of_an_unknown_price(in_folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    graders = {"judge": {"model": "openai:unheard-of"}}

    assert command(["run", str(written(in_folder, graders=graders, budget={"max_usd": 5})), "--dry-run"]) == 0

    assert "cannot be enforced: the price of openai:unheard-of is unknown" in capsys.readouterr().err


def test_the_table_shows_prices_with_their_date_and_what_a_model_is_sent_besides(
    in_folder: Path, prices: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    graders = {"judge": {"model": GRADER, "system": "Be strict.", "extra": {"reasoning_effort": "low", "seed": False}}}
    path = written(in_folder, graders=graders)

    command(["run", str(path), "--dry-run", "--wide", "--prices", str(prices)])
    shown = " ".join(capsys.readouterr().out.split())
    command(["run", str(path), "--dry-run", "--prices", str(prices), "--json"])
    student, grader = json.loads(capsys.readouterr().out)

    assert f'| {GRADER} (system "Be strict.", reasoning_effort "low", no seed) |' in shown
    assert (
        f"Price of {GRADER}: 1000 and 2000 US dollars per million input and output tokens (noted on {TODAY}; a letter)."
        in shown
    )
    assert (grader["role"], grader["system"], grader["extra"]["seed"]) == ("grader", "Be strict.", False)
    price = {"input": 1000.0, "output": 2000.0, "noted": TODAY, "source": "a letter", "batch": None}
    assert grader["price"] == price
    assert (student["system"], student["extra"], student["price"]["noted"]) == (None, {}, None)
    assert set(grader["expected"]) == {"calls", "input_tokens", "output_tokens", "cost_usd", "basis"}


def test_a_longer_system_text_costs_more(in_folder: Path, prices: Path) -> None:
    plain = dry_run(written(in_folder), prices=prices)[1]
    long = dry_run(written(in_folder), prices=prices, changes=[f"graders.judge.system={'word ' * 600}"])[1]

    assert (long.input_tokens or 0) - (plain.input_tokens or 0) >= 90 * 900
    assert long.expected is not None and plain.expected is not None
    assert long.expected.input_tokens - plain.expected.input_tokens >= 30 * 700


def test_every_shipped_price_has_its_date_and_its_source() -> None:
    prices = load_prices(None)

    assert prices
    assert all(price.noted and price.source for price in prices.values())


def test_the_short_table_marks_upper_and_lower_bounds_of_calls() -> None:
    step = CallEstimate("d", "scripted:student", 40, 0, 0, 0.0)

    head, _, least, most, _ = estimate_table([replace(step, is_lower_bound=True), step], wide=False).splitlines()

    assert "| max calls |" in head
    assert "≥ 40 |" in least and " 40 |" in most and "≥" not in most


def test_a_price_file_refuses_a_wrong_date(in_folder: Path) -> None:
    path = in_folder / "p.yaml"
    path.write_text("openai:x: {input: 1, output: 1, noted: yesterday}", encoding="utf-8")

    with pytest.raises(UserError, match="openai:x, noted: input should be a valid date"):
        load_prices(path)


def test_an_unknown_key_of_a_price_file_gets_the_nearest_key(in_folder: Path) -> None:
    path = in_folder / "p.yaml"
    path.write_text("openai:x: {input: 1, output: 1, sorce: here}", encoding="utf-8")

    with pytest.raises(UserError, match=r'sorce: there is no such key. Did you mean "source"\?'):
        load_prices(path)
