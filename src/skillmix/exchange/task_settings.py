"""The settings of the Inspect task, and the experiment that they stand for.

The task and the import of its logs make the experiment by the same function, so both draw the same combinations and
write the same prompts as a run of `skillmix run`.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Final, Literal, get_args

from skillmix.catalog.catalog import Catalog
from skillmix.errors import UserError, faults_error
from skillmix.experiment.experiment import Experiment, experiment_of
from skillmix.experiment.step_base import setting_label
from skillmix.prompts.prompt_set import DEFAULT_VARIANT

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
