"""`skillmix scores`: from a run's journal to the cells of its table, without a call.

The rows are those that the experiment plans, and what else the journal holds. The experiment at hand may be smaller
than an earlier one of the same run. A row then counts the combinations of both, and rows that only an earlier
experiment planned follow. Texts that no known experiment planned come last, in a setting of their own.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import combinations
from typing import Any, Final, TypeVar

import numpy as np
from numpy.typing import NDArray

from skillmix.catalog.combinations import Combination, is_reserved
from skillmix.experiment.experiment import Experiment
from skillmix.experiment.plan import PlannedCell, RowKey, place_of, writers_and_graders
from skillmix.experiment.step_base import label_parts
from skillmix.experiment.steps import EvaluateStep
from skillmix.grading.points import METRICS
from skillmix.models.lineage import Lineage, other_partitions
from skillmix.runs.lookups import combinations_of
from skillmix.runs.run import Run, opened
from skillmix.runs.students import has_settings, run_datasets, student_lineages
from skillmix.runs.text_rows import IMPORTED, counted_cells
from skillmix.runs.texts import TextGrade, TextTable, text_table
from skillmix.scores.cells import Cell, CellKey, CellScore, largest_cells
from skillmix.scores.compare import Change, ComparableStudent, before_and_after, comparable_students
from skillmix.scores.findings import findings, judged_contrasts
from skillmix.scores.wording import contrast_result, format_warnings, main_result

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


@dataclass(frozen=True, slots=True)
class ScoredRun:
    """The cells of a run's table, and what tuning changed."""

    scores: list[CellScore]
    changes: list[Change]
    """Tuned students against their bases, where a run has both."""
    notes: list[str]
    """What the experiment at hand does not name, and what students saw under another partition."""
    format_first: list[str] = field(default_factory=list)
    """Students most of whose replies miss the format."""
    result: list[str] = field(default_factory=list)
    """The main result, its evidence and example texts, as a report states them; empty for a run of one student."""


@dataclass(frozen=True, slots=True)
class _ScoredCells:
    scores: list[CellScore]
    cells: list[Cell]
    rows: Sequence[TableRow]


def run_scores(run: Run | str, *, rules: str | None = None, by_sets: bool = False) -> list[CellScore]:
    """Every cell of a run: student, grader, setting, k and metric; the run's own rules unless others are named.

    By sets, the cells on train skills come again in two parts: skill sets that are reserved, and those that data sets
    may hold.
    """
    return _scored(opened(run), rules, by_sets=by_sets).scores


def scored_run(run: Run | str, *, rules: str | None = None, by_sets: bool = False) -> ScoredRun:
    """The scores of a run, and every tuned student beside its base."""
    run = opened(run)
    scored = _scored(run, rules, by_sets=by_sets)
    cells = largest_cells(scored.cells)
    notes = [*unnamed_notes(scored.rows), *partition_notes(run, _lineages(run, cells), cells.values())]
    students = comparable_in(run, cells)
    found = findings(students, cells)
    planned = judged_contrasts([run], students, cells)
    main = contrast_result(planned, cells.values()) if planned else main_result(list(cells.values()), found)
    result = [main.sentence, main.evidence, *main.example] if found or planned else []
    first = [] if run.has_outcomes else format_warnings(list(cells.values()))
    return ScoredRun(scored.scores, before_and_after(students, cells), notes, first, result)


def scored_cells(run: Run | str, *, rules: str | None = None) -> dict[CellKey, Cell]:
    """The cells of a run's table by key, with the points of their texts."""
    return largest_cells(_scored(opened(run), rules, by_sets=False).cells)


