"""`skillmix scores`: from a run's journal to the cells of its table, without a call."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import combinations
from typing import Any

from skillmix.catalog.combinations import is_reserved
from skillmix.experiment.experiment import Experiment
from skillmix.experiment.plan import place_of
from skillmix.experiment.step_base import label_parts
from skillmix.experiment.steps import EvaluateStep
from skillmix.grading.points import METRICS
from skillmix.models.lineage import Lineage, other_partitions
from skillmix.runs.run import Run, opened
from skillmix.runs.students import has_settings, run_datasets, student_lineages
from skillmix.runs.texts import text_table
from skillmix.scores.cells import Cell, CellKey, CellScore, largest_cells
from skillmix.scores.compare import Change, ComparableStudent, before_and_after, comparable_students
from skillmix.scores.findings import findings
from skillmix.scores.table_rows import TableRow, table_rows, unnamed_notes
from skillmix.scores.verdicts.contrasts import contrast_result, judged_contrasts
from skillmix.scores.verdicts.format_first import format_warnings
from skillmix.scores.verdicts.main_result import main_result


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
