"""Tables of scores, worked out a second time, row by row."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from itertools import combinations, product
from typing import Any

import numpy as np
from scipy import stats

from skillmix.catalog.combinations import is_reserved
from skillmix.catalog.files import load_catalog
from skillmix.checkers.template_student import TemplateStudent
from skillmix.runs.verdicts import judge_of
from tests.report import second_way
from tests.report.second_run import SecondRun, Where, mean

Row = dict[str, Any]
FIELDS = (
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
)
MAIN = ("full marks", "skill fraction")
ALL = ("full marks", "all skills", "skill fraction")
"""Labels of the metrics in the order of METRICS; second_way.py computes each."""


@dataclass
class Case:
    """A report over one run, as it was asked for."""

    run: SecondRun
    by_rules: dict[str, SecondRun] = field(default_factory=dict)
    """The run under several rules, where they stand side by side."""
    tokens: float = 2e12
    shown_by_code: Callable[[Any], tuple[list[str], list[str]]] | None = None
    """Skills that code finds in a text's row: those asked for, and others."""
    woven_by_code: Callable[[Any], bool] | None = None
    """Whether code finds every skill of a text's row about the topic."""
    masked_by_code: Callable[[Any], dict[str, str]] | None = None
    """The words that show each skill of a text's row, with the words of the topic as underscores."""


def score(run: SecondRun, where: Where, metric: str, heading: str, only: Any = None) -> Row:
    found = run.summary(where, metric, only)
    return {f"{heading} {field}": found.get(field, float("nan")) for field in FIELDS}


def scores(case: Case, setting: str, metrics: Iterable[str]) -> list[Row]:
    from tests.report.expected_graders import texts_that_follow_an_example

    run = case.run
    following = {
        where: row["follow"] for where, row in zip(run.places, texts_that_follow_an_example(case), strict=True)
    }
    rows = []
    for student in run.students:
        for grader in run.graders:
            row: Row = {"student": student}
            row |= {"trained on": run.trained_on(student)} if run.models else {}
            row |= {"grader": grader} if len(run.graders) > 1 else {}
            for k in run.ks:
                where = (student, grader, setting, k)
                for metric in metrics:
                    row |= score(run, where, metric, f"k = {k}, {metric}")
                row |= {f"k = {k}, woven full marks{name}": value for name, value in _woven(case, where)}
                row[f"k = {k}, format valid"] = run.format_valid(where)
                names = ("", " low", " high")
                ends = zip(names, run.among_valid(where), strict=True)
                row |= {f"k = {k}, full marks among valid{name}": value for name, value in ends}
                row[f"k = {k}, cut"] = run.cut(where)
                row[f"k = {k}, follows an example"] = following[where]
            rows.append(row)
    return rows


def _woven(case: Case, where: Where) -> list[tuple[str, float]]:
    """Full marks with every skill about the topic; nothing is known where no code decides."""
    if case.woven_by_code is None:
        return [("", float("nan"))]
    texts = case.run.cell(where)
    points = [
        [*text.points, case.woven_by_code(text)] if all(text.points) else text.points for text in texts.itertuples()
    ]
    ids = [c.id for c in case.run.drawn[where[2:]]]
    found = second_way.summary(
        texts.assign(points=points), "full marks", combinations=ids, generations=case.run.generations
    )
    return [("", found["value"]), (" low", found["low"]), (" high", found["high"])]


def template_baseline(case: Case) -> list[Row]:
    """The clauses of the catalog, joined by the student itself; judged again."""
    run, catalog = case.run, load_catalog("verifiable")
    judge = judge_of(catalog)
    student = TemplateStudent(catalog.templates, judge)
    rows = []
    for setting in run.settings:
        for k in run.ks:
            drawn = run.drawn[setting, k]
            row: Row = {"student": "template baseline", "setting": setting, "k": k, "combinations": len(drawn)}
            for form, heading in (("fixed", "topic named once"), ("slot", "topic named in every clause")):
                full, woven = [], []
                for c in drawn:
                    written = student.write(c.skills, c.topic, form)  # type: ignore[arg-type]
                    assert written is not None
                    verdict = judge.judge(written.text, skills=c.skills, topic=c.topic)
                    shown = all(verdict.evidence.values()) and verdict.topic is not None and verdict.nonsense is None
                    full.append(shown)
                    woven.append(shown and all(verdict.woven.values()))
                row |= {f"{heading}, full marks": mean(full), f"{heading}, woven full marks": mean(woven)}
            rows.append(row)
    return rows


