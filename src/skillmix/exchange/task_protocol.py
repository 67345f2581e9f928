"""The protocol of an evaluation as the Inspect task follows it: which message comes next, and which points a text has.

The functions of `skillmix run` and `skillmix scores` compute everything here. The task adds only the calls.
"""

from collections.abc import Iterable
from dataclasses import asdict, dataclass

from skillmix.calls import ONLY_TURN, GenerateKey, GradeKey, Reply, Request
from skillmix.catalog.combinations import Combination
from skillmix.catalog.files import load_catalog
from skillmix.checkers.judge import Verdict
from skillmix.exchange.task_settings import (
    GRADER_TEMPERATURE,
    GRADER_TOKENS,
    STUDENT_TEMPERATURE,
    STUDENT_TOKENS,
    AskedBy,
    InspectTaskSettings,
    refuse_huge,
    refuse_plain,
    task_experiment,
)
from skillmix.experiment.plan import cells_of
from skillmix.grading.answers import AnswerStatus
from skillmix.grading.points import METRICS, Points, StudentText, earns_nothing, reasons_of, text_score
from skillmix.grading.reader import Reading, read_grades
from skillmix.prompts.files import load_prompts
from skillmix.prompts.rubric import rubric_of
from skillmix.runs.budget import Task
from skillmix.runs.conversations import Conversations
from skillmix.runs.graders.run_grader import RunGrader
from skillmix.runs.reading.deciding import answer_of, ballot_of, votes_of
from skillmix.runs.rules_grader import RulesGrader, applicable_reasons, require_checkers
from skillmix.runs.run import rules_named

_STUDENT = AskedBy("student", "student", STUDENT_TEMPERATURE, STUDENT_TOKENS)
_GRADER = AskedBy("grader", "grader", GRADER_TEMPERATURE, GRADER_TOKENS)


@dataclass(frozen=True, slots=True)
class VoteRecord:
    """One reply of a grader, as a log keeps it."""

    round: int
    attempt: int
    reply: str | None
    """None if the provider's filter withheld it."""
    finish: str | None = None
    input_tokens: int | None = None
    output_tokens: int | None = None

    def as_document(self) -> dict[str, object]:
        """The fields by name."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class PointsOfText:
    """The points and metrics of one text; None where unreadable votes leave them open."""

    text: str
    status: AnswerStatus
    points: dict[str, bool | None]
    metrics: dict[str, float | None]
    explanation: str


class TaskProtocol:
    """One evaluation: its combinations, its prompts, and the rules that decide points."""

    def __init__(self, settings: InspectTaskSettings) -> None:
        self.settings = settings
        refuse_huge(settings, source="The arguments of the task")
        asked = _GRADER if settings.asks_model else None
        experiment = task_experiment(settings, _STUDENT, asked, name="inspect", source="The arguments of the task")
        self.catalog = load_catalog(experiment.catalog)
        self.prompts = load_prompts(experiment.prompts)
        refuse_plain(settings, self.catalog, has_outcomes=self.prompts.phrases.outcomes is not None)
        if settings.asks_model:
            self.prompts.grader_file(settings.grader_prompts)
        (self._grader_name, entry), *_ = experiment.graders.items()
        self._conversations = Conversations(
            experiment, self.catalog, {self.prompts.name: self.prompts, experiment.prompts: self.prompts},
            graders=[self._grader_name],
        )  # fmt: skip
        (cell,) = cells_of(experiment, self.catalog)
        self.combinations = cell.combinations
        self._by_id = {combination.id: combination for combination in self.combinations}
        if not settings.asks_model:
            skills = {skill for combination in self.combinations for skill in combination.skills}
            require_checkers(self.catalog, sorted(skills), "rules")
        self._grader = RunGrader(self._grader_name, entry.model, entry.votes, entry.has_code, entry.asked is not None)
        self._code = RulesGrader(self.catalog) if entry.has_code else None
        self._rules = rules_named(experiment.rules)

    @property
    def turns(self) -> int:
        """Turns of a conversation."""
        return self.prompts.turns

    def first(self, combination: str, generation: int) -> Task:
        """The first call of a conversation."""
        return self._conversations.first(_STUDENT.name, self._by_id[combination], generation)

    def next_turn(self, request: Request, reply: Reply) -> Task | None:
        """The student's next call; None after the last turn."""
        assert isinstance(request.key, GenerateKey)  # grading calls have asked_again
        if request.key.turn in (ONLY_TURN, self.turns):
            return None
        return next(iter(self._conversations.follow(request, reply)))

    def text_of(self, combination: str, generation: int, reply: str | None, *, finish: str | None) -> StudentText:
        """The text of a conversation that is over; no reply is a refusal."""
        answer = answer_of(reply, "call", ONLY_TURN if self.turns == 1 else self.turns)
        return StudentText(_STUDENT.name, self._by_id[combination], generation, answer, finish)

    def votes_on(self, text: StudentText) -> list[Task]:
        """The first grading call of each round; none for a text that earns nothing whatever a grader says."""
        if earns_nothing(text.answer, self._rules):
            return []
        key = GenerateKey(text.student, text.combination.id, text.generation, self.turns)
        return list(self._conversations.votes_on(text.answer.text, key, text.combination))

    def asked_again(self, request: Request, reply: Reply) -> Task | None:
        """The next attempt of a round whose reply cannot be read; None if it can, or if no attempt is left."""
        assert isinstance(request.key, GradeKey)  # turns have next_turn
        return next(iter(self._conversations.follow(request, reply)), None)

    def points(self, text: StudentText, votes: Iterable[VoteRecord]) -> PointsOfText:
        """The points of a text from the grader's replies, or from code."""
        combination, answer = text.combination, text.answer
        verdict = self._verdict(combination, answer.text) if self._code is not None else None
        ordered = sorted(votes, key=lambda vote: (vote.round, vote.attempt))
        readings = votes_of((vote.round, self._reading(combination, answer.text, vote)) for vote in ordered)
        ballot = ballot_of(text, self._grader, readings, verdict)
        points = ballot.points(self._rules, self.prompts.phrases)
        names = [criterion.name for criterion in ballot.rubric(self.prompts.phrases).criteria]
        by_name = dict(zip(names, points, strict=True))
        reasons = self._reasons(text, points, verdict)
        lines = [f"{_SIGNS[point]} {name}" + _because(reasons.get(name)) for name, point in by_name.items()]
        return PointsOfText(
            text=answer.text,
            status=answer.status,
            points=by_name,
            metrics={metric: text_score(points, metric) for metric in METRICS},
            explanation="\n".join(lines),
        )

    def _verdict(self, combination: Combination, text: str) -> Verdict:
        assert self._code is not None  # the caller asks for graders with code only
        return self._code.verdict(text, skills=combination.skills, topic=combination.topic)

    def _reading(self, combination: Combination, text: str, vote: VoteRecord) -> Reading | None:
        if vote.reply is None:
            return None
        rubric = rubric_of(combination.skills, combination.topic, phrases=self.prompts.phrases)
        return read_grades(rubric, vote.reply, text=text)

    def _reasons(self, text: StudentText, points: Points, verdict: Verdict | None) -> dict[str, str]:
        given = applicable_reasons(verdict, is_alone=self._grader.is_code_alone) if verdict else {}
        return reasons_of(points, text.combination.skills, text.answer, self._rules, given, is_cut=text.is_cut)


_SIGNS = {True: "+", False: "-", None: "?"}


def _because(reason: str | None) -> str:
    return f": {reason}" if reason else ""
