"""Every number in the tables of a report, worked out a second time."""

from itertools import pairwise
from pathlib import Path
from typing import Any

import krippendorff
import numpy as np
import pandas as pd
import pytest
from scipy import stats
from sklearn.metrics import cohen_kappa_score

from skillmix.config.catalogs import load_catalog
from skillmix.core.combinations import Draw, draw_combinations
from tests.report import second_way
from tests.report.conftest import every_other_set
from tests.report.second_way import Frame
from tests.report.worlds import DATA, ROWS, World

ROUNDS = {"judge": 3, "strict": 1}
KS = [1, 2, 3, 5]
SETTINGS = ["train", "held-out", "all"]
STUDENTS = ["base", "m1", "m12", "m123"]
FIELDS = [
    "value",
    "low",
    "high",
    "one_try",
    "one_try_low",
    "one_try_high",
    "complete",
    "combinations",
    "ungraded",
    "format_failures",
]


@pytest.fixture(scope="module")
def drawn() -> dict[tuple[str, int], list[Any]]:
    """The combinations of each setting and k; drawing is tested elsewhere, against a golden file."""
    catalog = load_catalog("paper")
    return {
        (s, k): draw_combinations(Draw(catalog.pool(s, partition="category"), s, k, 0), 8)  # type: ignore[arg-type]
        for s in SETTINGS
        for k in KS
    }


@pytest.fixture(scope="module")
def votes(world: World) -> Frame:
    return second_way.votes_of(second_way.calls_of(world.run))


@pytest.fixture(scope="module")
def graded(world: World, votes: Frame) -> Frame:
    return second_way.decided(second_way.texts_of(second_way.calls_of(world.run)), votes, ROUNDS)


def cell(graded: Frame, student: str, grader: str, combinations: list[Any]) -> Frame:
    ids = [c.id for c in combinations]
    return graded[graded["student"].eq(student) & graded["grader"].eq(grader) & graded["combination"].isin(ids)]


def table(folder: Path, name: str) -> Frame:
    return pd.read_csv(folder / "tables" / f"{name}.csv", dtype={"student": "str", "k": "Int64"})


def assert_score(row: Any, heading: str, expected: dict[str, float], where: object) -> None:
    for field in FIELDS:
        found = row[f"{heading} {field}".strip()]
        # Ends of bootstraps stand on t quantiles, which the package takes from a series good to 0.2 %.
        is_bootstrap = field.startswith("one_try_") or ("fraction" in heading and field in ("low", "high"))
        if field in expected:
            assert found == pytest.approx(expected[field], abs=0.02 if is_bootstrap else 1e-9), (where, field)
        else:
            assert pd.isna(found), (where, field)


@pytest.mark.parametrize("setting", SETTINGS)
@pytest.mark.parametrize(("suffix", "metrics"), [("", 2), ("-three-metrics", 3)])
def test_scores(folder: Path, graded: Frame, drawn: dict[Any, Any], setting: str, suffix: str, metrics: int) -> None:
    names = ["full marks", "skill fraction"] if metrics == 2 else ["full marks", "all skills", "skill fraction"]
    printed = table(folder, f"scores-{setting}{suffix}")

    assert len(printed) == len(STUDENTS) * len(ROUNDS)
    for _, row in printed.iterrows():
        for k in KS:
            chosen = drawn[setting, k]
            texts = cell(graded, row["student"], row["grader"], chosen)
            for metric in names:
                expected = second_way.summary(texts, metric, combinations=[c.id for c in chosen], generations=2)
                assert_score(row, f"k = {k}, {metric}", expected, (row["student"], row["grader"], k, metric))


def test_something_is_ungraded_and_something_has_no_form(graded: Frame) -> None:
    assert {"fine", "no marker", "empty", "refused"} == set(graded["form"])
    assert any(None in points for points in graded["points"])


def test_graders_side_by_side(folder: Path, graded: Frame, drawn: dict[Any, Any]) -> None:
    printed = table(folder, "graders-side-by-side")

    assert len(printed) == len(STUDENTS) * len(ROUNDS) * len(SETTINGS)
    for _, row in printed.iterrows():
        for k in KS:
            chosen = drawn[row["setting"], k]
            texts = cell(graded, row["student"], row["grader"], chosen)
            expected = second_way.summary(texts, "full marks", combinations=[c.id for c in chosen], generations=2)
            assert_score(row, f"k = {k}, full marks", expected, tuple(row[:3]))


def test_data_efficiency(folder: Path, graded: Frame, drawn: dict[Any, Any]) -> None:
    printed = table(folder, "data-efficiency")

    assert {row["student"]: row["conversations"] for _, row in printed.iterrows()} == {
        student: sum(ROWS[d] for d in data) for student, data in DATA.items()
    }
    for _, row in printed.iterrows():
        chosen = drawn["all", 3]
        texts = cell(graded, row["student"], "judge", chosen)
        expected = second_way.summary(texts, "skill fraction", combinations=[c.id for c in chosen], generations=2)
        assert_score(row, "k = 3, skill fraction", expected, row["student"])