def students_compared(case: Case) -> list[Row]:
    """Every pair of the at most five students of these runs."""
    return [row for pair in combinations(case.run.students, 2) for row in pair_rows(case.run, *pair)]


def pair_rows(run: SecondRun, first: str, second: str) -> list[Row]:
    """Two students by grader, setting and k, with p-values corrected for each grader."""
    rows: list[Row] = []
    for grader in run.graders:
        family = []
        for setting, k in product(run.settings, run.ks):
            differences = run.differences(first, second, grader, setting, k)
            if differences:
                head = {"students": f"{second} − {first}", "grader": grader, "setting": setting, "k": k}
                family.append(head | _compared(differences))
        second_way.family_p(family)
        rows += [row | {"verdict": second_way.verdict(row)} for row in family]
    return rows


def _compared(differences: list[float]) -> Row:
    low, high = second_way.difference_interval(differences)
    up, down = sum(d > 0 for d in differences), sum(d < 0 for d in differences)
    p = stats.binomtest(up, up + down).pvalue if up + down else 1.0
    return {
        "difference": mean(differences),
        "difference low": low,
        "difference high": high,
        "p": p,
        "p, corrected": p,
        "verdict": None,
        "wins": up,
        "ties": len(differences) - up - down,
        "losses": down,
        "combinations": len(differences),
        "still needed": still_needed(differences),
    }


def still_needed(differences: list[float]) -> float:
    """Pairs of a t test with 80% power at the observed difference, less those that there are; NaN if unknown."""
    n, effect = len(differences), abs(mean(differences))
    if n < 2 or effect < 1e-12:
        return float("nan")
    spread = float(np.std(differences, ddof=1))
    needed = float(np.ceil(((stats.norm.ppf(0.975) + stats.norm.ppf(0.8)) * spread / effect) ** 2))
    needed = max(6.0, needed)
    for _ in range(3):
        quantiles = stats.t.ppf(0.975, needed - 1) + stats.t.ppf(0.8, needed - 1)
        needed = max(6.0, float(np.ceil((quantiles * spread / effect) ** 2)))
    return max(0.0, needed - n)


def before_and_after(case: Case) -> list[Row]:
    run = case.run
    rows = []
    for student, grader, setting, k in run.places:
        if student not in run.models:
            continue
        base = run.base_of(student)
        pair = pair_rows(run, base, student)
        found = [row for row in pair if (row["grader"], row["setting"], row["k"]) == (grader, setting, k)]
        if not found:
            continue
        (row,) = found
        low, high, remark = row["difference low"], row["difference high"], row["verdict"]
        value, value_low, value_high, role = _format(run, base, (student, grader, setting, k), remark)
        rows.append(
            {
                "student": student,
                "trained on": run.trained_on(student),
                "base": base,
                "grader": grader,
                "setting": setting,
                "k": k,
                "difference": row["difference"],
                "difference low": low,
                "difference high": high,
                "p, corrected": row["p, corrected"],
                "combinations": row["combinations"],
                "remark": remark,
                "difference among valid": value,
                "difference among valid low": value_low,
                "difference among valid high": value_high,
                "format": role,
            }
        )
    return rows


