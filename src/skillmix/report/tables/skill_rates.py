"""The table of skills: how often each student shows each skill when asked for it."""

from skillmix.report.records import Report
from skillmix.report.registry import table
from skillmix.report.tables.table import Count, Entry, Estimate, ReportTable
from skillmix.scores.skills import Rate, skill_rates


@table(section="skills", order=5)
def skill_table(report: Report) -> ReportTable | None:
    """Every skill that was asked for, the hardest first."""
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
        title="Skills, the hardest first",
        note=f"Shown: the share of texts that show the skill, of the texts that were asked for it and that {grader} "
        "decided; all k and settings together. Ordered by the share over all students.",
        columns=("skill", "category", "side", *(("shown", "texts") * len(rates))),
        rows=tuple(rows),
        groups=(("", 3), *((report.label(*key), 2) for key in report.students)),
    )


def _entries(rate: Rate | None) -> tuple[Entry, Entry]:
    return (Estimate(None), Count(None)) if rate is None else (Estimate(rate.value), Count(rate.asked))


def _overall(rates: list[Rate]) -> float:
    return sum(rate.shown for rate in rates) / sum(rate.asked for rate in rates)
