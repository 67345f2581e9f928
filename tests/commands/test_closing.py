"""The sentences about the differences between tuned students and their bases."""

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from skillmix.commands.run import run_cost
from skillmix.runs.run import open_run
from skillmix.scores.comparisons import Change, PairRow
from skillmix.scores.sentences import scored_run, shown_lines
from skillmix.steps.step_kind import RunResult
from tests.report.worlds import make_world


def change(student: str, k: int, mean: float, low: float, high: float, **more: Any) -> Change:
    verdict = "within noise" if low <= 0 <= high else "a gain" if mean > 0 else "a loss"
    row = PairRow("rules", "all", k, 0.05, 0.05 + mean, mean, low, high, 0.01, 0.02, 40, 30, 10, 0, 0, verdict, 2)
    return Change("r", student, "base", (1,), replace(row, **more))


ONE = change("self-taught", 1, 0.76, 0.60, 0.86)


def test_settings_and_graders_are_named_where_there_are_several() -> None:
    other = change("self-taught", 1, 0.1, -0.1, 0.3, setting="held-out", grader="gpt")

    first, second, _ = shown_lines([ONE, other], run="quick")

    assert first.startswith("With one skill (all, graded by rules): ")
    assert second.startswith("With one skill (held-out, graded by gpt): ")


def test_many_differences_are_cut_and_counted() -> None:
    changes = [change("self-taught", k, 0.1, -0.1, 0.2) for k in range(1, 21)]

    lines = shown_lines(changes, run="quick")

    assert len(lines) == 14
    assert lines[12] == "8 more differences: skillmix report quick"
    assert "With 11 skills" in "\n".join(shown_lines([changes[10]], run="quick"))


def test_lineage_decides_who_is_tuned(in_folder: Path) -> None:
    rates = {"base": "skill=0.1", "m1": "skill=0.95&topic=1&sense=1&length=1", "other": "skill=0.9"}
    make_world(in_folder, "world", rates, settings=["train"], k=[1], combinations=20, generations=1)
    scored = scored_run("world")

    lines = shown_lines(scored.changes, run="world")

    assert lines[0].startswith("With one skill: m1 .")
    assert lines[0].endswith(": a gain, p < .001.")
    assert len(lines) == 2
    assert "other" not in "\n".join(lines)


def test_the_cpu_time_of_a_run_counts_child_processes(in_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_world(in_folder, "world", {"base": "skill=0.5"}, settings=["all"], k=[1], combinations=1, generations=1)
    monkeypatch.setattr(os, "times", lambda: os.times_result((10.0, 2.0, 3000.0, 600.0, 5000.0)))

    assert "60 min of CPU time" in run_cost(RunResult(open_run("world")))
