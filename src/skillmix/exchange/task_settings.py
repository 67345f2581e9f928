"""The settings of the Inspect task, and the experiment that they stand for.

The task and the import of its logs make the experiment by the same function, so both draw the same combinations and
write the same prompts as a run of `skillmix run`.
"""

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, fields
from typing import Final, Literal, get_args

from skillmix.calls import ONLY_TURN, GenerateKey, GradeKey, Reply, Request
from skillmix.catalog.catalog import Catalog
from skillmix.catalog.combinations import Combination
from skillmix.catalog.files import load_catalog
from skillmix.checkers.judge import Verdict
from skillmix.errors import UserError, faults_error
from skillmix.experiment.experiment import Experiment, experiment_of
from skillmix.experiment.plan import cells_of
from skillmix.experiment.step_base import setting_label
from skillmix.grading.answers import AnswerStatus
from skillmix.grading.points import METRICS, StudentText, earns_nothing, reasons_of, text_score
from skillmix.grading.reader import Reading, read_grades
from skillmix.prompts.prompt_set import DEFAULT_VARIANT, load_prompts
from skillmix.prompts.rubric import rubric_of
from skillmix.runs.budget import Task
from skillmix.runs.conversations import Conversations
from skillmix.runs.run import rules_named
from skillmix.runs.verdicts import (
    RulesGrader,
    RunGrader,
    answer_of,
    applicable_reasons,
    ballot_of,
    require_checkers,
    votes_of,
)

TaskGrader = Literal["rules", "model", "both"]
"""Code alone, a model alone, or code for the skills with a checker and a model for the rest."""
ROLE: Final = "grader"
"""The model role of Inspect that grades."""
SCORER: Final = "skill_points"
"""The name of the scorer, under which a log keeps the votes."""
FACTS: Final = "skillmix"
"""The key of a log's metadata that holds the settings."""
TURNS_KEY: Final = "skillmix_turns"
"""The key of a sample's store that holds a record of each reply."""
LOG_FORMAT: Final = 1
STUDENT_TEMPERATURE: Final = 0.7
STUDENT_TOKENS: Final = 512
GRADER_TEMPERATURE: Final = 0.7
GRADER_TOKENS: Final = 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class InspectTaskSettings:
    """What one evaluation by the task measures."""

    catalog: str = "paper"
    k: int = 3
    setting: str = "all"
    combinations: int = 100
    generations: int = 3
    seed: int = 0
    partition: str | None = None
    exclude: tuple[str, ...] = ()
    prompts: str = "standard"
    grader: TaskGrader = "rules"
    grader_prompts: str = DEFAULT_VARIANT
    rounds: int = 1
    attempts: int = 3

    def as_document(self) -> dict[str, object]:
        """The settings as a log keeps them."""
        return {**asdict(self), "exclude": list(self.exclude)}

    @property
    def asks_model(self) -> bool:
        """Whether a model grades."""
        return self.grader != "rules"


@dataclass(frozen=True, slots=True)
class AskedBy:
    """A model that Inspect asked, with its decoding."""

    name: str
    """Its name as a student or a grader of the run."""
    model: str
    """Its name in Inspect, such as `openai/gpt-4o`."""
    temperature: float
    max_tokens: int
    top_p: float | None = None
    system: str | None = None

    def document(self, *, prefix: str = "") -> dict[str, object]:
        """The entry of an experiment file."""
        entry: dict[str, object] = {
            "model": f"{prefix}inspect:{self.model}",
            "temperature": self.temperature,
            "max_tokens": self.max_tokens,
            "top_p": self.top_p,
        }
        return entry if self.system is None else {**entry, "system": self.system}


_LIMITS: Final = {"combinations": 100_000, "generations": 1_000, "rounds": 99, "attempts": 99}
_MOST_TEXTS: Final = 1_000_000


def refuse_huge(settings: InspectTaskSettings, *, source: str) -> None:
    """Refuse plans that no evaluation has: a forged log could ask for a draw that fills the memory."""
    faults = [
        f"{name}: {getattr(settings, name)} is above {limit}"
        for name, limit in _LIMITS.items()
        if getattr(settings, name) > limit
    ]
    if not faults and settings.combinations * settings.generations > _MOST_TEXTS:
        faults = [f"combinations and generations make more than {_MOST_TEXTS} texts"]
    if faults:
        raise faults_error(source, faults, hint="Use skillmix run for evaluations of this size.")


def rounds_of(grader: TaskGrader, rounds: int | None) -> int:
    """The number of gradings of a text: code votes once, a model three times unless the user says otherwise."""
    return rounds if rounds is not None else 1 if grader == "rules" else 3


