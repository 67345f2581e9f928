"""One report over several runs: the same numbers under longer names, and findings pooled over seeds and partitions.

The analysis of variance behind pooled intervals is worked out again with pandas, from a long table of differences.
"""

import json
import shutil
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from skillmix.report.records import ReportOptions
from skillmix.report.write import report
from tests.report import second_way
from tests.report.conftest import inside
from tests.report.expected_data import CLAIMS, compared
from tests.report.expected_scores import Case, Row
from tests.report.expected_tables import expected
from tests.report.second_run import SecondRun
from tests.report.test_numbers import assert_table
from tests.report.worlds import make_world
from tests.stored_experiments import change_experiment

SEEDS = range(6)
RATES = {"base": "skill=0.5", "m123": "skill=0.8"}
PREFIXED = {
    "rounds": "grader",
    "unreadable": "grader",
    "graders-agreement": "graders",
    "graders-disagree-on": "criterion",
    "yield": "data set",
    "students-compared": "students",
    "calls-and-cost": "name",
}


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> list[SecondRun]:
    folder = tmp_path_factory.mktemp("seeds")
    more: dict[str, Any] = {"k": [1, 2, 4], "combinations": 10, "generations": 1, "settings": ["held-out"]}
    with inside(folder):
        made = [make_world(folder, f"seed-{seed}", RATES, seed=seed, **more) for seed in SEEDS]
        made += [make_world(folder, "other", RATES, seed=0, partition="tables", **more)]
        made += [make_world(folder, f"trained-{seed}", RATES, training_seed=seed, **more) for seed in (1, 2)]
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
    chosen = [runs[0], runs[len(SEEDS)]]
    tables = tables_of(chosen, tmp_path)

    names = {file.stem for file in tables.glob("*.csv")} - {"findings"}
    assert {"scores-held-out", "before-and-after", "observed-and-independent", "unreadable", "lineage"} <= names
    for name in sorted(names):
        if name == "common-skills-removed":
            continue  # it takes one k for all runs; every number of it is worked out for one run
        if name in ("skills", "where-the-time-went"):
            continue  # they have a row for each skill of all runs, and a row for the sum over all runs
        rows = [row for run in chosen for row in with_run(run, name)]
        assert_table(pd.read_csv(tables / f"{name}.csv", dtype={"k": "Int64", "seed": "Int64"}), rows)


def differences(runs: list[SecondRun], claim: str, setting: str, k: int) -> Any:
    """A row for each run and combination: partition, training seed, combination, difference."""
    rows = []
    for run in runs:
        ((first, second),) = compared(run, claim)
        told = run.models[second]
        found = run.differences_by_id(first, second, run.graders[0], setting, k)
        rows += [(told["partition"], told["seed"], c, d) for c, d in found.items()]
    return pd.DataFrame(rows, columns=["partition", "seed", "combination", "d"])


Estimate = tuple[float, float, float]
"""Mean, standard error and degrees of freedom."""


def few_units(mean: float, variances: tuple[float, float, float], units: int, combinations: int) -> Estimate:
    """The rule of docs/report.md for a few seeds or partitions: variances between and within units, and of shared
    combinations."""
    between, within, crossed = variances
    if units == 2:
        ratio = stats.t.ppf(0.975, combinations - 1) / stats.t.ppf(0.975, 1)
        return mean, np.sqrt((between + ratio**2 * (within + max(0.0, crossed))) / 2), 1.0
    agree = between <= 0.7 * within
    of_units = 0.85 * within if agree else between
    degrees = (units - 1) * (combinations if agree else 1 + 0.75 * min(1.0, within / between))
    parts = of_units**2 / degrees + (crossed + within) ** 2 / (combinations - 1)
    parts += within**2 / ((units - 1) * (combinations - 1))
    total = of_units + max(crossed, -within / 2)
    return mean, np.sqrt(total / units), max(1.0, total**2 / parts)


def over_partitions(frame: Any) -> Estimate:
    """Each partition counts with the mean of its seeds, which have combinations of their own or one seed."""
    means = frame.groupby(["partition", "seed"])["d"].mean().groupby("partition").mean()
    within = (frame.groupby("partition")["d"].var() / frame.groupby("partition")["d"].size()).mean()
    combinations = frame.groupby("partition")["combination"].nunique().min()
    return few_units(means.mean(), (means.var(), within, 0.0), len(means), combinations)


def over_other_combinations(frame: Any) -> Estimate:
    """One-way analysis of variance: each seed has combinations of its own."""
    seeds = frame.groupby("seed")["d"]
    smallest = seeds.size().min()
    variances = seeds.mean().var(), seeds.var().mean() / smallest, 0.0
    return few_units(seeds.mean().mean(), variances, seeds.ngroups, smallest)


