"""Estimates for `--dry-run`: the paper's recipes, and sums."""

from pathlib import Path

import pytest

from skillmix.steps.estimates import CallEstimate, estimate_table
from skillmix.steps.run import dry_run

EXPERIMENTS = Path(__file__).parents[2] / "experiments"


@pytest.mark.parametrize("name", ["paper-llama2-13b", "paper-mistral-7b"])
def test_the_papers_recipes_tell_calls_tokens_cost_and_gpu_hours(name: str) -> None:
    found = dry_run(EXPERIMENTS / f"{name}.yaml", prices=None)

    by_step = {(e.step, e.model): e for e in found}
    assert {step for step, _ in by_step} >= {"d1, at least", "d3, at most", "m1", "m12", "m123", "eval"}
    assert by_step["m123", "base"].input_tokens == 4000 * 64 * (1024 + 256)
    assert 6 < (by_step["m123", "base"].gpu_hours or 0) < 14
    assert all(e.cost_usd is not None and e.gpu_hours is not None for e in found)
    assert sum(e.calls for e in found if e.step == "d1, at most") == 5000 * (2 + 3)
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
    assert last[1:-1] == ["all", "", "5", "unknown", "20", "1.50", "unknown"]