def grader_entry(settings: InspectTaskSettings, asked: AskedBy | None) -> tuple[str, dict[str, object]]:
    """The name and the entry of the grader in an experiment file."""
    if asked is None:
        return "rules", {"model": "rules:", "rounds": settings.rounds}
    prefix = "rules:" if settings.grader == "both" else ""
    own = {"rounds": settings.rounds, "prompts": settings.grader_prompts, "attempts": settings.attempts}
    return asked.name, {**asked.document(prefix=prefix), **own}


def step_entry(settings: InspectTaskSettings, *, students: list[str], grader: str) -> dict[str, object]:
    """The evaluate step of an experiment file; its name says what it draws, so two logs of one draw share a step."""
    label = setting_label(settings.setting, "all")
    name = f"{label}-k{settings.k}-{settings.combinations}x{settings.generations}-{grader}"
    return {
        "name": name,
        "stage": "evaluate",
        "students": students,
        "graders": [grader],
        "settings": [settings.setting],
        "k": [settings.k],
        "combinations": settings.combinations,
        "generations": settings.generations,
    }


def task_experiment(
    settings: InspectTaskSettings, student: AskedBy, grader: AskedBy | None, *, name: str, source: str
) -> Experiment:
    """The experiment that an evaluation by the task stands for; one error reports every fault of the settings."""
    grader_name, entry = grader_entry(settings, grader)
    document = {
        "name": name,
        "seed": settings.seed,
        "catalog": settings.catalog,
        "partition": settings.partition,
        "prompts": settings.prompts,
        "exclude": list(settings.exclude),
        "students": {student.name: student.document()},
        "graders": {grader_name: entry},
        "steps": [step_entry(settings, students=[student.name], grader=grader_name)],
    }
    return experiment_of(document, source=source, checks_outside=True)


def settings_of(document: object, *, source: str) -> InspectTaskSettings:
    """Settings from a log, which anybody may have written: types are checked here, values by the experiment."""
    if not isinstance(document, Mapping):
        raise UserError(f"{source} does not hold the settings of the task.", hint=_NOT_OURS)
    known = {field.name for field in fields(InspectTaskSettings)}
    faults = [f"there is no setting {name!r}" for name in sorted(map(str, document.keys() - known))]
    values: dict[str, object] = {name: value for name, value in document.items() if name in known}
    faults += [f"{name}: {fault}" for name, value in values.items() if (fault := _type_fault(name, value))]
    if faults:
        raise faults_error(source, faults[:20], hint=_NOT_OURS)
    if "exclude" in values:
        values["exclude"] = tuple(values["exclude"])  # type: ignore[arg-type]  # _type_fault has checked it
    return InspectTaskSettings(**values)  # type: ignore[arg-type]  # likewise


_NOT_OURS: Final = "Only logs of the task skillmix/skillmix can be imported."
_TEXTS: Final = ("catalog", "setting", "prompts", "grader_prompts")
_NUMBERS: Final = ("k", "combinations", "generations", "seed", "rounds", "attempts")


def _type_fault(name: str, value: object) -> str | None:
    if name in _TEXTS:
        return None if isinstance(value, str) else "it is not a text"
    if name in _NUMBERS:
        return None if type(value) is int and abs(value) < 2**62 else "it is not a whole number"
    if name == "grader":
        return None if value in get_args(TaskGrader) else f"choose {', '.join(get_args(TaskGrader))}"
    if name == "partition":
        return None if value is None or isinstance(value, str) else "it is not a text"
    is_list = isinstance(value, list) and all(isinstance(one, str) for one in value)
    return None if is_list else "it is not a list of texts"


def refuse_plain(settings: InspectTaskSettings, catalog: Catalog, *, has_outcomes: bool) -> None:
    """Refuse what the task cannot score: outcomes in place of points, and requests without skills."""
    if has_outcomes:
        raise UserError(
            f"The prompts {settings.prompts!r} let graders name outcomes, and the task scores points.",
            hint="Use skillmix run for outcomes.",
        )
    if settings.k < 1:
        raise UserError(
            f"k = {settings.k} asks for no skills of catalogue {catalog.name!r}.", hint="Use k = 1 or more."
        )


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
        given = applicable_reasons(verdict, is_alone=self._grader.is_code_alone) if verdict else {}
        reasons = reasons_of(points, text.combination.skills, text.answer, self._rules, given, is_cut=text.is_cut)
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


_SIGNS = {True: "+", False: "-", None: "?"}


def _because(reason: str | None) -> str:
    return f": {reason}" if reason else ""
