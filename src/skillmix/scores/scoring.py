"""`skillmix scores`: from a run's journal to the cells of its table, without a call."""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace

from skillmix.config.catalogs import load_catalog
from skillmix.config.experiment import Experiment
from skillmix.config.prompt_sets import load_prompts
from skillmix.core.before_after import Change, before_and_after
from skillmix.core.cells import Cell, Place, largest_cells
from skillmix.core.combinations import Combination, is_reserved
from skillmix.core.errors import UserError
from skillmix.core.reasons import reasons_of
from skillmix.core.rubric import Phrases, Rubric, rubric_of
from skillmix.core.scoring import METRICS, Metric, Points, Score
from skillmix.core.text_rules import RULES, Rules
from skillmix.core.texts import Ballot, ReadCall, Rounds, StudentText, ballots, read_calls, student_texts
from skillmix.engine.run_folder import RunFolder, find_run
from skillmix.stages.conversations import TURNS
from skillmix.stages.experiment import criteria_of, experiment_of_run, read_experiment
from skillmix.stages.plan import cells_of, data_writers, skipped_cells
from skillmix.stages.report_lineage import run_contenders, run_lineages
from skillmix.stages.rules_grader import RulesGrader, applicable_reasons, graders_with_code
from skillmix.stages.trained_models import trained_combinations
from skillmix.verify.verdict import Verdict


@dataclass(frozen=True, slots=True)
class RunRecords:
    """What a run's journal says, read anew: texts, and every grader's ballot on each."""

    texts: list[StudentText]
    ballots: list[Ballot]
    phrases: Phrases
    rounds: Rounds | None = None
    """Votes that count, by grader; None for an imported run, where all do."""
    code: RulesGrader | None = None
    graders_with_code: Mapping[str, bool] = field(default_factory=dict)
    """Graders of which code is a part, and whether it decides alone."""

    def rubric_of(self, text: StudentText) -> Rubric:
        """The rubric of one text."""
        return rubric_of(text.combination.skills, text.combination.topic, phrases=self.phrases)

    def verdict(self, ballot: Ballot) -> Verdict | None:
        """What code found in a text; nothing is known under graders without code."""
        if self.code is None or ballot.grader not in self.graders_with_code:
            return None
        text = ballot.text
        return self.code.verdict(text.answer.text, skills=text.combination.skills, topic=text.combination.topic)

    def reasons(self, ballot: Ballot, points: Points, rules: Rules, verdict: Verdict | None) -> dict[str, str]:
        """Why code denied points of a text, by criterion."""
        is_alone = self.graders_with_code.get(ballot.grader, False)
        found = applicable_reasons(verdict, is_alone=is_alone) if verdict else {}
        return reasons_of(points, ballot.text.combination.skills, ballot.text.answer, rules, found)


def rules_named(name: str) -> Rules:
    """The rules that decide numbers, by name."""
    if name not in RULES:
        raise UserError(f"There are no rules {name!r}.", hint=f"Known: {', '.join(RULES)}.")
    return RULES[name]


def run_rules(run: RunFolder, name: str | None = None) -> Rules:
    """The rules of that name, or the run's own."""
    experiment = experiment_of_run(read_experiment(run))
    chosen = rules_named(name or (experiment.rules if experiment else "default"))
    return replace(chosen, missing_marker=experiment.answer.missing_marker) if experiment else chosen


def run_records(run: RunFolder) -> RunRecords:
    """Read a run; replies are dropped once they are read, so that memory does not grow with their length."""
    document = read_experiment(run)
    experiment = experiment_of_run(document)
    phrases = load_prompts(experiment.prompts).phrases if experiment else criteria_of(document)
    rounds = {name: settings.votes for name, settings in experiment.graders.items()} if experiment else None
    with run.read() as journal:
        calls = journal.calls("generate")
        texts = student_texts(calls, journal.combinations(), turns=TURNS if experiment else None)
        read = read_calls(texts, journal.calls("grade"), phrases=phrases, rounds=rounds)
        found = ballots(texts, read, rounds=rounds)
    with_code = graders_with_code(experiment.graders) if experiment else {}
    if not experiment or not with_code:
        return RunRecords(texts, found, phrases, rounds)
    code = RulesGrader(load_catalog(experiment.catalog))
    judged = code.ballots(found, experiment.graders, texts)
    return RunRecords(texts, judged, phrases, rounds, code, with_code)


def run_gradings(run: RunFolder, records: RunRecords) -> Iterator[ReadCall]:
    """Every grading of a run that counts, with its reply and its reading, one at a time."""
    with run.read() as journal:
        yield from read_calls(records.texts, journal.calls("grade"), phrases=records.phrases, rounds=records.rounds)


