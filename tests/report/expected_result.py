"""The first screen, worked out a second time: which comparison leads, and every number of its sentence."""

import html
import re
from pathlib import Path
from typing import Any

import pytest

from skillmix.report.main_result import CLAIM_TITLES
from tests.report.expected_data import findings
from tests.report.expected_scores import Case, Row, students_compared
from tests.report.second_run import mean

ENDS = 0.031
"""Ends of bootstraps may differ by .02 between the two computations, and the page rounds to whole percentages."""
RATES = r"(?P<second>\d+) % of combinations (?:and \S+ on|against) (?P<first>\d+) %"
DIFFERENCE = r"a difference of (?P<difference>\d+) points?"
INTERVAL = r"\((?:95 % interval (?P<low>−?\d+) to (?P<high>−?\d+)|too few combinations for an interval)\)"


def text_of(page: Path, start: str, end: str) -> str:
    """The words between two marks of a page, without tags."""
    _, _, rest = page.read_text(encoding="utf-8").partition(start)
    return html.unescape(re.sub(r"<[^>]+>", " ", rest.partition(end)[0])).strip()


def number(text: str) -> float:
    return float(text.replace("−", "-")) / 100


def check_result(folder: Path, case: Case) -> None:
    """Hold the first screen of a report against the tables that are worked out here."""
    page = folder / "index.html"
    headline, detail = (re.sub(r"\s+", " ", part) for part in _sentence(page))
    evidence = text_of(page, '<p class="evidence">', "</p>")
    found = re.fullmatch(rf"with (?P<k>\d+) skills? in one text, .*?{RATES}, {DIFFERENCE} {INTERVAL}\.", detail)
    assert found, detail
    claims = [claim for claim, title in CLAIM_TITLES.items() if title == headline]
    rows = _supported(case) if claims else students_compared(case)
    row = _row(rows, claims, found, headline, detail, evidence)
    sign = 1 if _is_second_better(row, headline, detail) else -1
    names = row["students"].split(" − ")
    setting = re.findall(r"[Ss]etting (\S+), grader (\S+),", evidence)[0]
    bests = [case.run.best((name, setting[1], setting[0], int(found["k"]))) for name in names]
    shared = bests[0].keys() & bests[1].keys()
    shares = [mean(best[c] for c in shared) for best in bests][::sign]
    assert [number(found["second"]), number(found["first"])] == pytest.approx(shares, abs=0.00501)
    assert number(found["difference"]) == pytest.approx(abs(row["difference"]), abs=0.00501)
    ends = sorted([sign * row["difference low"], sign * row["difference high"]])
    if found["low"]:
        assert [number(found["low"]), number(found["high"])] == pytest.approx(ends, abs=ENDS)
    _check_verdict(headline, row, rows, is_claim=bool(claims))
    _check_numbers(page, case, row, sign)


def _sentence(page: Path) -> tuple[str, str]:
    headline = text_of(page, "<h1>", '<span class="detail">')
    return headline, text_of(page, '<span class="detail">', "</span>")


def _supported(case: Case) -> list[Row]:
    """Rows of findings with a gain worth claiming."""
    return [
        row
        for row in findings(case)
        if row["claim"] != "control"
        and row["difference low"] > 0
        and row["p, corrected"] < 0.05
        and row["difference"] >= 0.05 - 1e-9
    ]


def _row(rows: list[Row], claims: list[Any], found: Any, headline: str, detail: str, evidence: str) -> Row:
    setting, grader = re.findall(r"[Ss]etting (\S+), grader (\S+),", evidence)[0]
    (row,) = (
        row
        for row in rows
        if (str(row["k"]), row["setting"], row["grader"]) == (found["k"], setting, grader)
        and (not claims or row["claim"] == claims[0])
        and all(re.search(rf"(?<![\w-]){re.escape(name)}(?![\w-])", f"{headline} {detail}") for name in _names(row))
    )
    return row


def _names(row: Row) -> list[str]:
    names: list[str] = row["students"].split(" − ")
    return names