def test_common_skills_removed(folder: Path, graded: Frame, drawn: dict[Any, Any]) -> None:
    common = set(load_catalog("paper").exclude["common"])
    printed = table(folder, "common-skills-removed")

    for _, row in printed.iterrows():
        for setting in SETTINGS:
            chosen = [c for c in drawn[setting, 5] if not common & set(c.skills)]
            if f"{setting}, full marks value" not in printed.columns:
                assert not chosen
                continue
            texts = cell(graded, row["student"], row["grader"], chosen)
            expected = second_way.summary(texts, "full marks", combinations=[c.id for c in chosen], generations=2)
            assert_score(row, f"{setting}, full marks", expected, tuple(row[:2]))


def test_why_full_marks_were_missed(folder: Path, graded: Frame, drawn: dict[Any, Any]) -> None:
    printed = table(folder, "why-full-marks-were-missed").set_index(["student", "grader", "k"])

    for student in STUDENTS:
        for grader in ROUNDS:
            for k in KS:
                texts = pd.concat([cell(graded, student, grader, drawn[s, k]) for s in SETTINGS])
                reasons = pd.Series([_reason(p, f) for p, f in zip(texts["points"], texts["form"], strict=True)])
                row = printed.loc[student, grader, k]
                assert row["texts"] == len(texts)
                for reason in ("full marks", "format", "refused", "skills", "others", "both", "undecided"):
                    assert row[reason] == (reasons == reason).sum(), (student, grader, k, reason)
                assert row["not there"] == 3 * 8 * 2 - len(texts)


def _reason(points: list[bool | None], form: str) -> str:
    if all(points):
        return "full marks"
    if form == "refused":
        return "refused"
    if form != "fine":
        return "format"
    skills, others = False in points[:-3], False in points[-3:]
    return {(True, True): "both", (True, False): "skills", (False, True): "others", (False, False): "undecided"}[
        skills, others
    ]


def test_observed_and_independent(folder: Path, graded: Frame, drawn: dict[Any, Any]) -> None:
    printed = table(folder, "observed-and-independent")

    for _, row in printed.iterrows():
        texts = cell(graded, row["student"], row["grader"], drawn[row["setting"], row["k"]])
        texts = texts[[None not in points for points in texts["points"]]]
        long = pd.DataFrame(
            [
                {"skill": s, "shown": p}
                for points, skills in zip(texts["points"], texts["skills"], strict=True)
                for s, p in zip(skills, points, strict=False)
            ]
        )
        rates = long.groupby("skill")["shown"].mean()
        others = np.mean([all(p[-3:]) for p in texts["points"]])
        expected = others * np.mean([np.prod([rates[s] for s in skills]) for skills in texts["skills"]])
        assert row["texts"] == len(texts)
        assert row["observed"] == pytest.approx(np.mean([all(p) for p in texts["points"]]))
        assert row["expected, same k"] == pytest.approx(expected)


def test_rounds_and_unreadable_replies(folder: Path, votes: Frame) -> None:
    readable = (
        votes[votes["points"].notna()]
        .groupby(["student", "combination", "generation", "grader", "round"], as_index=False)
        .first()
    )
    units: dict[str, list[list[float]]] = {"skill": [], "topic": [], "sense": []}
    for _, group in readable[readable["grader"] == "judge"].groupby(["student", "combination", "generation"]):
        k = int(group["k"].iloc[0])
        for place in range(k + 2 if len(group) > 1 else 0):
            units["skill" if place < k else ("topic" if place == k else "sense")].append(
                [p[place] for p in group["points"]]
            )
    printed = table(folder, "rounds").set_index("criterion")
    for kind, found in units.items():
        pairs = [(a, b) for unit in found for i, a in enumerate(unit) for b in unit[i + 1 :]]
        ratings = np.array([unit + [np.nan] * (3 - len(unit)) for unit in found]).T
        assert printed.loc[kind, "criteria of texts"] == len(found)
        assert printed.loc[kind, "flips"] == pytest.approx(np.mean([a != b for a, b in pairs]))
        alpha = krippendorff.alpha(ratings, level_of_measurement="nominal", value_domain=[0, 1])
        assert printed.loc[kind, "alpha"] == pytest.approx(alpha)
    unreadable = table(folder, "unreadable").set_index("grader")
    for grader, group in votes.groupby("grader"):
        assert unreadable.loc[grader, "calls"] == len(group)
        assert unreadable.loc[grader, "unreadable"] == group["points"].isna().sum()
        assert unreadable.loc[grader, "share of replies"] == pytest.approx(group["points"].isna().mean())