def _scored(run: Run, rules: str | None, *, by_sets: bool) -> _ScoredCells:
    chosen = run.rules(rules)
    scores: list[CellScore] = []
    cells: list[Cell] = []
    rows = list(table_rows(run, text_table(run, chosen)))
    training = {student: _Training(run, lineage) for student, lineage in _lineages(run, rows).items()}
    for sets, row in _parts(rows, run.experiment.reserved if by_sets else 0.0):
        cell = row.cell(run.name)
        # Where graders name outcomes, a text has no points; `outcomes/` counts these cells.
        metrics = () if run.has_outcomes else METRICS
        of_cell = [replace(score_of(cell, metric, run), sets=sets) for metric in metrics]
        scores += training[row.student].counted(of_cell, cell) if row.student in training else of_cell
        if sets == "all":
            cells.append(cell)
    kept = _without_skipped(scores, run.experiment)
    keys = {(s.student, s.grader, s.setting, s.k) for s in kept}
    return _ScoredCells(kept, [c for c in cells if run.has_outcomes or c.key[1:] in keys], rows)


def score_of(cell: Cell, metric: str, run: Run) -> CellScore:
    """One metric of a cell, with what its run says of itself."""
    return CellScore(**cell_facts(cell.key, run), metric=metric, written=cell.written, **asdict(cell.scores[metric]))


def cell_facts(key: CellKey, run: Run) -> dict[str, Any]:
    """A cell's key by name, and what its run says of itself: the fields that every row about a cell begins with."""
    name, student, grader, setting, k = key
    _, catalog, partition = label_parts(setting)
    return {
        "run": name,
        "student": student,
        "grader": grader,
        "catalog": catalog or run.fact("catalog"),
        "partition": partition or (None if catalog else run.fact("partition")),
        "prompts": run.fact("prompts"),
        "seed": run.seed,
        "setting": setting,
        "k": k,
    }


def _lineages(run: Run, rows: Iterable[TableRow] | Iterable[CellKey]) -> dict[str, Lineage]:
    """The lineages of the tuned students of some rows; they are read once."""
    students = dict.fromkeys(row.student for row in rows)
    datasets = {facts.hash: facts for facts in run_datasets(run)}
    known = run.remember("lineages", lambda: student_lineages(run, run.known_experiment, students, datasets))
    return {student: known[student] for student in students if student in known}


class _Training:
    """What one student was trained on, as far as it concerns the combinations of its cells."""

    def __init__(self, run: Run, lineage: Lineage) -> None:
        self._run, self._lineage = run, lineage
        self._pairs = _pairs_seen(lineage)

    def counted(self, scores: Iterable[CellScore], cell: Cell) -> list[CellScore]:
        """Scores with the number of combinations that the student was trained on, or saw two skills of together."""
        trained = sum(c.id in self._lineage.combinations for c in cell.combinations)
        is_elsewhere = bool(_partitions_elsewhere(self._run, self._lineage, cell.key.setting))
        seen = _count_with(self._pairs, cell) if is_elsewhere and self._pairs is not None else None
        return [replace(score, trained_on=trained, seen_pairs=seen) for score in scores]


_SkillPairs = frozenset[frozenset[str]]


def _pairs_seen(lineage: Lineage) -> _SkillPairs | None:
    """Pairs of skills in training data; None if they are unknown."""
    if lineage.skill_sets is None:
        return None
    return frozenset(pair for skills in lineage.skill_sets for pair in _pairs_of(skills))


def _partitions_elsewhere(run: Run, lineage: Lineage, label: str) -> frozenset[str]:
    """The partitions that a student's training data were made under, other than that of the cells with this label."""
    if run.is_imported or not lineage.partitions:
        return frozenset()
    place = place_of(label_parts(label), run.experiment, run.catalog)
    names = {label_parts(label).catalog or run.experiment.catalog, place.catalog.name}
    return other_partitions(lineage, place.partition.name, names)


def _pairs_of(skills: Iterable[str]) -> Iterator[frozenset[str]]:
    return map(frozenset, combinations(sorted(skills), 2))


def _count_with(pairs: _SkillPairs, cell: Cell) -> int:
    """How many combinations of a cell have one of these pairs of skills."""
    return sum(not pairs.isdisjoint(_pairs_of(c.skills)) for c in cell.combinations)


