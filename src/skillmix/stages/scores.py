"""`skillmix scores`: from a run's journal to the cells of its table, without a call."""

from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import asdict, dataclass

from skillmix.core.errors import UserError
from skillmix.core.rubric import Phrases, Rubric, rubric_of
from skillmix.core.scoring import METRICS, Score, summarise, text_score
from skillmix.core.text_rules import RULES, Rules
from skillmix.core.texts import Ballot, ReadCall, StudentText, ballots, read_calls, student_texts
from skillmix.engine.run_folder import RunFolder, find_run
from skillmix.stages.experiment import criteria_of, read_experiment


@dataclass(frozen=True, slots=True)
class RunRecords:
    """What a run's journal says, read anew: texts, and every grader's ballot on each."""

    texts: list[StudentText]
    ballots: list[Ballot]
    phrases: Phrases

    def rubric_of(self, text: StudentText) -> Rubric:
        """The rubric of one text."""
        return rubric_of(text.combination.skills, text.combination.topic, phrases=self.phrases)


def rules_named(name: str) -> Rules:
    """The rules that decide numbers, by name."""
    if name not in RULES:
        raise UserError(f"There are no rules {name!r}.", hint=f"Known: {', '.join(RULES)}.")
    return RULES[name]


def run_records(run: RunFolder) -> RunRecords:
    """Read a run; replies are dropped once they are read, so that memory does not grow with their length."""
    phrases = criteria_of(read_experiment(run))
    with run.read() as journal:
        texts = student_texts(journal.calls("generate"), journal.combinations(), turns=None)
        read = read_calls(texts, journal.calls("grade"), phrases=phrases)
        return RunRecords(texts, ballots(texts, read, rounds=None), phrases)


def run_gradings(run: RunFolder, records: RunRecords) -> Iterator[ReadCall]:
    """Every grading of a run with its reply and its reading, one at a time."""
    with run.read() as journal:
        yield from read_calls(records.texts, journal.calls("grade"), phrases=records.phrases)


def run_scores(run_name: str, *, rules: str = "default") -> list[Score]:
    """Every cell of a run: student, grader, setting, k and metric."""
    chosen = rules_named(rules)
    run = find_run(run_name)
    experiment = read_experiment(run)
    records = run_records(run)
    cells: dict[tuple[str, str, int], dict[str, list[Ballot]]] = defaultdict(lambda: defaultdict(list))
    for ballot in records.ballots:
        combination = ballot.text.combination
        cells[ballot.text.student, ballot.grader, combination.k][combination.id].append(ballot)
    scores = []
    for (student, grader, k), by_combination in sorted(cells.items()):
        points = [[b.points(chosen, records.phrases) for b in group] for group in by_combination.values()]
        statuses = Counter(b.text.answer.status for group in by_combination.values() for b in group)
        for metric in METRICS:
            summary = summarise([[text_score(p, metric) for p in texts] for texts in points], metric)
            scores.append(
                Score(
                    run=run.name,
                    student=student,
                    grader=grader,
                    catalog=_text(experiment.get("catalog")),
                    partition=_text(experiment.get("partition")),
                    prompts=_text(experiment.get("prompts")),
                    seed=_whole(experiment.get("seed")),
                    setting="imported",
                    k=k,
                    metric=metric,
                    format_failures=statuses["no marker"] + statuses["empty"],
                    **asdict(summary),
                )
            )
    return scores


def students_without_scores(run_name: str, scores: list[Score]) -> list[str]:
    """Students of a run whose texts no grader has seen, and who are in no table for that."""
    with find_run(run_name).read() as journal:
        return sorted(journal.students() - {score.student for score in scores})


def _text(value: object) -> str | None:
    return value if isinstance(value, str) else None


def _whole(value: object) -> int | None:
    return value if isinstance(value, int) else None