def test_agreement_between_graders(folder: Path, graded: Frame) -> None:
    shown = graded[graded["text"] != ""].pivot(
        index=["student", "combination", "generation", "k"], columns="grader", values="points"
    )
    pairs: dict[str, list[tuple[bool, bool]]] = {"skill": [], "topic": [], "sense": []}
    for (_, _, _, k), row in shown.iterrows():
        for place, (a, b) in enumerate(zip(row["judge"][:-1], row["strict"][:-1], strict=True)):
            if a is not None and b is not None:
                pairs["skill" if place < k else ("topic" if place == k else "sense")].append((a, b))
    printed = table(folder, "graders-agreement").set_index("criterion")
    for kind, found in pairs.items():
        first, second = zip(*found, strict=True)
        assert printed.loc[kind, "criteria of texts"] == len(found)
        assert printed.loc[kind, "agree"] == pytest.approx(np.mean(np.array(first) == np.array(second)))
        assert printed.loc[kind, "kappa"] == pytest.approx(cohen_kappa_score(first, second))
        assert printed.loc[kind, "first gives"] == pytest.approx(np.mean(first))
        assert printed.loc[kind, "second gives"] == pytest.approx(np.mean(second))


def test_findings_are_paired_differences(folder: Path, graded: Frame, drawn: dict[Any, Any]) -> None:
    printed = table(folder, "findings")

    assert set(printed["claim"]) == {"held-out", "larger k", "efficiency", "control"}
    for _, row in printed.iterrows():
        second, first = row["students"].split(" − ")
        chosen = drawn[row["setting"], row["k"]]
        best = {}
        for student in (first, second):
            texts = cell(graded, student, row["grader"], chosen)
            scored = texts.assign(score=[second_way.metric_of(p, "full marks") for p in texts["points"]]).groupby(
                "combination"
            )["score"]
            best[student] = scored.agg(lambda s: s.max() if len(s) == 2 and s.notna().all() else np.nan).dropna()
        differences = (best[second] - best[first]).dropna()
        assert row["combinations"] == len(differences)
        assert row["difference"] == pytest.approx(differences.mean())
        moved = int((differences != 0).sum())
        exact = stats.binomtest(int((differences > 0).sum()), moved).pvalue if moved else 1.0
        assert row["p"] == pytest.approx(exact)
    for (_, _), group in printed.groupby(["claim", "grader"]):
        ordered = group.sort_values("p")
        steps = [min(1.0, (len(group) - i) * p) for i, p in enumerate(ordered["p"])]
        assert list(ordered["p, corrected"]) == pytest.approx(list(np.maximum.accumulate(steps)))
        assert all(a <= b for a, b in pairwise(ordered["p, corrected"]))


def test_yield_and_rules_side_by_side(folder: Path, graded: Frame, drawn: dict[Any, Any]) -> None:
    yields = table(folder, "yield")
    assert list(yields["share"]) == pytest.approx(list(yields["full marks"] / yields["written"]))
    rules = table(folder, "rules-side-by-side")
    for _, row in rules.iterrows():
        chosen = drawn[row["setting"], row["k"]]
        texts = cell(graded, row["student"], row["grader"], chosen)
        expected = second_way.summary(texts, "full marks", combinations=[c.id for c in chosen], generations=2)
        # Scripted sentences are plain: both counters agree on them.
        for name in ("default", "paper"):
            assert_score(row, name, expected, tuple(row[:4]))
        assert pd.isna(row["difference"]) or row["difference"] == 0


def test_seen_and_reserved_skill_sets(folder: Path, world: World, graded: Frame, drawn: dict[Any, Any]) -> None:
    sets = {frozenset(skills) for skills in every_other_set(world)}
    printed = table(folder, "seen-and-reserved")

    assert set(printed["student"]) == {"m123"}
    for _, row in printed.iterrows():
        for name, is_seen in (("seen", True), ("kept back", False)):
            chosen = [c for c in drawn[row["setting"], row["k"]] if (frozenset(c.skills) in sets) == is_seen]
            texts = cell(graded, "m123", row["grader"], chosen)
            expected = second_way.summary(texts, "full marks", combinations=[c.id for c in chosen], generations=2)
            assert_score(row, f"{name}, full marks", expected, tuple(row[:4]))


def test_points_by_criterion(folder: Path, graded: Frame, drawn: dict[Any, Any]) -> None:
    for _, row in table(folder, "points-by-criterion").iterrows():
        texts = pd.concat([cell(graded, row["student"], row["grader"], drawn[s, row["k"]]) for s in SETTINGS])
        columns = {"a skill": slice(0, -3), "topic": slice(-3, -2), "sense": slice(-2, -1), "length": slice(-1, None)}
        assert row["texts"] == len(texts)
        for name, places in columns.items():
            known = [p for points in texts["points"] for p in points[places] if p is not None]
            assert row[name] == pytest.approx(np.mean(known)), name
