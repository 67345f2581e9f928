"""`skillmix scores`: from a run's journal to the cells of its table, without a call."""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import combinations

from skillmix.catalog.combinations import Combination, is_reserved
from skillmix.experiment.experiment import Experiment
from skillmix.experiment.step_base import setting_label
from skillmix.experiment.steps import EvaluateStep
from skillmix.grading.ballots import Ballot
from skillmix.grading.points import FULL_MARKS, METRICS, Points
from skillmix.models.lineage import Lineage, other_partitions
from skillmix.runs.reading.run_records import RunRecords, run_records
from skillmix.runs.run import Run, opened
from skillmix.runs.students import student_lineages
from skillmix.scores.cells import Cell, CellKey, CellScore, largest_cells
from skillmix.scores.compare import Change, before_and_after, comparable_students


@dataclass(frozen=True, slots=True)
class BallotCell:
    """The texts behind one row of the table: for each combination its generations, None where one is missing."""

    student: str
    grader: str
    setting: str
    k: int
    texts: list[list[Ballot | None]]
    combinations: tuple[Combination, ...]

    def cell(self, run: str, points: Sequence[Sequence[Points | None]]) -> Cell:
        """The same with its points."""
        return Cell(
            key=CellKey(run, self.student, self.grader, self.setting, self.k),
            combinations=self.combinations,
            points=tuple(map(tuple, points)),
            statuses=tuple(tuple(b.text.answer.status if b else None for b in texts) for texts in self.texts),
        )


@dataclass(frozen=True, slots=True)
class ScoredRun:
    """The cells of a run's table, and what tuning changed."""

    scores: list[CellScore]
    changes: list[Change]
    """Tuned students against their bases, where a run has both."""
    notes: list[str]
    """What a reader of the table must know about the training of its students."""


def run_scores(run: Run | str, *, rules: str | None = None, by_sets: bool = False) -> list[CellScore]:
    """Every cell of a run: student, grader, setting, k and metric; the run's own rules unless others are named.

    By sets, the cells on train skills come again in two parts: skill sets that are reserved, and those that data sets
    may hold.
    """
    return _scored(opened(run), rules, by_sets=by_sets)[0]


def scored_run(run: Run | str, *, rules: str | None = None, by_sets: bool = False) -> ScoredRun:
    """The scores of a run, and every tuned student beside its base."""
    run = opened(run)
    scores, cells = _scored(run, rules, by_sets=by_sets)
    largest = largest_cells(cells)
    return ScoredRun(scores, _changes(run, largest), _partition_notes(run, _lineages(run, largest), scores))


def scored_cells(run: Run | str, *, rules: str | None = None) -> dict[CellKey, Cell]:
    """The cells of a run's table by key, with the points of their texts."""
    return largest_cells(_scored(opened(run), rules, by_sets=False)[1])


def _scored(run: Run, rules: str | None, *, by_sets: bool) -> tuple[list[CellScore], list[Cell]]:
    chosen = run.rules(rules)
    records = run_records(run)
    scores: list[CellScore] = []
    cells: list[Cell] = []
    groups = list(groups_of(run, records))
    training = {student: _Training(run, lineage) for student, lineage in _lineages(run, groups).items()}
    for sets, group in _parts(groups, run.experiment.leakage.reserved if by_sets else 0.0):
        points = [[b.points(chosen, run.phrases) if b else None for b in texts] for texts in group.texts]
        cell = group.cell(run.name, points)
        of_cell = [replace(score_of(cell, metric, run), sets=sets) for metric in METRICS]
        scores += training[group.student].counted(of_cell, group) if group.student in training else of_cell
        if sets == "all":
            cells.append(cell)
    return _without_skipped(scores, run.experiment), cells


def score_of(cell: Cell, metric: str, run: Run) -> CellScore:
    """One metric of a cell, with what its run says of itself."""
    name, student, grader, setting, k = cell.key
    return CellScore(
        run=name,
        student=student,
        grader=grader,
        catalog=run.fact("catalog"),
        partition=run.fact("partition"),
        prompts=run.fact("prompts"),
        seed=run.seed,
        setting=setting,
        k=k,
        metric=metric,
        written=cell.written,
        **asdict(cell.scores[metric]),
    )


def _lineages(run: Run, rows: Iterable[BallotCell] | Iterable[CellKey]) -> dict[str, Lineage]:
    """The lineages of the tuned students of some rows; they are read once."""
    students = dict.fromkeys(row.student for row in rows)
    known = run.remember("lineages", lambda: student_lineages(run, run.experiment, students, {}))
    return {student: known[student] for student in students if student in known}


class _Training:
    """What one student was trained on, as far as it concerns the combinations of its cells."""

    def __init__(self, run: Run, lineage: Lineage) -> None:
        self._combinations = lineage.combinations
        self._pairs = pairs_seen_elsewhere(run, lineage)

    def counted(self, scores: Iterable[CellScore], group: BallotCell) -> list[CellScore]:
        """Scores with the number of combinations that the student was trained on, or saw two skills of together."""
        trained, pairs = sum(c.id in self._combinations for c in group.combinations), self._pairs
        seen = None if pairs is None else sum(not pairs.isdisjoint(_pairs_of(c.skills)) for c in group.combinations)
        return [replace(score, trained_on=trained, seen_pairs=seen) for score in scores]