@dataclass(frozen=True, slots=True)
class Group:
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
            place=Place(run, self.student, self.grader, self.setting, self.k),
            combinations=self.combinations,
            points=tuple(map(tuple, points)),
            statuses=tuple(tuple(b.text.answer.status if b else None for b in texts) for texts in self.texts),
        )


@dataclass(frozen=True, slots=True)
class ScoredRun:
    """The cells of a run's table, and what tuning changed."""

    scores: list[Score]
    changes: list[Change]
    """Tuned students against their bases, where a run has both."""


def run_scores(run_name: str, *, rules: str | None = None, by_sets: bool = False) -> list[Score]:
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
) -> tuple[list[Score], list[Cell]]:
    experiment = experiment_of_run(document)
    chosen = run_rules(run, rules)
    records = run_records(run)
    scores: list[Score] = []
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


def score_of(cell: Cell, metric: Metric, document: Mapping[str, object]) -> Score:
    """One metric of a cell, with what the run's document says of it."""
    run, student, grader, setting, k = cell.place
    return Score(
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
        format_failures=cell.format_failures,
        written=cell.written,
        **asdict(cell.summary(metric)),
    )


def _changes(run: RunFolder, experiment: Experiment | None, cells: Mapping[Place, Cell]) -> list[Change]:
    students = dict.fromkeys(place.student for place in cells)
    lineages = run_lineages(run, experiment, students, ())
    if not lineages:
        return []
    return before_and_after(run_contenders(run, experiment, students, lineages), cells)


def groups_of(experiment: Experiment | None, records: RunRecords) -> Iterator[Group]:
    """The cells of a run: those that were planned, or whatever an import brought."""
    return _planned_groups(experiment, records) if experiment else _found_groups(records)


def _parts(groups: Iterable[Group], experiment: Experiment | None) -> Iterator[tuple[str, Group]]:
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


def _known_of(group: Group, trained: frozenset[str] | None) -> int | None:
    return None if trained is None else sum(c.id in trained for c in group.combinations)


def _without_skipped(scores: list[Score], experiment: Experiment) -> list[Score]:
    """An early stop's cells are not missing, they are not there; what was made of one all the same is shown."""
    skipped = {cell[1:] for cell in skipped_cells(experiment, scores)}
    return [s for s in scores if (s.student, s.setting, s.k) not in skipped or s.complete]


def _found_groups(records: RunRecords) -> Iterator[Group]:
    """The cells of an imported run: whatever is there, by k."""
    cells: dict[tuple[str, str, int], dict[str, list[Ballot | None]]] = defaultdict(lambda: defaultdict(list))
    for ballot in records.ballots:
        combination = ballot.text.combination
        cells[ballot.text.student, ballot.grader, combination.k][combination.id].append(ballot)
    for (student, grader, k), by_combination in sorted(cells.items()):
        known = tuple(texts[0].text.combination for texts in by_combination.values() if texts[0])
        yield Group(student, grader, "imported", k, list(by_combination.values()), known)


def _planned_groups(experiment: Experiment, records: RunRecords) -> Iterator[Group]:
    """The cells of an experiment: everything that was to be made, made or not."""
    made = {(b.text.student, b.text.combination.id, b.text.generation, b.grader): b for b in records.ballots}
    for cell in cells_of(experiment, load_catalog(experiment.catalog)):
        for grader in cell.graders:
            texts = [
                [made.get((cell.student, c.id, generation, grader)) for generation in range(cell.generations)]
                for c in cell.combinations
            ]
            yield Group(cell.student, grader, cell.setting, cell.k, texts, cell.combinations)


def makes_data(run_name: str) -> bool:
    """Whether a run trains or makes data sets, so that reserved skill sets mean something."""
    experiment = experiment_of_run(read_experiment(find_run(run_name)))
    return experiment is not None and any(step.stage in ("dataset", "train") for step in experiment.steps)


def students_without_scores(run_name: str, scores: list[Score]) -> list[str]:
    """Students of a run whose texts no grader has seen, and who are in no table for that."""
    run = find_run(run_name)
    experiment = experiment_of_run(read_experiment(run))
    writers = {name for step in experiment.steps for name in data_writers(step)} if experiment else set()
    with run.read() as journal:
        return sorted(journal.students() - {score.student for score in scores} - writers)


def _text(value: object) -> str | None:
    return value if isinstance(value, str) else None


def _whole(value: object) -> int | None:
    return value if isinstance(value, int) else None
