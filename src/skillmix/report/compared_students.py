"""Every pair of students of a run, compared for the page on which a reader picks two of them."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Final

from skillmix.grading.points import FULL_MARKS
from skillmix.render.numbers import in_words, p_value, share, signed_with_interval, whole
from skillmix.report.records import Report, by_key
from skillmix.scores.cells import Cell, CellKey
from skillmix.scores.verdicts.judged import PairRow, explanations

MOST_PAIRS: Final = 100
"""Pairs of one run on the page; `skillmix compare` compares any others."""


@dataclass(frozen=True, slots=True)
class DifferingCombination:
    """A combination on which two students differ, with the generation of the best text of each."""

    combination: str
    first: int
    second: int


@dataclass(frozen=True, slots=True)
class PairCell:
    """A row of a comparison, with the combinations on which the second student wins and loses."""

    row: PairRow
    won: tuple[DifferingCombination, ...]
    lost: tuple[DifferingCombination, ...]

    def encoded(self, numbers: Mapping[str, int]) -> dict[str, object]:
        """The row as the page reads it; `differences` has second minus first, then first minus second."""
        row = self.row
        low, high = row.low, row.high
        backward = signed_with_interval(-row.difference, _negative(high), _negative(low))
        return {
            "grader": row.grader,
            "setting": row.setting,
            "k": row.k,
            "values": [share(row.first_value), share(row.second_value)],
            "differences": [signed_with_interval(row.difference, low, high), backward],
            "bounds": [row.difference, low, high],
            "p": p_value(row.p),
            "corrected": p_value(row.p_corrected),
            "clear": (row.found > 0) - (row.found < 0),
            "verdict": row.words,
            "wins": row.wins,
            "ties": row.ties,
            "losses": row.losses,
            "combinations": row.combinations,
            "needed": "–" if row.still_needed is None else whole(row.still_needed),
            "won": [[numbers[d.combination], d.first, d.second] for d in self.won if d.combination in numbers],
            "lost": [[numbers[d.combination], d.first, d.second] for d in self.lost if d.combination in numbers],
        }


def _negative(value: float | None) -> float | None:
    return None if value is None else -value


@dataclass(frozen=True, slots=True)
class ComparedStudents:
    """Two students of a run, the second against the first."""

    run: str
    first: str
    second: str
    cells: tuple[PairCell, ...]

    @property
    def names(self) -> tuple[str, str, str]:
        """The run and the two students."""
        return self.run, self.first, self.second

    @property
    def sentences(self) -> tuple[str, str]:
        """How the second student compares with the first, and the first with the second."""
        rows = [cell.row for cell in self.cells]
        more, fewer = sum(row.found > 0 for row in rows), sum(row.found < 0 for row in rows)
        notes = "".join(f" {sentence}" for sentence in explanations(self.second, rows))
        if len(rows) == 1:
            sentence = f"{self.second} against {self.first}: {rows[0].words}.{notes}"
            return sentence, sentence
        return (
            f"{_sentence(self.second, self.first, (more, fewer, len(rows)))}{notes}",
            f"{_sentence(self.first, self.second, (fewer, more, len(rows)))}{notes}",
        )


def _sentence(name: str, other: str, counts: tuple[int, int, int]) -> str:
    """A sentence about all rows of a comparison, whatever rows a reader chooses to see.

    >>> print(_sentence("b", "a", (2, 0, 5)))
    b has more full marks than a in two of five comparisons and fewer in zero; in three no difference is found.
    """
    more, fewer, total = counts
    return (
        f"{name} has more full marks than {other} in {in_words(more)} of {in_words(total)} comparisons and fewer in "
        f"{in_words(fewer)}; in {in_words(total - more - fewer)} no difference is found."
    )


def student_pairs(report: Report) -> Iterator[ComparedStudents]:
    """Every pair of students of each run that shares a complete combination, up to a limit."""
    cells = by_key(report.cells)
    known: dict[tuple[str, str, str], list[PairRow]] = {}
    for compared in report.comparisons:
        known.setdefault((compared.run, compared.first, compared.second), []).append(compared.row)
    for run in report.runs:
        students = [student for of, student in report.students if of == run.name]
        for first, second in list(combinations(students, 2))[:MOST_PAIRS]:
            rows = known.get((run.name, first, second))
            own = report.compared(run.name, first, second) if rows is None else rows
            if own:
                yield ComparedStudents(
                    run.name, first, second, tuple(_pair_cells(run.name, (first, second), own, cells))
                )


def _pair_cells(
    run: str, students: tuple[str, str], rows: Sequence[PairRow], cells: Mapping[CellKey, Cell]
) -> Iterator[PairCell]:
    for row in rows:
        first, second = (cells[CellKey(run, name, row.grader, row.setting, row.k)] for name in students)
        before, after = _best_texts(first), _best_texts(second)
        won: list[DifferingCombination] = []
        lost: list[DifferingCombination] = []
        for combination in second.combinations:
            (value, index), (other, other_index) = before.get(combination.id, _NONE), after.get(combination.id, _NONE)
            if value is not None and other is not None and value != other:
                (won if other > value else lost).append(DifferingCombination(combination.id, index, other_index))
        yield PairCell(row, tuple(won), tuple(lost))


_NONE: Final[tuple[float | None, int]] = None, 0


def _best_texts(cell: Cell) -> dict[str, tuple[float | None, int]]:
    """By complete combination, full marks of its best text and the generation of the first such text."""
    best = cell.best(FULL_MARKS)
    values = zip(cell.combinations, cell.values(FULL_MARKS), strict=True)
    return {c.id: (best[c.id], texts.index(best[c.id])) for c, texts in values if c.id in best}
