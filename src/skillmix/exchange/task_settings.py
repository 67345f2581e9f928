"""The settings of the Inspect task, and the corresponding experiment.

The task and the import of its logs create the experiment with the same function, so they draw the same combinations and
fill the same prompts as `skillmix run`.
"""

from collections.abc import Iterable, Mapping
from typing import Annotated, Any, Final, Literal, NamedTuple

from pydantic import BaseModel, ConfigDict, Field, Strict, model_validator

from skillmix.calls import ONLY_TURN, GenerateKey, GradeKey, Reply, Request
from skillmix.catalog.catalog import Catalog
from skillmix.catalog.files import load_catalog
from skillmix.errors import UserError
from skillmix.experiment.experiment import Experiment, experiment_of
from skillmix.experiment.plan import cells_of
from skillmix.experiment.step_base import setting_label
from skillmix.files import validated
from skillmix.grading.points import StudentText, earns_nothing, reasons_of
from skillmix.grading.reader import Reading, read_grades
from skillmix.prompts.prompt_set import DEFAULT_VARIANT, load_prompts
from skillmix.prompts.rubric import rubric_of
from skillmix.render import point_line
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
"""The grader: code, a model, or both, with code for skills that have a checker and a model for all other criteria."""
ROLE: Final = "grader"
"""The name of the grading model's role in Inspect."""
SCORER: Final = "skill_points"
"""The name of the scorer, under which a log stores the votes."""
FACTS: Final = "skillmix"
"""The key of the settings in a log's metadata."""
TURNS_KEY: Final = "skillmix_turns"
"""The key in a sample's store for the records of all replies."""
LOG_FORMAT: Final = 1
FILTERED: Final = "content_filter"
"""The stop reason of a reply that a provider's filter withheld."""
STUDENT_DECODING: Final[Mapping[str, Any]] = {"temperature": 0.7, "max_tokens": 512}
GRADER_DECODING: Final[Mapping[str, Any]] = {"temperature": 0.7, "max_tokens": 1024}


