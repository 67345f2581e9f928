"""The rows of a run's table, as texts and ballots: those that its experiment plans, and what else its journal holds.

The experiment at hand may be smaller than an earlier one of the same run. A row then counts the combinations of both,
and rows that only an earlier experiment planned follow. Texts that no known experiment planned come last, in a setting
of their own.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

from skillmix.catalog.combinations import Combination
from skillmix.experiment.plan import PlannedCell, RowKey, writers_and_graders
from skillmix.grading.ballots import Ballot
from skillmix.grading.points import Points, earns_nothing
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


def groups_of(run: Run, records: RunRecords) -> Iterator[BallotCell]:
    """The cells of a run: those that an import has texts for, or those that are planned or that the journal holds."""
    if run.is_imported:
        yield from _imported_groups(records)
        return
    yield from _planned_groups(run, records)
    yield from _unplanned_groups(run, records)


def unnamed_notes(groups: Iterable[BallotCell]) -> list[str]:
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
    return BallotCell(cell.student, grader, cell.label, cell.k, texts, cell.combinations, unnamed)


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
