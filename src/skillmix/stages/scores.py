"""`skillmix scores`: from a run's journal to the cells of its table, without a call."""

from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace

from skillmix.config.catalogs import load_catalog
from skillmix.config.experiment import Experiment
from skillmix.config.prompt_sets import load_prompts
from skillmix.core.errors import UserError
from skillmix.core.rubric import Phrases, Rubric, rubric_of
from skillmix.core.scoring import METRICS, Score, summarise, text_score
from skillmix.core.text_rules import RULES, Rules
from skillmix.core.texts import Ballot, ReadCall, StudentText, ballots, read_calls, student_texts
from skillmix.engine.run_folder import RunFolder, find_run
from skillmix.stages.conversations import TURNS
from skillmix.stages.experiment import criteria_of, experiment_of_run, read_experiment
from skillmix.stages.plan import cells_of, skipped_cells
from skillmix.stages.rules_grader import RulesGrader


@dataclass(frozen=True, slots=True)
class RunRecords:
    """What a run's journal says, read anew: texts, and every grader's ballot on each."""

    texts: list[StudentText]
    ballots: list[Ballot]
    phrases: Phrases
    code: RulesGrader | None = None
    graders_with_code: frozenset[str] = frozenset()

    def rubric_of(self, text: StudentText) -> Rubric:
        """The rubric of one text."""
        return rubric_of(text.combination.skills, text.combination.topic, phrases=self.phrases)


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
        read = read_calls(texts, journal.calls("grade"), phrases=phrases)
        found = ballots(texts, read, rounds=rounds)
    with_code = {n for n, s in experiment.graders.items() if s.model.startswith("rules:")} if experiment else set()
    if not experiment or not with_code:
        return RunRecords(texts, found, phrases)
    code = RulesGrader(load_catalog(experiment.catalog))
    return RunRecords(texts, code.ballots(found, experiment.graders, texts), phrases, code, frozenset(with_code))


def run_gradings(run: RunFolder, records: RunRecords) -> Iterator[ReadCall]:
    """Every grading of a run with its reply and its reading, one at a time."""
    with run.read() as journal:
        yield from read_calls(records.texts, journal.calls("grade"), phrases=records.phrases)


@dataclass(frozen=True, slots=True)
class _Group:
    """The texts behind one row of the table: for each combination its generations, None where one is missing."""

    student: str
    grader: str
    setting: str
    k: int
    texts: list[list[Ballot | None]]


def run_scores(run_name: str, *, rules: str | None = None) -> list[Score]:
    """Every cell of a run: student, grader, setting, k and metric; the run's own rules unless others are named."""
    run = find_run(run_name)
    document = read_experiment(run)
    experiment = experiment_of_run(document)
    chosen = run_rules(run, rules)
    records = run_records(run)
    groups = _planned_groups(experiment, records) if experiment else _found_groups(records)
    scores = []
    for group in groups:
        points = [[b.points(chosen, records.phrases) if b else None for b in texts] for texts in group.texts]
        statuses = Counter(b.text.answer.status for texts in group.texts for b in texts if b)
        for metric in METRICS:
            values = [[text_score(p, metric) if p else None for p in texts] for texts in points]
            scores.append(
                Score(
                    run=run.name,
                    student=group.student,
                    grader=group.grader,
                    catalog=_text(document.get("catalog")),
                    partition=_text(document.get("partition")),
                    prompts=_text(document.get("prompts")),
                    seed=_whole(document.get("seed")),
                    setting=group.setting,
                    k=group.k,
                    metric=metric,
                    format_failures=statuses["no marker"] + statuses["empty"],
                    **asdict(summarise(values, metric)),
                )
            )
    return _without_skipped(scores, experiment) if experiment else scores


def _without_skipped(scores: list[Score], experiment: Experiment) -> list[Score]:
    """An early stop's cells are not missing, they are not there; what was made of one all the same is shown."""
    skipped = {cell[1:] for cell in skipped_cells(experiment, scores)}
    return [s for s in scores if (s.student, s.setting, s.k) not in skipped or s.complete]


def _found_groups(records: RunRecords) -> Iterator[_Group]:
    """The cells of an imported run: whatever is there, by k."""
    cells: dict[tuple[str, str, int], dict[str, list[Ballot | None]]] = defaultdict(lambda: defaultdict(list))
    for ballot in records.ballots:
        combination = ballot.text.combination
        cells[ballot.text.student, ballot.grader, combination.k][combination.id].append(ballot)
    for (student, grader, k), by_combination in sorted(cells.items()):
        yield _Group(student, grader, "imported", k, list(by_combination.values()))


def _planned_groups(experiment: Experiment, records: RunRecords) -> Iterator[_Group]:
    """The cells of an experiment: everything that was to be made, made or not."""
    made = {(b.text.student, b.text.combination.id, b.text.generation, b.grader): b for b in records.ballots}
    for cell in cells_of(experiment, load_catalog(experiment.catalog)):
        for grader in cell.graders:
            texts = [
                [made.get((cell.student, c.id, generation, grader)) for generation in range(cell.generations)]
                for c in cell.combinations
            ]
            yield _Group(cell.student, grader, cell.setting, cell.k, texts)


def students_without_scores(run_name: str, scores: list[Score]) -> list[str]:
    """Students of a run whose texts no grader has seen, and who are in no table for that."""
    with find_run(run_name).read() as journal:
        return sorted(journal.students() - {score.student for score in scores})


def _text(value: object) -> str | None:
    return value if isinstance(value, str) else None


def _whole(value: object) -> int | None:
    return value if isinstance(value, int) else None
