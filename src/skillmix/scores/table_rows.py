"""The rows of a run's table, as texts and ballots: those that its experiment plans, and what else its journal holds.

The experiment at hand may be smaller than an earlier one of the same run. A row then counts the combinations of both,
and rows that only an earlier experiment planned follow. Texts that no known experiment planned come last, in a setting
of their own.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, TypeVar

import numpy as np
from numpy.typing import NDArray

from skillmix.catalog.combinations import Combination
from skillmix.experiment.plan import PlannedCell, RowKey, writers_and_graders
from skillmix.runs.reading.lookups import combinations_of
from skillmix.runs.reading.text_facts import IMPORTED, counted_cells
from skillmix.runs.run import Run
from skillmix.runs.texts import TextGrade, TextTable
from skillmix.scores.cells import Cell, CellKey

NOT_IN_FILE: Final = "not-in-file"
"""The setting of texts that no known experiment of the run plans."""


@dataclass(frozen=True, slots=True)
class TableRow:
    """The texts behind one row of the table, as numbers of their grades."""

    student: str
    grader: str
    setting: str
    k: int
    numbers: NDArray[np.int32]
    """By combination and generation; see `_MISSING` and `_NO_TEXT`."""
    grades: Sequence[TextGrade]
    combinations: tuple[Combination, ...]
    unnamed: int = 0
    """Combinations that the journal holds and the experiment at hand does not name."""

    def part(self, chosen: Sequence[int]) -> "TableRow":
        """The same row with only some of its combinations."""
        combinations = tuple(self.combinations[i] for i in chosen)
        return replace(self, numbers=self.numbers[list(chosen)], combinations=combinations)

    def cell(self, run: str) -> Cell:
        """The row with its points; equal texts are in memory once."""
        rows = self.numbers.tolist()
        if (self.numbers == _NO_TEXT).any():
            rows = [[number for number in row if number != _NO_TEXT] for row in rows]
        return Cell(
            key=CellKey(run, self.student, self.grader, self.setting, self.k),
            combinations=self.combinations,
            points=_looked_up([grade.points for grade in self.grades], rows),
            statuses=_looked_up([grade.status for grade in self.grades], rows),
            cuts=_looked_up([grade.is_cut for grade in self.grades], rows),
            woven=_looked_up([grade.is_woven for grade in self.grades], rows),
        )


_MISSING: Final = -1
"""The text of this generation is missing, or has no ballot."""
_NO_TEXT: Final = -2
"""The row has fewer texts than others."""
_Value = TypeVar("_Value")


def _looked_up(values: Sequence[_Value], rows: Iterable[Iterable[int]]) -> tuple[tuple[_Value | None, ...], ...]:
    """The values with these numbers, and None for a missing one, which is the last."""
    known: list[_Value | None] = [*values, None]
    once: dict[tuple[_Value | None, ...], tuple[_Value | None, ...]] = {}
    found = (tuple([known[number] for number in row]) for row in rows)
    return tuple([once.setdefault(row, row) for row in found])


def table_rows(run: Run, table: TextTable) -> Iterator[TableRow]:
    """The rows of a run: those that an import has texts for, or those that are planned or that the journal holds."""
    if run.is_imported:
        yield from _rows_outside(run, table, [])
        return
    yield from _planned_rows(run, table)
    yield from _rows_outside(run, table, [*run.cells, *run.earlier_cells])


def _planned_rows(run: Run, table: TextTable) -> Iterator[TableRow]:
    """The rows of all known experiments: all planned texts of the one at hand, and what is written of earlier ones."""
    now, before = counted_cells(run)
    earlier = _largest(before)
    for cell in now:
        for grader in cell.graders:
            former = earlier.get(_key(cell, grader))
            more = _held_beyond(cell, former, table) if former else ()
            whole = replace(cell, combinations=(*cell.combinations, *more))
            yield _row(whole, grader, table, unnamed=len(more))
    named = {_key(cell, grader) for cell in now for grader in cell.graders}
    for key, cell in earlier.items():
        is_written = table.places(cell.student, cell.combinations, cell.numbers) >= 0
        held = tuple(c for c, texts in zip(cell.combinations, is_written, strict=True) if texts.any())
        if key not in named and held:
            yield _row(replace(cell, combinations=held), key[1], table, unnamed=len(held))


def _held_beyond(cell: PlannedCell, earlier: PlannedCell, table: TextTable) -> tuple[Combination, ...]:
    """Combinations of an earlier experiment that have as many texts as the present one asks for."""
    own = {c.id for c in cell.combinations}
    is_written = table.places(cell.student, earlier.combinations, cell.numbers) >= 0
    pairs = zip(earlier.combinations, is_written, strict=True)
    return tuple(c for c, texts in pairs if c.id not in own and texts.all())


def _row(cell: PlannedCell, grader: str, table: TextTable, *, unnamed: int) -> TableRow:
    numbers = table.numbers(cell.student, grader, cell.combinations, cell.numbers)
    combinations = tuple(cell.combinations)
    return TableRow(cell.student, grader, cell.label, cell.k, numbers, table.grades, combinations, unnamed)


def _rows_outside(run: Run, table: TextTable, planned: Sequence[PlannedCell]) -> Iterator[TableRow]:
    """Graded texts that no known experiment plans, without those for data sets: an import, or a run of older versions.

    Of these runs, a row has the combinations on which the grader voted, or need not, as no text can earn a point.
    """
    writing = {pair for e in (run.experiment, *run.earlier) for pair in writers_and_graders(e)}
    for student, grader in table.pairs:
        if run.grader(grader).is_code_alone or (student, grader) in writing:
            continue
        cells = [cell for cell in planned if cell.student == student and grader in cell.graders]
        outside = table.outside(student, grader, (c.id for cell in cells for c in cell.combinations))
        with run.read() as journal:
            known = combinations_of(journal, outside)
        for k in sorted({combination.k for combination in known.values()}):
            own = {c: numbers for c, numbers in outside.items() if known[c].k == k}
            if not run.is_imported:
                own = _graded(own, table.grades, is_known=grader in run.known_graders)
            if own:
                widest = max(map(len, own.values()))
                rows = [[*numbers, *[_NO_TEXT] * (widest - len(numbers))] for numbers in own.values()]
                setting, unnamed = (IMPORTED, 0) if run.is_imported else (NOT_IN_FILE, len(own))
                matrix, combinations = np.array(rows, np.int32), tuple(known[c] for c in own)
                yield TableRow(student, grader, setting, k, matrix, table.grades, combinations, unnamed)


def _graded(
    by_combination: Mapping[str, list[int]], grades: Sequence[TextGrade], *, is_known: bool
) -> dict[str, list[int]]:
    """The combinations that a grader voted on, or need not; none if it voted on no text at all."""
    texts = {c: [grades[number] for number in numbers] for c, numbers in by_combination.items()}
    if not any(grade.votes for own in texts.values() for grade in own):
        return {}
    voted = {c for c, own in texts.items() if any(grade.votes for grade in own)}
    wanted = voted.union(c for c, own in texts.items() if all(grade.earns_nothing for grade in own))
    # Resampled intervals depend on the order: of a grader that no experiment names, combinations with votes come first.
    ordered = by_combination if is_known else sorted(by_combination, key=lambda c: c not in voted)
    return {c: by_combination[c] for c in ordered if c in wanted}


def unnamed_notes(rows: Iterable[TableRow]) -> list[str]:
    """What the journal holds and the experiment at hand does not name, one line for each student and grader."""
    whole: dict[tuple[str, str], list[str]] = defaultdict(list)
    partly: dict[tuple[str, str], list[str]] = defaultdict(list)
    for row in rows:
        if row.unnamed:
            context = f"{row.setting}, k = {row.k}"
            if row.unnamed == len(row.combinations):
                whole[row.student, row.grader].append(context)
            else:
                count = f"{row.unnamed} of {len(row.combinations)} ({context})"
                partly[row.student, row.grader].append(count)
    notes = [
        f"the experiment file does not name {student} under {grader}; the run holds {'; '.join(contexts)}"
        for (student, grader), contexts in whole.items()
    ]
    return notes + [
        f"the experiment file does not name all combinations of {student} under {grader}; the rows also count "
        f"{', '.join(counts)}"
        for (student, grader), counts in partly.items()
    ]


def _key(cell: PlannedCell, grader: str) -> RowKey:
    return cell.student, grader, cell.label, cell.k


def _largest(cells: Iterable[PlannedCell]) -> dict[RowKey, PlannedCell]:
    """One cell for each row: that with the most combinations."""
    largest: dict[RowKey, PlannedCell] = {}
    for cell in cells:
        for grader in cell.graders:
            known = largest.get(_key(cell, grader))
            if known is None or len(known.combinations) < len(cell.combinations):
                largest[_key(cell, grader)] = cell
    return largest