class InspectTaskSettings(BaseModel):
    """The settings of one evaluation by the task; limits reject forged logs whose draw would fill the memory."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    catalog: str = "paper"
    k: int = 3
    setting: str = "all"
    combinations: Annotated[int, Field(le=100_000)] = 100
    generations: Annotated[int, Field(le=1_000)] = 3
    seed: int = 0
    partition: str | None = None
    exclude: Annotated[tuple[str, ...], Strict(False)] = ()  # JSON has no tuples
    prompts: str = "standard"
    grader: TaskGrader = "rules"
    grader_prompts: str = DEFAULT_VARIANT
    rounds: Annotated[int, Field(le=99)] = 1
    attempts: Annotated[int, Field(le=99)] = 3

    @model_validator(mode="after")
    def _not_too_many_texts(self) -> "InspectTaskSettings":
        if self.combinations * self.generations > _MOST_TEXTS:
            raise ValueError(f"combinations × generations is more than {_MOST_TEXTS:,} texts; use skillmix run")
        return self

    @property
    def asks_model(self) -> bool:
        """Whether a model grades the texts."""
        return self.grader != "rules"


_MOST_TEXTS: Final = 1_000_000


def settings_of(document: object, *, source: str) -> InspectTaskSettings:
    """Parse the settings of the task or of an untrusted log; the experiment validates the values later."""
    hint = f"The settings of the task are {', '.join(InspectTaskSettings.model_fields)}."
    return validated(InspectTaskSettings, document, source=source, hint=hint)


class AskedBy(NamedTuple):
    """A model that Inspect called: its name in the run, its name in Inspect, and its keys for an experiment file."""

    name: str
    model: str
    decoding: dict[str, object]


def task_experiment(
    settings: InspectTaskSettings, student: AskedBy, grader: AskedBy | None, *, name: str, source: str
) -> Experiment:
    """Create the experiment for an evaluation by the task; one error lists all faults in the settings."""
    if grader is None:
        grader_name, entry = "rules", {"model": "rules:", "rounds": settings.rounds}
    else:
        grader_name, prefix = grader.name, "rules:" if settings.grader == "both" else ""
        votes = {"rounds": settings.rounds, "prompts": settings.grader_prompts, "attempts": settings.attempts}
        entry = {"model": f"{prefix}inspect:{grader.model}", **grader.decoding, **votes}
    draw = f"k{settings.k}-{settings.combinations}x{settings.generations}"
    step = {
        # The name identifies the draw of the step, so two logs with the same draw share a step.
        "name": f"{setting_label(settings.setting, 'all')}-{draw}-{grader_name}",
        "stage": "evaluate",
        "students": [student.name],
        "graders": [grader_name],
        "settings": [settings.setting],
        "k": [settings.k],
        **settings.model_dump(include={"combinations", "generations"}),
    }
    document = {
        "name": name,
        **settings.model_dump(include={"seed", "catalog", "partition", "prompts"}),
        "exclude": list(settings.exclude),
        "students": {student.name: {"model": f"inspect:{student.model}", **student.decoding}},
        "graders": {grader_name: entry},
        "steps": [step],
    }
    return experiment_of(document, source=source, checks_outside=True)


def refuse_plain(settings: InspectTaskSettings, catalog: Catalog, *, has_outcomes: bool) -> None:
    """Reject evaluations that the task cannot score: outcomes instead of points, and requests without skills."""
    if has_outcomes:
        raise UserError(
            f"With the prompts {settings.prompts!r}, graders name outcomes, but the task can score only points.",
            hint="Use skillmix run for outcomes.",
        )
    if settings.k < 1:
        raise UserError(f"With k = {settings.k}, texts show no skills of {catalog.name!r}.", hint="Use k = 1 or more.")


_STUDENT: Final = AskedBy("student", "student", dict(STUDENT_DECODING))
_GRADER: Final = AskedBy("grader", "grader", dict(GRADER_DECODING))


class TaskProtocol:
    """One evaluation, with its combinations, its prompts, and the rules that determine points."""

    def __init__(self, settings: InspectTaskSettings) -> None:
        self.settings = settings
        asked = _GRADER if settings.asks_model else None
        experiment = task_experiment(settings, _STUDENT, asked, name="inspect", source="The arguments of the task")
        self.catalog = load_catalog(experiment.catalog)
        self.prompts = load_prompts(experiment.prompts)
        refuse_plain(settings, self.catalog, has_outcomes=self.prompts.phrases.outcomes is not None)
        if settings.asks_model:
            self.prompts.grader_file(settings.grader_prompts)
        (self._grader_name, entry), *_ = experiment.graders.items()
        prompts = {self.prompts.name: self.prompts, experiment.prompts: self.prompts}
        self._conversations = Conversations(experiment, self.catalog, prompts, graders=[self._grader_name])
        (cell,) = cells_of(experiment, self.catalog)
        self.combinations = cell.combinations
        self._by_id = {combination.id: combination for combination in self.combinations}
        if not settings.asks_model:
            skills = {skill for combination in self.combinations for skill in combination.skills}
            require_checkers(self.catalog, sorted(skills), "rules")
        self._grader = RunGrader(self._grader_name, entry.model, entry.votes, entry.has_code, entry.asked is not None)
        self._code = RulesGrader(self.catalog) if entry.has_code else None
        self._rules = rules_named(experiment.rules)

    def first(self, combination: str, generation: int) -> Task:
        """Return the first call of a conversation."""
        return self._conversations.first(_STUDENT.name, self._by_id[combination], generation)

    def next_turn(self, request: Request, reply: Reply) -> Task | None:
        """Return the student's next call; None after the last turn."""
        assert isinstance(request.key, GenerateKey)  # grading calls go to `asked_again`
        if request.key.turn in (ONLY_TURN, self.prompts.turns):
            return None
        return next(iter(self._conversations.follow(request, reply)))

    def text_of(self, combination: str, generation: int, reply: str | None, *, finish: str | None) -> StudentText:
        """Return the text of a finished conversation; a missing reply counts as a refusal."""
        answer = answer_of(reply, "call", ONLY_TURN if self.prompts.turns == 1 else self.prompts.turns)
        return StudentText(_STUDENT.name, self._by_id[combination], generation, answer, finish)

    def votes_on(self, text: StudentText) -> list[Task]:
        """Return the first grading call of each round; empty if no model grades or the text earns nothing anyway."""
        if not self.settings.asks_model or earns_nothing(text.answer, self._rules):
            return []
        key = GenerateKey(text.student, text.combination.id, text.generation, self.prompts.turns)
        return list(self._conversations.votes_on(text.answer.text, key, text.combination))

    def asked_again(self, request: Request, reply: Reply) -> Task | None:
        """Return the next attempt if a round's reply cannot be parsed; None if it can, or if no attempt is left."""
        assert isinstance(request.key, GradeKey)  # the student's calls go to `next_turn`
        return next(iter(self._conversations.follow(request, reply)), None)

    def points(self, text: StudentText, votes: Iterable[Mapping[str, Any]]) -> tuple[dict[str, bool | None], list[str]]:
        """Return the points of a text from the grader's replies or from code, and a line about each point."""
        combination, answer, phrases = text.combination, text.answer, self.prompts.phrases
        verdict = None
        if self._code is not None:
            verdict = self._code.verdict(answer.text, skills=combination.skills, topic=combination.topic)
        rubric = rubric_of(combination.skills, combination.topic, phrases=phrases)
        readings: list[tuple[int, Reading | None]] = []
        for vote in sorted(votes, key=lambda vote: (vote["round"], vote["attempt"])):
            read = None if vote["reply"] is None else read_grades(rubric, vote["reply"], text=answer.text)
            readings.append((vote["round"], read))
        ballot = ballot_of(text, self._grader, votes_of(readings), verdict)
        points = ballot.points(self._rules, phrases)
        by_name = dict(zip([criterion.name for criterion in ballot.rubric(phrases).criteria], points, strict=True))
        given = applicable_reasons(verdict, is_alone=self._grader.is_code_alone) if verdict else {}
        reasons = reasons_of(points, combination.skills, answer, self._rules, given, is_cut=text.is_cut)
        return by_name, [point_line(name, point, reasons.get(name) or "") for name, point in by_name.items()]