def over_shared_combinations(frame: Any) -> Estimate:
    """Two-way analysis of variance with both factors random, from sums of squares."""
    s, c, grand = frame["seed"].nunique(), frame["combination"].nunique(), frame["d"].mean()
    square = {f: ((frame.groupby(f)["d"].transform("mean") - grand) ** 2).sum() for f in ("seed", "combination")}
    rest = (((frame["d"] - grand) ** 2).sum() - sum(square.values())) / ((s - 1) * (c - 1))
    by_seed, by_combination = square["seed"] / (s - 1), square["combination"] / (c - 1)
    return few_units(grand, (by_seed / c, rest / c, (by_combination - rest) / c), s, c)


SEVERAL = {
    "other combinations": (over_other_combinations, [*SEEDS]),
    "partitions": (over_partitions, [*SEEDS, len(SEEDS)]),
    "shared combinations": (over_shared_combinations, [0, -2, -1]),
}


def copied(run: SecondRun, name: str) -> Path:
    """The run's folder under another name."""
    folder = run.path.parent / name
    shutil.copytree(run.path, folder)
    return folder


def findings_of(runs: list[Path], folder: Path) -> tuple[Any, str]:
    """The table of findings and the page."""
    made = report(list(map(str, runs)), output=folder, options=ReportOptions(figures=False))
    return pd.read_csv(folder / "tables" / "findings.csv"), made.page.read_text(encoding="utf-8")


def test_a_copied_run_counts_once_and_the_page_says_so(runs: list[SecondRun], tmp_path: Path) -> None:
    copy = copied(runs[0], "copied")

    alone, page = findings_of([runs[0].path], tmp_path / "one")
    both, page_of_both = findings_of([runs[0].path, copy], tmp_path / "two")

    pd.testing.assert_frame_equal(both, alone)
    assert "under another name" not in page
    assert "copied holds the scores of another run in this report under another name" in page_of_both


@pytest.mark.parametrize("changed", ["recipe", "data", "grader", "catalog", "prompts"])
def test_runs_that_differ_in_more_than_the_seed_are_not_pooled(
    runs: list[SecondRun], changed: str, tmp_path: Path
) -> None:
    copy = copied(runs[-1], f"other-{changed}")
    model = copy / "m123" / "model" / "skillmix.json"
    told = json.loads(model.read_text(encoding="utf-8"))
    if changed == "recipe":
        told["recipe"]["learning_rate"] = 1e-3
    elif changed == "data":
        told["dataset"][0]["hash"] = "another"
    model.write_text(json.dumps(told), encoding="utf-8")

    def change(settings: dict[str, Any]) -> None:
        settings["students"]["m123"]["model"] = f"local:{model.parent}"
        if changed == "grader":
            settings["graders"]["judge"]["temperature"] = 0.1
        elif changed in ("catalog", "prompts"):
            settings[f"{changed}_hash"] = "another"

    change_experiment(copy, change)

    same, _ = findings_of([runs[0].path, runs[-1].path], tmp_path / "same")
    other, _ = findings_of([runs[0].path, copy], tmp_path / "other")

    assert set(same["runs"]) == {2}
    assert set(other["runs"]) == {1}


@pytest.mark.parametrize("several", SEVERAL)
def test_findings_are_pooled(runs: list[SecondRun], several: str, tmp_path: Path) -> None:
    method, which = SEVERAL[several]
    chosen = [runs[number] for number in which]
    printed = pd.read_csv(tables_of(chosen, tmp_path) / "findings.csv")

    assert set(printed["claim"]) == {"held-out", "larger k"} < set(CLAIMS)
    for row in printed.to_dict("records"):
        frame = differences(chosen, row["claim"], row["setting"], row["k"])
        mean, error, degrees = method(frame)
        low, high = np.clip(stats.t.interval(0.95, degrees, mean, error), -1, 1)
        if several == "partitions":
            low, high = np.nan, np.nan  # there are two
        numbers = row["difference"], row["difference low"], row["difference high"], row["p"]
        assert numbers == pytest.approx((mean, low, high, 2 * stats.t.sf(abs(mean) / error, degrees)), nan_ok=True)
        assert row["combinations"] == len(frame.drop_duplicates(["partition", "combination"]))
        assert (row["runs"], row["partitions"]) == (len(chosen), frame["partition"].nunique())
    places = list(product(chosen[0].settings, chosen[0].ks))
    p_values = []
    for setting, k in places:
        mean, error, degrees = method(differences(chosen, "held-out", setting, k))
        p_values.append(2 * stats.t.sf(abs(mean) / error, degrees))
    corrected = dict(zip(places, second_way.holm(p_values), strict=True))
    for row in printed.to_dict("records"):
        assert row["p, corrected"] == pytest.approx(corrected[row["setting"], row["k"]])
