"""One report over several runs: the same numbers under longer names, and findings pooled over seeds and partitions.

The second bootstrap draws indices, one resample after the other, with a generator of its own; ends are held to within
.04, which is what two sets of draws may differ by in tails as thin as these.
"""

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from skillmix.report.write import ReportOptions, report
from tests.report import second_way
from tests.report.conftest import inside
from tests.report.expected_data import CLAIMS, compared
from tests.report.expected_scores import Case, Row
from tests.report.expected_tables import expected
from tests.report.second_run import SecondRun, mean
from tests.report.test_numbers import assert_table
from tests.report.worlds import make_world

SEEDS = range(6)
RATES = {"base": "skill=0.5", "m123": "skill=0.8"}
PREFIXED = {
    "rounds": "grader",
    "unreadable": "grader",
    "graders-agreement": "graders",
    "graders-disagree-on": "criterion",
    "yield": "data set",
    "students-compared": "students",
}


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> list[SecondRun]:
    folder = tmp_path_factory.mktemp("seeds")
    more: dict[str, Any] = {"k": [1, 2, 4], "combinations": 8, "generations": 1, "settings": ["held-out"]}
    with inside(folder):
        made = [make_world(folder, f"seed-{seed}", RATES, seed=seed, **more) for seed in SEEDS]
        made += [make_world(folder, "other", RATES, seed=0, partition="tables", **more)]
    return [SecondRun(world.run) for world in made]


def tables_of(runs: list[SecondRun], folder: Path) -> Path:
    made = report([str(run.path) for run in runs], output=folder / "report", options=ReportOptions(figures=False))
    return made.page.parent / "tables"


def with_run(run: SecondRun, table: str) -> list[Row]:
    """A run's own rows, under the names that they have among others."""
    column = PREFIXED.get(table, "student")
    rows = [row | {column: f"{run.name}: {row[column]}"} for row in expected(Case(run), table)]
    if table == "lineage":
        rows = [row | {"data": f"{run.name}: {row['data']}"} for row in rows]
    return rows


def test_every_table_but_the_findings_holds_the_rows_of_each_run(runs: list[SecondRun], tmp_path: Path) -> None:
    chosen = [runs[0], runs[-1]]
    tables = tables_of(chosen, tmp_path)

    names = {file.stem for file in tables.glob("*.csv")} - {"findings"}
    assert {"scores-held-out", "before-and-after", "observed-and-independent", "unreadable", "lineage"} <= names
    for name in sorted(names):
        if name == "common-skills-removed":
            continue  # it takes one k for all runs; every number of it is worked out for one run
        rows = [row for run in chosen for row in with_run(run, name)]
        assert_table(pd.read_csv(tables / f"{name}.csv", dtype={"k": "Int64", "seed": "Int64"}), rows)


def differences(runs: list[SecondRun], claim: str, setting: str, k: int) -> list[list[list[float]]]:
    """By partition and seed."""
    nested: dict[str, list[list[float]]] = {}
    for run in runs:
        first, second = compared(run, claim) or ("", "")
        found = run.differences(first, second, run.graders[0], setting, k)
        nested.setdefault(run.models[second]["partition"], []).append(found)
    return list(nested.values())


def resampled(nested: list[list[list[float]]], draws: int = 8_000) -> list[float]:
    generator = np.random.default_rng(1)
    means = []
    for _ in range(draws):
        over_partitions = []
        for place in generator.integers(len(nested), size=len(nested)):
            seeds = nested[place]
            over_seeds = []
            for seed in generator.integers(len(seeds), size=len(seeds)):
                values = np.array(seeds[seed])
                over_seeds.append(values[generator.integers(len(values), size=len(values))].mean())
            over_partitions.append(np.mean(over_seeds))
        means.append(float(np.mean(over_partitions)))
    return means


def interval_and_p(means: list[float], units: int) -> tuple[float, float, float]:
    """Percentiles at tails widened for few units, and the level at which they would just reach 0."""
    wider = np.sqrt(units / (units - 1))
    tail = stats.norm.cdf(-wider * stats.t.ppf(0.975, units - 1))
    low, high = np.quantile(means, [tail, 1 - tail])
    beyond = min(np.mean(np.array(means) <= 0), np.mean(np.array(means) >= 0))
    p = 2 * stats.t.sf(-stats.norm.ppf(max(beyond, 0.5 / 10_000)) / wider, units - 1)
    return float(low), float(high), min(1.0, float(p))


@pytest.mark.parametrize("several", ["seeds", "partitions"])
def test_findings_are_pooled(runs: list[SecondRun], several: str, tmp_path: Path) -> None:
    chosen = runs[: len(SEEDS)] if several == "seeds" else runs
    printed = pd.read_csv(tables_of(chosen, tmp_path) / "findings.csv")

    assert set(printed["claim"]) == {"held-out", "larger k"} < set(CLAIMS)
    for row in printed.to_dict("records"):
        nested = differences(chosen, row["claim"], row["setting"], row["k"])
        assert row["difference"] == pytest.approx(mean(mean(map(mean, seeds)) for seeds in nested))
        assert row["combinations"] == sum(len(values) for seeds in nested for values in seeds)
        assert row["runs"] == sum(map(len, nested)) == len(chosen)
        assert row["partitions"] == len(nested)
        units = len(nested) if len(nested) > 1 else len(nested[0])
        low, high, p = interval_and_p(resampled(nested), units)
        # Of two partitions nothing is cut off: the ends are the most extreme of all draws, and those vary.
        most = 0.04 if several == "seeds" else 0.12
        assert (row["difference low"], row["difference high"]) == pytest.approx((low, high), abs=most)
        assert row["p"] == pytest.approx(p, abs=0.02)
    for _, group in printed.groupby("claim"):
        assert list(group["p, corrected"]) == pytest.approx(second_way.holm(list(group["p"])))
