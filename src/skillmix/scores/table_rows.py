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
from skillmix.grading.ballots import Ballot
from skillmix.grading.points import Points, earns_nothing
from skillmix.runs.reading.conversation_index import combinations_of
from skillmix.runs.reading.marks import MarkTable, TextMark
from skillmix.runs.reading.run_records import RunRecords
from skillmix.runs.reading.text_facts import IMPORTED, counted_cells
from skillmix.runs.run import Run
from skillmix.scores.cells import Cell, CellKey

NOT_IN_FILE: Final = "not-in-file"
"""The setting of texts that no known experiment of the run plans."""


@dataclass(frozen=True, slots=True)
class BallotCell:
    """The texts behind one row of the table: for each combination its generations, None where one is missing."""

    student: str
    grader: str
    setting: str
    k: int
    texts: list[list[Ballot | None]]
    combinations: tuple[Combination, ...]
    unnamed: int = 0
    """Combinations that the journal holds and the experiment at hand does not name."""

    def part(self, chosen: Sequence[int]) -> "BallotCell":
        """The same cell with only some of its combinations."""
        combinations = tuple(self.combinations[i] for i in chosen)
        return replace(self, texts=[self.texts[i] for i in chosen], combinations=combinations)

    def cell(self, run: str, points: Sequence[Sequence[Points | None]]) -> Cell:
        """The same with its points."""
        return Cell(
            key=CellKey(run, self.student, self.grader, self.setting, self.k),
            combinations=self.combinations,
            points=tuple(map(tuple, points)),
            statuses=tuple(tuple(b.text.answer.status if b else None for b in texts) for texts in self.texts),
            cuts=tuple(tuple(b.text.is_cut if b else None for b in texts) for texts in self.texts),
            woven=tuple(tuple(b.is_woven if b else None for b in texts) for texts in self.texts),
        )