def partition_notes(run: Run, lineages: Mapping[str, Lineage], cells: Iterable[Cell]) -> list[str]:
    """A line for each student that was trained under another partition, with the pairs of skills that it saw."""
    notes = []
    cells = list(cells)
    for student, lineage in lineages.items():
        own = [cell for cell in cells if cell.key.student == student]
        elsewhere = {label: _partitions_elsewhere(run, lineage, label) for label in {c.key.setting for c in own}}
        names = ", ".join(sorted(frozenset[str]().union(*elsewhere.values())))
        if not names:
            continue
        pairs = _pairs_seen(lineage)
        if pairs is None:
            notes.append(f"{student} was trained under the partition {names}; which skills it saw together is unknown")
            continue
        counts = {
            f"{_count_with(pairs, cell)} of {len(cell.combinations)} ({cell.key.setting}, k = {cell.key.k})": None
            for cell in own
            if elsewhere[cell.key.setting] and _count_with(pairs, cell)
        }
        seen = f"combinations with two skills that it saw together: {', '.join(counts) or 'none'}"
        notes.append(f"{student} was trained under the partition {names}; {seen}")
    return notes


def comparable_in(run: Run, cells: Iterable[CellKey]) -> list[ComparableStudent]:
    """The students of some cells, ready for comparison; none for a run whose graders name outcomes."""
    cells = list(cells)
    students = [name for name in dict.fromkeys(key.student for key in cells) if has_settings(run, name)]
    return [] if run.has_outcomes else comparable_students(run, run.known_experiment, students, _lineages(run, cells))


def _parts(rows: Iterable[TableRow], reserved: float) -> Iterator[tuple[str, TableRow]]:
    """Each cell, and its two parts where a share of its skill sets is reserved."""
    for row in rows:
        yield "all", row
        if not reserved or row.k < 2 or label_parts(row.setting).setting != "train":
            continue
        for name, wanted in (("reserved", True), ("seen", False)):
            chosen = [i for i, c in enumerate(row.combinations) if is_reserved(c.skills, reserved) == wanted]
            yield name, row.part(chosen)


def _without_skipped(scores: list[CellScore], experiment: Experiment) -> list[CellScore]:
    """Drop the cells that `stop_below` skipped, unless some of their texts are scored."""
    skipped = {cell[1:] for cell in skipped_cells(experiment, scores)}
    return [s for s in scores if (s.student, s.setting, s.k) not in skipped or s.complete]


def students_without_scores(run: Run, scores: Sequence[CellScore]) -> list[str]:
    """Students whose texts no grader has graded, so that no table lists them; writers of data sets left out."""
    writers = {name for step in run.experiment.steps if step.stage == "dataset" for name in step.student_names}
    with run.read() as journal:
        return sorted(journal.students() - {score.student for score in scores} - writers)


SkippedCell = tuple[str, str, str, int]
"""Step, student, setting and k."""


def skipped_cells(experiment: Experiment, scores: Sequence[CellScore]) -> set[SkippedCell]:
    """Cells that an early stop leaves out: the student's full marks at a smaller k are below it for every grader."""
    values = {
        (s.student, s.grader, s.setting, s.k): s.value
        for s in scores
        if s.metric == "full_marks" and s.sets == "all" and s.value is not None
    }
    skipped: set[SkippedCell] = set()
    for step in experiment.steps:
        if not isinstance(step, EvaluateStep) or step.stop_below is None:
            continue
        for student in step.student_names:
            for setting in dict.fromkeys(cell.label for cell in step.undrawn_cells(experiment.steps)):
                reached = [k for k in sorted(set(step.k)) if _is_below(step, student, setting, k, values)]
                skipped |= {(step.name, student, setting, k) for k in step.k if reached and k > reached[0]}
    return skipped


def _is_below(
    step: EvaluateStep, student: str, setting: str, k: int, values: Mapping[tuple[str, str, str, int], float | None]
) -> bool:
    found = [values.get((student, grader, setting, k)) for grader in step.graders]
    return bool(found) and all(value is not None and value < (step.stop_below or 0.0) for value in found)
