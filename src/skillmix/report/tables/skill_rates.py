"""Tables of skills: how often each student shows each skill when asked for it, and its hardest skills."""

from typing import Final

from skillmix.report.records import Report
from skillmix.report.registry import table
from skillmix.report.tables.table import LONG, Count, Entry, Estimate, ReportTable
from skillmix.scores.skills import Rate, skill_rates

_HARDEST: Final = 5
"""Skills of each student in the table of the hardest."""


@table(section="skills", order=5)
def skill_table(report: Report) -> ReportTable | None:
    """Every skill that was asked for, the hardest for all students first."""
    if not report.students:
        return None
    grader = report.graders[0]
    rates = [skill_rates(report.cells_of(key, grader=grader)) for key in report.students]
    names = {name for by_name in rates for name in by_name}
    if not names:
        return None
    rows: list[tuple[Entry, ...]] = [
        (
            name,
            report.definitions[name].category if name in report.definitions else "–",
            report.definitions[name].side if name in report.definitions else "–",
            *(entry for by_name in rates for entry in _entries(by_name.get(name))),
        )
        for name in sorted(names, key=lambda name: (_overall([r[name] for r in rates if name in r]), name))
    ]
    return ReportTable(
        name="skills",
        title="Skills, the hardest for all students first",
        note=f"Shown: the share of texts that show the skill, of the texts that were asked for it and that {grader} "
        "decided; all k and settings together. Ordered by the share over all students.",
        columns=("skill", "category", "side", *(("shown", "texts") * len(rates))),
        rows=tuple(rows),
        groups=(("", 3), *((report.label(*key), 2) for key in report.students)),
    )


@table(section="skills", order=6)
def hardest_table(report: Report) -> ReportTable | None:
    """The hardest skills of each student, where a report has several students."""
    if len(report.students) < 2:
        return None
    grader = report.graders[0]
    rows: list[tuple[Entry, ...]] = []
    for key in report.students:
        rates = skill_rates(report.cells_of(key, grader=grader))
        hardest = sorted(rates, key=lambda name: (rates[name].value, name))[:_HARDEST]
        rows += [(report.label(*key), name, *_entries(rates[name])) for name in hardest]
    if not rows:
        return None
    return ReportTable(
        name="hardest-skills",
        title="The hardest skills of each student",
        note=f"The {_HARDEST} skills that each student shows least often, by its own share of texts under {grader}; "
        "all k and settings together. A share of few texts may be low by chance.",
        columns=("student", "skill", "shown", "texts"),
        rows=tuple(rows),
        is_detail=len(rows) > LONG,
    )


def _entries(rate: Rate | None) -> tuple[Entry, Entry]:
    return (Estimate(None), Count(None)) if rate is None else (Estimate(rate.value), Count(rate.asked))


def _overall(rates: list[Rate]) -> float:
    return sum(rate.shown for rate in rates) / sum(rate.asked for rate in rates)