@dataclass(frozen=True, slots=True)
class MarkedCell:
    """The same as a `BallotCell` for a large run: numbers of marks take the place of ballots."""

    student: str
    grader: str
    setting: str
    k: int
    numbers: NDArray[np.int32]
    """By combination and generation; see `_MISSING` and `_NO_TEXT`."""
    marks: Sequence[TextMark]
    combinations: tuple[Combination, ...]
    unnamed: int = 0

    def part(self, chosen: Sequence[int]) -> "MarkedCell":
        """The same cell with only some of its combinations."""
        combinations = tuple(self.combinations[i] for i in chosen)
        return replace(self, numbers=self.numbers[list(chosen)], combinations=combinations)

    def cell(self, run: str) -> Cell:
        """The cell with its points; equal rows are in memory once."""
        rows = self.numbers.tolist()
        if (self.numbers == _NO_TEXT).any():
            rows = [[number for number in row if number != _NO_TEXT] for row in rows]
        return Cell(
            key=CellKey(run, self.student, self.grader, self.setting, self.k),
            combinations=self.combinations,
            points=_looked_up([mark.points for mark in self.marks], rows),
            statuses=_looked_up([mark.status for mark in self.marks], rows),
            cuts=_looked_up([mark.is_cut for mark in self.marks], rows),
            woven=_looked_up([mark.is_woven for mark in self.marks], rows),
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


def marked_groups(run: Run, table: MarkTable) -> Iterator[MarkedCell]:
    """The cells of a large run, as `groups_of` finds them."""
    yield from _planned_marks(run, table)
    yield from _unplanned_marks(run, table)


def _planned_marks(run: Run, table: MarkTable) -> Iterator[MarkedCell]:
    now, before = counted_cells(run)
    earlier = _largest(before)
    for cell in now:
        for grader in cell.graders:
            former = earlier.get(_key(cell, grader))
            more = _held_beyond(cell, former, table) if former else ()
            whole = replace(cell, combinations=(*cell.combinations, *more))
            yield _marked(whole, grader, table, unnamed=len(more))
    named = {_key(cell, grader) for cell in now for grader in cell.graders}
    for key, cell in earlier.items():
        is_written = table.places(cell.student, cell.combinations, cell.numbers) >= 0
        held = tuple(c for c, texts in zip(cell.combinations, is_written, strict=True) if texts.any())
        if key not in named and held:
            yield _marked(replace(cell, combinations=held), key[1], table, unnamed=len(held))


def _held_beyond(cell: PlannedCell, earlier: PlannedCell, table: MarkTable) -> tuple[Combination, ...]:
    own = {c.id for c in cell.combinations}
    is_written = table.places(cell.student, earlier.combinations, cell.numbers) >= 0
    pairs = zip(earlier.combinations, is_written, strict=True)
    return tuple(c for c, texts in pairs if c.id not in own and texts.all())


def _marked(cell: PlannedCell, grader: str, table: MarkTable, *, unnamed: int) -> MarkedCell:
    numbers = table.numbers(cell.student, grader, cell.combinations, cell.numbers)
    combinations = tuple(cell.combinations)
    return MarkedCell(cell.student, grader, cell.label, cell.k, numbers, table.marks, combinations, unnamed)


def _unplanned_marks(run: Run, table: MarkTable) -> Iterator[MarkedCell]:
    writing = {pair for e in (run.experiment, *run.earlier) for pair in writers_and_graders(e)}
    for student, grader in table.pairs:
        if run.grader(grader).is_code_alone or (student, grader) in writing:
            continue
        cells = [c for c in (*run.cells, *run.earlier_cells) if c.student == student and grader in c.graders]
        outside = table.outside(student, grader, (c.id for cell in cells for c in cell.combinations))
        by_combination: dict[str, list[int]] = defaultdict(list)
        for combination, _, number in outside:
            by_combination[combination].append(number)
        if not outside:
            continue
        with run.read() as journal:
            known = combinations_of(journal, by_combination)
        for k in sorted({combination.k for combination in known.values()}):
            own = {c: numbers for c, numbers in by_combination.items() if known[c].k == k}
            if any(table.marks[number].votes for numbers in own.values() for number in numbers):
                yield _unplanned_cell(student, grader, k, own, known, table)


def _unplanned_cell(
    student: str,
    grader: str,
    k: int,
    by_combination: Mapping[str, list[int]],
    known: Mapping[str, Combination],
    table: MarkTable,
) -> MarkedCell:
    """The combinations on which the grader voted, or need not, because no text can earn a point."""
    graded = {}
    for combination, numbers in by_combination.items():
        marks = [table.marks[number] for number in numbers]
        if any(mark.votes for mark in marks) or all(mark.earns_nothing for mark in marks):
            graded[combination] = numbers
    widest = max(map(len, graded.values()))
    rows = [[*numbers, *[_NO_TEXT] * (widest - len(numbers))] for numbers in graded.values()]
    combinations = tuple(known[combination] for combination in graded)
    matrix = np.array(rows, np.int32)
    return MarkedCell(student, grader, NOT_IN_FILE, k, matrix, table.marks, combinations, len(combinations))


def groups_of(run: Run, records: RunRecords) -> Iterator[BallotCell]:
    """The cells of a run: those that an import has texts for, or those that are planned or that the journal holds."""
    if run.is_imported:
        yield from _imported_groups(records)
        return
    yield from _planned_groups(run, records)
    yield from _unplanned_groups(run, records)


def unnamed_notes(groups: Iterable[BallotCell | MarkedCell]) -> list[str]:
    """What the journal holds and the experiment at hand does not name, one line for each student and grader."""
    whole: dict[tuple[str, str], list[str]] = defaultdict(list)
    partly: dict[tuple[str, str], list[str]] = defaultdict(list)
    for group in groups:
        if group.unnamed:
            context = f"{group.setting}, k = {group.k}"
            if group.unnamed == len(group.combinations):
                whole[group.student, group.grader].append(context)
            else:
                count = f"{group.unnamed} of {len(group.combinations)} ({context})"
                partly[group.student, group.grader].append(count)
    notes = [
        f"the experiment file does not name {student} under {grader}; the run holds {'; '.join(contexts)}"
        for (student, grader), contexts in whole.items()
    ]
    return notes + [
        f"the experiment file does not name all combinations of {student} under {grader}; the rows also count "
        f"{', '.join(counts)}"
        for (student, grader), counts in partly.items()
    ]


def _imported_groups(records: RunRecords) -> Iterator[BallotCell]:
    """The cells of an imported run: one for each student, grader and k."""
    cells: dict[tuple[str, str, int], dict[str, list[Ballot | None]]] = defaultdict(lambda: defaultdict(list))
    for ballot in records.graders_ballots:
        combination = ballot.text.combination
        cells[ballot.text.student, ballot.grader, combination.k][combination.id].append(ballot)
    for (student, grader, k), by_combination in sorted(cells.items()):
        known = tuple(texts[0].text.combination for texts in by_combination.values() if texts[0])
        yield BallotCell(student, grader, IMPORTED, k, list(by_combination.values()), known)


def _planned_groups(run: Run, records: RunRecords) -> Iterator[BallotCell]:
    """The cells of all known experiments: all planned texts of the one at hand, and what is written of earlier ones."""
    ballots = {(b.text.student, b.text.combination.id, b.text.generation, b.grader): b for b in records.ballots}
    written = {text.conversation for text in records.texts}
    now, before = counted_cells(run)
    earlier = _largest(before)
    for cell in now:
        for grader in cell.graders:
            former = earlier.get(_key(cell, grader))
            more = _further_combinations(cell, former, written) if former else ()
            yield _group(replace(cell, combinations=(*cell.combinations, *more)), grader, ballots, unnamed=len(more))
    named = {_key(cell, grader) for cell in now for grader in cell.graders}
    for key, cell in earlier.items():
        held = tuple(c for c in cell.combinations if any((cell.student, c.id, n) in written for n in cell.numbers))
        if key not in named and held:
            yield _group(replace(cell, combinations=held), key[1], ballots, unnamed=len(held))


_Ballots = dict[tuple[str, str, int, str], Ballot]


def _group(cell: PlannedCell, grader: str, ballots: _Ballots, *, unnamed: int) -> BallotCell:
    texts = [[ballots.get((cell.student, c.id, number, grader)) for number in cell.numbers] for c in cell.combinations]
    return BallotCell(cell.student, grader, cell.label, cell.k, texts, tuple(cell.combinations), unnamed)


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


def _further_combinations(
    cell: PlannedCell, earlier: PlannedCell, written: set[tuple[str, str, int]]
) -> tuple[Combination, ...]:
    """Combinations of an earlier experiment that have as many texts as the present one asks for."""
    own = {c.id for c in cell.combinations}
    return tuple(
        c
        for c in earlier.combinations
        if c.id not in own and all((cell.student, c.id, number) in written for number in cell.numbers)
    )


def _unplanned_groups(run: Run, records: RunRecords) -> Iterator[BallotCell]:
    """Graded texts that no known experiment plans, as runs of older versions hold them, without those for data sets."""
    planned = {
        (cell.student, combination.id, grader)
        for cell in (*run.cells, *run.earlier_cells)
        for grader in cell.graders
        for combination in cell.combinations
    }
    writing = {pair for e in (run.experiment, *run.earlier) for pair in writers_and_graders(e)}
    voted = {
        (b.text.student, b.grader, b.text.combination.k)
        for b in records.graders_ballots
        if b.readings
        and not run.grader(b.grader).is_code_alone
        and (b.text.student, b.grader) not in writing
        and (b.text.student, b.text.combination.id, b.grader) not in planned
    }
    cells: dict[tuple[str, str, int], dict[str, list[Ballot]]] = defaultdict(lambda: defaultdict(list))
    for ballot in records.ballots if voted else ():
        text = ballot.text
        key = (text.student, ballot.grader, text.combination.k)
        if key in voted and (text.student, text.combination.id, ballot.grader) not in planned:
            cells[key][text.combination.id].append(ballot)
    for (student, grader, k), by_combination in sorted(cells.items()):
        graded = [own for own in by_combination.values() if _is_graded(own, run)]
        known = tuple(own[0].text.combination for own in graded)
        texts: list[list[Ballot | None]] = [[*sorted(own, key=lambda b: b.text.generation)] for own in graded]
        yield BallotCell(student, grader, NOT_IN_FILE, k, texts, known, len(known))


def _is_graded(texts: Sequence[Ballot], run: Run) -> bool:
    """Whether a grader voted on a text of a combination, or need not, because no text can earn a point."""
    return any(b.readings for b in texts) or all(earns_nothing(b.text.answer, run.rules()) for b in texts)
