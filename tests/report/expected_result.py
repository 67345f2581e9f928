"""The first screen, worked out a second time: which comparison leads, and every number of its sentence."""

import html
import re
from pathlib import Path

import pytest

from skillmix.scores.sentences import CLAIM_TITLES
from tests.report.expected_data import findings
from tests.report.expected_scores import Case, Row, pair_rows
from tests.report.second_run import mean

ENDS = 0.031
"""Ends of bootstraps may differ by .02 between the two computations, and the page rounds to whole percentages."""
RATES = r"(?P<second>\d+)% of combinations and \S+ on (?P<first>\d+)%"
DIFFERENCE = r"a difference of (?P<difference>−?\d+) points?"
INTERVAL = r"\((?:95% interval (?P<low>−?\d+) to (?P<high>−?\d+)|too few combinations for an interval)\)"
VERDICT = r"(?P<verdict>[a-z ]+), p (?:= |< )(?P<p>\.\d+|1\.000)(?: after correction for (?P<tests>\d+) comparisons)?"


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
    words = (
        rf"with (?P<k>\d+) skills? in one text, \S+ earns full marks on {RATES}, {DIFFERENCE} {INTERVAL}; {VERDICT}\."
    )
    found = re.fullmatch(words, detail)
    assert found, detail
    setting, grader = re.findall(r"[Ss]etting (\S+), grader (\S+),", evidence)[0]
    claims = [claim for claim, title in CLAIM_TITLES.items() if title == headline]
    rows = [row for row in findings(case) if row["claim"] == claims[0]] if claims else _planned(case)
    (row,) = (r for r in rows if (str(r["k"]), r["setting"], r["grader"]) == (found["k"], setting, grader))
    names = row["students"].split(" − ")
    bests = [case.run.best((name, grader, setting, int(found["k"]))) for name in names]
    shared = bests[0].keys() & bests[1].keys()
    shares = [mean(best[c] for c in shared) for best in bests]
    assert [number(found["second"]), number(found["first"])] == pytest.approx(shares, abs=0.00501)
    assert number(found["difference"]) == pytest.approx(row["difference"], abs=0.00501)
    if found["low"]:
        ends = [row["difference low"], row["difference high"]]
        assert [number(found["low"]), number(found["high"])] == pytest.approx(ends, abs=ENDS)
    assert found["verdict"] == row["verdict"]
    assert float(found["p"]) == pytest.approx(max(row["p, corrected"], 0.001), abs=0.00051)
    assert claims[:1] == _supported(case)[:1]
    if not claims:
        here = [r for r in rows if (r["setting"], r["grader"]) == (setting, grader)]
        assert row == next(
            (r for r in here if r["verdict"] in ("a gain", "a loss")), next(r for r in here if r["k"] >= 2)
        )
        assert headline == _headline(row["verdict"], *names)
    _check_numbers(page, case, row)


def _headline(verdict: str, second: str, first: str) -> str:
    return {
        "a gain": f"{second} earns full marks more often than {first}",
        "a loss": f"{second} earns full marks less often than {first}",
        "within noise": f"No clear difference was found between {second} and {first}",
        "too few combinations": f"Too few combinations to tell {second} and {first} apart",
    }[verdict]


def _planned(case: Case) -> list[Row]:
    """The richest tuned student against its base or, without one, the second student against the first."""
    run = case.run
    trained = {student: told["k"] for student, told in run.models.items()}
    if not trained:
        return pair_rows(run, *run.students[:2])
    richest = max(trained, key=lambda s: (max(trained[s]), len(trained[s]), run.rows_of(s)))
    return pair_rows(run, run.base_of(richest), richest)


def _sentence(page: Path) -> tuple[str, str]:
    headline = text_of(page, "<h1>", '<span class="detail">')
    return headline, text_of(page, '<span class="detail">', "</span>")


def _supported(case: Case) -> list[str]:
    """The claims with a gain worth claiming, in their order; the control is the last, and no report here needs it."""
    rows = [row for row in findings(case) if row["verdict"] == "a gain" and row["difference"] >= 0.05 - 1e-9]
    return [claim for claim in CLAIM_TITLES if claim != "control" and any(row["claim"] == claim for row in rows)]


def _check_numbers(page: Path, case: Case, row: Row) -> None:
    """The three numbers: the difference, the combinations won, and the texts."""
    items = re.findall(r"<li><b>(.*?)</b>(.*?)</li>", page.read_text(encoding="utf-8").partition('class="numbers"')[2])
    (difference, _), (wins, label), (texts, about) = items[:3]
    assert number(difference.split()[0].lstrip("+")) == pytest.approx(row["difference"], abs=0.00501)
    names = row["students"].split(" − ")
    setting, grader = row["setting"], row["grader"]
    better, worse = (case.run.best((name, grader, setting, row["k"])) for name in names)
    shared = better.keys() & worse.keys()
    up, down = (sum(a[c] > b[c] for c in shared) for a, b in ((better, worse), (worse, better)))
    assert wins == f"{up} of {len(shared)}" and f"{names[1]} does better on {down}" in label
    graded = case.run.graded
    mine = graded[graded["student"].isin(case.run.document["students"]) | graded["student"].isin(case.run.students)]
    drawn = {c.id for combinations in case.run.drawn.values() for c in combinations}
    evaluated = mine[mine["combination"].isin(drawn) & mine["student"].isin(case.run.students)]
    assert int(texts.replace(",", "")) == len(evaluated.drop_duplicates(["student", "combination", "generation"]))
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