def pairs_seen_elsewhere(run: Run, lineage: Lineage) -> frozenset[frozenset[str]] | None:
    """Pairs of skills in training data, if those were made under another partition than the run's and are known."""
    if not partitions_elsewhere(run, lineage) or lineage.skill_sets is None:
        return None
    return frozenset(pair for skills in lineage.skill_sets for pair in _pairs_of(skills))


def partitions_elsewhere(run: Run, lineage: Lineage) -> frozenset[str]:
    """The partitions other than the run's that a student's training data were made under."""
    if run.is_imported:
        return frozenset()
    here = run.experiment.partition or run.catalog.default_partition
    return other_partitions(lineage, here, {run.experiment.catalog, run.catalog.name})


def _pairs_of(skills: Iterable[str]) -> Iterator[frozenset[str]]:
    return map(frozenset, combinations(sorted(skills), 2))


def _partition_notes(run: Run, lineages: Mapping[str, Lineage], scores: Sequence[CellScore]) -> list[str]:
    """A line for each student that was trained under another partition, and for each of its cells."""
    notes = []
    for student, lineage in lineages.items():
        names = ", ".join(sorted(partitions_elsewhere(run, lineage)))
        if names and lineage.skill_sets is None:
            notes.append(f"{student} was trained under the partition {names}; which skills it saw together is unknown.")
        elif names:
            cells = [
                f"{score.seen_pairs} of {score.combinations} ({score.setting}, k = {score.k})"
                for score in scores
                if score.student == student and score.sets == "all" and score.metric == FULL_MARKS and score.seen_pairs
            ]
            seen = f"combinations with two skills that it saw together: {', '.join(dict.fromkeys(cells)) or 'none'}"
            notes.append(f"{student} was trained under the partition {names}; {seen}.")
    return notes


def _changes(run: Run, cells: Mapping[CellKey, Cell]) -> list[Change]:
    students = dict.fromkeys(key.student for key in cells)
    lineages = _lineages(run, cells)
    if not lineages:
        return []
    return before_and_after(comparable_students(run, run.experiment, students, lineages), cells)


def groups_of(run: Run, records: RunRecords) -> Iterator[BallotCell]:
    """The cells of a run: those that were planned, or those that an import has texts for."""
    return _imported_groups(records) if run.is_imported else _planned_groups(run, records)


def _parts(groups: Iterable[BallotCell], reserved: float) -> Iterator[tuple[str, BallotCell]]:
    """Each cell, and its two parts where a share of its skill sets is reserved."""
    for group in groups:
        yield "all", group
        if not reserved or group.k < 2 or group.setting != "train":
            continue
        for name, wanted in (("reserved", True), ("seen", False)):
            chosen = [i for i, c in enumerate(group.combinations) if is_reserved(c.skills, reserved) == wanted]
            combinations = tuple(group.combinations[i] for i in chosen)
            yield name, replace(group, texts=[group.texts[i] for i in chosen], combinations=combinations)


def _without_skipped(scores: list[CellScore], experiment: Experiment) -> list[CellScore]:
    """Drop the cells that `stop_below` skipped, unless some of their texts are scored."""
    skipped = {cell[1:] for cell in skipped_cells(experiment, scores)}
    return [s for s in scores if (s.student, s.setting, s.k) not in skipped or s.complete]


def _imported_groups(records: RunRecords) -> Iterator[BallotCell]:
    """The cells of an imported run: one for each student, grader and k."""
    cells: dict[tuple[str, str, int], dict[str, list[Ballot | None]]] = defaultdict(lambda: defaultdict(list))
    for ballot in records.ballots:
        combination = ballot.text.combination
        cells[ballot.text.student, ballot.grader, combination.k][combination.id].append(ballot)
    for (student, grader, k), by_combination in sorted(cells.items()):
        known = tuple(texts[0].text.combination for texts in by_combination.values() if texts[0])
        yield BallotCell(student, grader, "imported", k, list(by_combination.values()), known)


def _planned_groups(run: Run, records: RunRecords) -> Iterator[BallotCell]:
    """The cells of an experiment: all planned texts, those that are missing included."""
    ballots = {(b.text.student, b.text.combination.id, b.text.generation, b.grader): b for b in records.ballots}
    for cell in run.cells:
        for grader in cell.graders:
            texts = [
                [ballots.get((cell.student, c.id, generation, grader)) for generation in range(cell.generations)]
                for c in cell.combinations
            ]
            yield BallotCell(cell.student, grader, cell.label, cell.k, texts, cell.combinations)


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
            for setting in (setting_label(name, step.sets) for name in step.settings):
                reached = [k for k in sorted(set(step.k)) if _is_below(step, student, setting, k, values)]
                skipped |= {(step.name, student, setting, k) for k in step.k if reached and k > reached[0]}
    return skipped


def _is_below(
    step: EvaluateStep, student: str, setting: str, k: int, values: Mapping[tuple[str, str, str, int], float | None]
) -> bool:
    found = [values.get((student, grader, setting, k)) for grader in step.graders]
    return bool(found) and all(value is not None and value < (step.stop_below or 0.0) for value in found)
