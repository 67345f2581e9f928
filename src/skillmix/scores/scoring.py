"""`skillmix scores`: from a run's journal to the cells of its table, without a call."""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace

from skillmix.catalog.combinations import Combination, is_reserved
from skillmix.catalog.files import load_catalog
from skillmix.experiment.experiment import Experiment
from skillmix.experiment.plan import cells_of
from skillmix.experiment.steps import EvaluateStep
from skillmix.grading.ballots import Ballot
from skillmix.grading.points import METRICS, Points
from skillmix.runs.experiment_copy import experiment_of_run, read_experiment
from skillmix.runs.reading.run_records import RunRecords, run_records, run_rules
from skillmix.runs.run import RunFolder, find_run
from skillmix.runs.students import student_lineages, trained_combinations
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


def run_scores(run_name: str, *, rules: str | None = None, by_sets: bool = False) -> list[CellScore]:
    """Every cell of a run: student, grader, setting, k and metric; the run's own rules unless others are named.

    By sets, the cells on train skills come again in two parts: skill sets that are reserved, and those that data sets
    may hold.
    """
    run = find_run(run_name)
    return _scored(run, read_experiment(run), rules, by_sets=by_sets)[0]


def scored_run(run_name: str, *, rules: str | None = None, by_sets: bool = False) -> ScoredRun:
    """The scores of a run, and every tuned student beside its base."""
    run = find_run(run_name)
    document = read_experiment(run)
    scores, cells = _scored(run, document, rules, by_sets=by_sets)
    return ScoredRun(scores, _changes(run, experiment_of_run(document), largest_cells(cells)))


def _scored(
    run: RunFolder, document: Mapping[str, object], rules: str | None, *, by_sets: bool
) -> tuple[list[CellScore], list[Cell]]:
    experiment = experiment_of_run(document)
    chosen = run_rules(run, rules)
    records = run_records(run)
    scores: list[CellScore] = []
    cells: list[Cell] = []
    trained = trained_combinations(run, experiment) if experiment else {}
    for sets, group in _parts(groups_of(experiment, records), experiment if by_sets else None):
        points = [[b.points(chosen, records.phrases) if b else None for b in texts] for texts in group.texts]
        cell = group.cell(run.name, points)
        known = _known_of(group, trained.get(group.student))
        scores += [replace(score_of(cell, metric, document), sets=sets, trained_on=known) for metric in METRICS]
        if sets == "all":
            cells.append(cell)
    return (_without_skipped(scores, experiment) if experiment else scores), cells


def score_of(cell: Cell, metric: str, document: Mapping[str, object]) -> CellScore:
    """One metric of a cell, with what the run's document says of it."""
    run, student, grader, setting, k = cell.key
    return CellScore(
        run=run,
        student=student,
        grader=grader,
        catalog=_text(document.get("catalog")),
        partition=_text(document.get("partition")),
        prompts=_text(document.get("prompts")),
        seed=_whole(document.get("seed")),
        setting=setting,
        k=k,
        metric=metric,
        written=cell.written,
        **asdict(cell.scores[metric]),
    )


def _changes(run: RunFolder, experiment: Experiment | None, cells: Mapping[CellKey, Cell]) -> list[Change]:
    students = dict.fromkeys(key.student for key in cells)
    lineages = student_lineages(run, experiment, students, {})
    if not lineages:
        return []
    return before_and_after(comparable_students(run, experiment, students, lineages), cells)


def groups_of(experiment: Experiment | None, records: RunRecords) -> Iterator[BallotCell]:
    """The cells of a run: those that were planned, or whatever an import brought."""
    return _planned_groups(experiment, records) if experiment else _found_groups(records)


def _parts(groups: Iterable[BallotCell], experiment: Experiment | None) -> Iterator[tuple[str, BallotCell]]:
    """Each cell, and its two parts where the experiment reserves some of its skill sets."""
    for group in groups:
        yield "all", group
        if experiment is None or not experiment.leakage.reserved or group.k < 2 or group.setting != "train":
            continue
        share = experiment.leakage.reserved
        for name, wanted in (("reserved", True), ("seen", False)):
            places = [i for i, c in enumerate(group.combinations) if is_reserved(c.skills, share) == wanted]
            combinations = tuple(group.combinations[i] for i in places)
            yield name, replace(group, texts=[group.texts[i] for i in places], combinations=combinations)


def _known_of(group: BallotCell, trained: frozenset[str] | None) -> int | None:
    return None if trained is None else sum(c.id in trained for c in group.combinations)


def _without_skipped(scores: list[CellScore], experiment: Experiment) -> list[CellScore]:
    """An early stop's cells are not missing, they are not there; what was made of one all the same is shown."""
    skipped = {cell[1:] for cell in skipped_cells(experiment, scores)}
    return [s for s in scores if (s.student, s.setting, s.k) not in skipped or s.complete]


def _found_groups(records: RunRecords) -> Iterator[BallotCell]:
    """The cells of an imported run: whatever is there, by k."""
    cells: dict[tuple[str, str, int], dict[str, list[Ballot | None]]] = defaultdict(lambda: defaultdict(list))
    for ballot in records.ballots:
        combination = ballot.text.combination
        cells[ballot.text.student, ballot.grader, combination.k][combination.id].append(ballot)
    for (student, grader, k), by_combination in sorted(cells.items()):
        known = tuple(texts[0].text.combination for texts in by_combination.values() if texts[0])
        yield BallotCell(student, grader, "imported", k, list(by_combination.values()), known)


def _planned_groups(experiment: Experiment, records: RunRecords) -> Iterator[BallotCell]:
    """The cells of an experiment: everything that was to be made, made or not."""
    made = {(b.text.student, b.text.combination.id, b.text.generation, b.grader): b for b in records.ballots}
    for cell in cells_of(experiment, load_catalog(experiment.catalog)):
        for grader in cell.graders:
            texts = [
                [made.get((cell.student, c.id, generation, grader)) for generation in range(cell.generations)]
                for c in cell.combinations
            ]
            yield BallotCell(cell.student, grader, cell.setting, cell.k, texts, cell.combinations)


def makes_data(run_name: str) -> bool:
    """Whether a run trains or makes data sets, so that reserved skill sets mean something."""
    experiment = experiment_of_run(read_experiment(find_run(run_name)))
    return experiment is not None and any(step.stage in ("dataset", "train") for step in experiment.steps)


def students_without_scores(run_name: str, scores: list[CellScore]) -> list[str]:
    """Students of a run whose texts no grader has seen, and who are in no table for that."""
    run = find_run(run_name)
    experiment = experiment_of_run(read_experiment(run))
    writers = (
        {name for step in experiment.steps if step.stage == "dataset" for name in step.student_names}
        if experiment
        else set()
    )
    with run.read() as journal:
        return sorted(journal.students() - {score.student for score in scores} - writers)


def _text(value: object) -> str | None:
    return value if isinstance(value, str) else None


def _whole(value: object) -> int | None:
    return value if isinstance(value, int) else None


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
            for setting in step.settings:
                reached = [k for k in sorted(set(step.k)) if _is_below(step, student, setting, k, values)]
                skipped |= {(step.name, student, setting, k) for k in step.k if reached and k > reached[0]}
    return skipped


def _is_below(
    step: EvaluateStep, student: str, setting: str, k: int, values: Mapping[tuple[str, str, str, int], float | None]
) -> bool:
    found = [values.get((student, grader, setting, k)) for grader in step.graders]
    return bool(found) and all(value is not None and value < (step.stop_below or 0.0) for value in found)