def _is_second_better(row: Row, headline: str, detail: str) -> bool:
    second, first = _names(row)
    words = re.split(r"[\s,]+", headline + " " + detail)
    return words.index(second) < words.index(first)


def _distance(row: Row) -> float:
    low, high = row["difference low"], row["difference high"]
    return max(low, -high) if low == low else -1.0


def _check_verdict(headline: str, row: Row, rows: list[Row], *, is_claim: bool) -> None:
    """The comparison that leads is the clearest one, and the words are those of its verdict."""
    is_found = row["p, corrected"] < 0.05 and _distance(row) > 0
    if is_claim:
        assert is_found and _distance(row) >= max(map(_distance, rows)) - ENDS
    elif "more often than" in headline:
        alike = [r for r in rows if (r["setting"], r["grader"]) == (row["setting"], row["grader"])]
        found = [r for r in alike if r["p, corrected"] < 0.05]
        assert is_found and _distance(row) >= max(map(_distance, found)) - ENDS
    else:
        assert not any(r["p, corrected"] < 0.05 and _distance(r) > ENDS for r in rows)
        assert ("may be better" in headline) == (_distance(row) > 0)
        assert headline.startswith("Too few combinations") == (row["combinations"] < 10)


def _check_numbers(page: Path, case: Case, row: Row, sign: int) -> None:
    """The three numbers: the difference, the combinations won, and the texts."""
    items = re.findall(r"<li><b>(.*?)</b>(.*?)</li>", page.read_text(encoding="utf-8").partition('class="numbers"')[2])
    (difference, _), (wins, label), (texts, about) = items[:3]
    assert number(difference.split()[0].lstrip("+")) == pytest.approx(sign * row["difference"], abs=0.00501)
    names = _names(row)[::sign]
    setting, grader = row["setting"], row["grader"]
    better, worse = (case.run.best((name, grader, setting, row["k"])) for name in names)
    shared = better.keys() & worse.keys()
    up, down = (sum(a[c] > b[c] for c in shared) for a, b in ((better, worse), (worse, better)))
    assert wins == f"{up} of {len(shared)}" and f"{names[1]} does better on {down}" in label
    graded = case.run.graded
    mine = graded[graded["student"].isin(case.run.document["students"]) | graded["student"].isin(case.run.students)]
    assert int(texts.replace(",", "")) == len(mine.drop_duplicates(["student", "combination", "generation"]))
    drawn = {c.id for combinations in case.run.drawn.values() for c in combinations}
    assert f"{len(drawn):,} combinations" in about


def skills(case: Case) -> list[Row]:
    """Shares of decided points, by skill and student, under the first grader."""
    run = case.run
    ids = {c.id for drawn in run.drawn.values() for c in drawn}
    graded = run.graded
    counts: dict[str, dict[str, list[bool]]] = {}
    for student in run.students:
        mine = graded[graded["student"].eq(student) & graded["grader"].eq(run.graders[0])]
        for text in mine[mine["combination"].isin(ids)].itertuples():
            for skill, point in zip(text.skills, text.points, strict=False):
                if point is not None:
                    counts.setdefault(skill, {}).setdefault(student, []).append(point)
    partition = run.catalog.partition(run.document["partition"])
    rows = []
    for skill, by_student in counts.items():
        category = next(s.category for s in run.catalog.skills if s.name == skill)
        side = "train" if skill in partition.train.skills else "held-out"
        row: Row = {"skill": skill, "category": category, "side": side}
        for student in run.students:
            points = by_student.get(student, [])
            row[f"{student}, shown"] = mean(points)
            row[f"{student}, texts"] = len(points) or float("nan")
        rows.append(row)
    return rows


def hardest_skills(case: Case) -> list[Row]:
    """The five lowest shares of each student in the table of skills."""
    rows = []
    for student in case.run.students:
        shown, texts = f"{student}, shown", f"{student}, texts"
        known = [row for row in skills(case) if row[texts] == row[texts]]
        hardest = sorted(known, key=lambda row: (row[shown], row["skill"]))[:5]
        rows += [{"student": student, "skill": r["skill"], "shown": r[shown], "texts": r[texts]} for r in hardest]
    return rows