def _format(run: SecondRun, base: str, where: Where, remark: str) -> tuple[float, float, float, str]:
    """Full marks among valid texts, second minus first, and what format has to do with the difference."""
    before = (base, *where[1:])
    clusters = [run.valid_clusters(w) for w in (before, where)]
    forms = [run.format_clusters(w) for w in (before, where)]
    names = sorted({c.id for c in run.drawn[where[2:]]})
    value, low, high = float("nan"), float("nan"), float("nan")
    few = [number for number in (0, 1) if len(clusters[number]) < second_way.FEWEST]
    if not few:
        nothing = (0.0, 0)
        pairs = [(*clusters[0].get(c, nothing), *clusters[1].get(c, nothing)) for c in names]
        value, low, high = second_way.ratio_difference(pairs)
    _, shape_low, shape_high = second_way.ratio_difference(
        [(*forms[0].get(c, (0.0, 0)), *forms[1].get(c, (0.0, 0))) for c in names]
    )
    is_shaped = (remark == "a gain" and shape_low > 0) or (remark == "a loss" and shape_high < 0)
    if not is_shaped:
        return value, low, high, "–"
    if few:
        each = [
            f"{(base, where[0])[n]} has {sum(t for _, t in clusters[n].values())} texts with a valid format, of "
            f"{sum(t for _, t in forms[n].values())}"
            for n in few
        ]
        return value, low, high, f"skill cannot be compared: {' and '.join(each)}".replace(" 1 texts", " 1 text")
    return value, low, high, "format explains it" if low <= 0 <= high else "–"


def seen_and_reserved(case: Case) -> list[Row]:
    run = case.run
    rows = []
    for student, grader, setting, k in run.places:
        kept_back = _kept_back(run, student, setting, k) if k >= 2 else set()
        if 0 < len(kept_back) < len(run.drawn[setting, k]):
            row: Row = {"student": student, "grader": grader, "setting": setting, "k": k}
            for name, is_back in (("seen", False), ("kept back", True)):
                for metric in MAIN:
                    only = lambda c, b=is_back, kept=kept_back: (c.id in kept) == b  # noqa: E731
                    row |= score(run, (student, grader, setting, k), metric, f"{name}, {metric}", only)
            rows.append(row)
    return rows


def _kept_back(run: SecondRun, student: str, setting: str, k: int) -> set[str]:
    """Combinations whose sets of skills no training data hold."""
    share = run.document["leakage"]["reserved"]
    if share and any(step["stage"] in ("dataset", "train") for step in run.document["steps"]):
        return {c.id for c in run.drawn[setting, k] if setting == "train" and is_reserved(c.skills, share)}
    if student not in run.models:
        return set()
    sets = run.skill_sets(student)
    return {c.id for c in run.drawn[setting, k] if frozenset(c.skills) not in sets}


def data_efficiency(case: Case) -> list[Row]:
    run = case.run
    setting = "all" if "all" in run.settings else run.settings[0]
    rows = []
    for student in run.models:
        row = {"student": student, "trained on": run.trained_on(student), "conversations": run.rows_of(student)}
        for k in (k for k in run.ks if k >= 2):
            for metric in MAIN:
                row |= score(run, (student, run.graders[0], setting, k), metric, f"k = {k}, {metric}")
        rows.append(row)
    return rows


def graders_side_by_side(case: Case) -> list[Row]:
    run = case.run
    rows = []
    for student in run.students:
        for setting in run.settings:
            for grader in run.graders:
                row: Row = {"student": student, "setting": setting, "grader": grader}
                for k in run.ks:
                    for metric in MAIN:
                        row |= score(run, (student, grader, setting, k), metric, f"k = {k}, {metric}")
                rows.append(row)
    return rows


def common_skills_removed(case: Case) -> list[Row]:
    run = case.run
    k = 5 if 5 in run.ks else max(run.ks)
    common = set() if run.document["exclude"] else set(run.catalog.exclude["common"])
    settings = [s for s in run.settings if any(not common & set(c.skills) for c in run.drawn[s, k])]
    rows = []
    for student in run.students:
        for grader in run.graders:
            row: Row = {"student": student, "grader": grader}
            for setting in settings:
                for metric in MAIN:
                    only = lambda c: not common & set(c.skills)  # noqa: E731
                    row |= score(run, (student, grader, setting, k), metric, f"{setting}, {metric}", only)
            rows.append(row)
    return rows


def rules_side_by_side(case: Case) -> list[Row]:
    (first, one), (second, other) = case.by_rules.items()
    rows = []
    for student, grader, setting, k in case.run.places:
        where = (student, grader, setting, k)
        row: Row = {"student": student, "grader": grader, "setting": setting, "k": k}
        row |= score(one, where, "full marks", first) | score(other, where, "full marks", second)
        row["difference"] = row[f"{second} value"] - row[f"{first} value"]
        rows.append(row)
    return rows
