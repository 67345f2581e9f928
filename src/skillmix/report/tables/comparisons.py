"""The panel "Compare": pairs of students of one run, side by side."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import combinations
from typing import Final

from skillmix.report.records import ComparedPair, Report, RunFacts
from skillmix.report.registry import table
from skillmix.report.tables.table import CORRECTION, Count, Entry, PValue, ReportTable, estimate
from skillmix.scores.verdicts.judged import PairRow

MOST_PAIRS: Final = 10
"""Pairs of one run that the table shows."""
_NAMED_PAIRS: Final = 20
_NOTE: Final = (
    "A row B − A has full marks of B minus those of A, best of the generations, on the combinations that both have "
    "complete, with the 95 % interval. p comes from a permutation test within combinations. "
    f"{CORRECTION} Wins, ties and losses of B count combinations. Still needed: further combinations for 80 % power at "
    "the observed difference. `skillmix compare RUN A B` shows any pair with the texts that differ."
)
_StudentPair = tuple[str, str]


@dataclass(frozen=True, slots=True)
class ChosenPairs:
    """The pairs of students of a run that a report compares, and those that it leaves out."""

    shown: tuple[_StudentPair, ...]
    left_out: tuple[_StudentPair, ...]


def chosen_pairs(report: Report, run: RunFacts) -> ChosenPairs:
    """All pairs of a run, or 10 of them: pairs with one base, if there are any, and else the first pairs.

    The base of a student without a lineage is its own model.
    """
    students = [student for of, student in report.students if of == run.name]
    every = list(combinations(students, 2))
    if len(every) <= MOST_PAIRS:
        return ChosenPairs(tuple(every), ())
    bases = {student: _base(report, run, student) for student in students}
    related = [(first, second) for first, second in every if bases[first] == bases[second]]
    shown = (related or every)[:MOST_PAIRS]
    return ChosenPairs(tuple(shown), tuple(pair for pair in every if pair not in shown))


def _base(report: Report, run: RunFacts, student: str) -> str:
    lineage = report.lineages.get((run.name, student))
    return lineage.base if lineage else run.students.get(student, student)


def compared_pairs(report: Report) -> Iterator[ComparedPair]:
    """The chosen pairs of students of each run, by grader, setting and k."""
    for run in report.runs:
        for first, second in chosen_pairs(report, run).shown:
            for row in report.compared(run.name, first, second):
                yield ComparedPair(run.name, first, second, row)


@table(section="compare", order=10)
def pair_table(report: Report) -> ReportTable | None:
    """The chosen pairs of students of each run, by grader, setting and k."""
    rows = [_entries(report.label(c.run, _name((c.first, c.second))), c.row) for c in report.comparisons]
    notes = [_NOTE, *(note for run in report.runs for note in _left_out(run, chosen_pairs(report, run)))]
    if not rows:
        return None
    return ReportTable(
        name="students-compared",
        title="Pairs of students",
        note=" ".join(notes),
        columns=(
            *("students", "grader", "setting", "k", "difference", "p", "p, corrected", "verdict"),
            *("wins", "ties", "losses", "combinations", "still needed"),
        ),
        rows=tuple(rows),
    )


def _name(pair: _StudentPair) -> str:
    first, second = pair
    return f"{second} − {first}"


def _entries(students: str, row: PairRow) -> tuple[Entry, ...]:
    return (
        *(students, row.grader, row.setting, str(row.k)),
        estimate(row.difference, (row.low, row.high), is_signed=True),
        *(PValue(row.p), PValue(row.p_corrected), row.verdict),
        *map(Count, (row.wins, row.ties, row.losses, row.combinations, row.still_needed)),
    )


def _left_out(run: RunFacts, pairs: ChosenPairs) -> list[str]:
    """A sentence that names the pairs that the table leaves out."""
    if not pairs.left_out:
        return []
    named = [_name(pair) for pair in pairs.left_out[:_NAMED_PAIRS]]
    more = len(pairs.left_out) - len(named)
    listed = ", ".join(named) + (f" and {more} more" if more else "")
    shown = len(pairs.shown)
    return [f"{run.name}: the table has {shown} of {shown + len(pairs.left_out)} pairs. Left out: {listed}."]
