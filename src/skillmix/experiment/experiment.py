"""The experiment file: YAML to frozen settings, all faults at once."""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Final, Literal

from pydantic import Field, TypeAdapter, ValidationError, field_validator, model_validator

from skillmix.catalog.catalog import Setting
from skillmix.catalog.yaml import read_yaml
from skillmix.errors import UserError, faults_error
from skillmix.experiment.changes import changed
from skillmix.experiment.dataset_step import DatasetStep, LeakageSettings
from skillmix.experiment.report_step import ReportStep
from skillmix.experiment.sections import ModelRef, Name, NamedStep, Positive, Section, Share
from skillmix.experiment.train_step import TrainStep
from skillmix.models.specs import SERVED, asked_model, parse_spec, uses_code
from skillmix.prompts.prompt_set import GraderVariant

_KEY_NAME: Final = re.compile(r"[A-Z][A-Z0-9_]*_KEY")
_NOT_A_MODELS_KEY: Final = re.compile(r"SECRET|PRIVATE|ACCESS_KEY|SIGNING|ENCRYPTION")


class AskedModel(Section):
    """How a model is reached."""

    key: str | None = None
    """Name of the environment variable that holds its key; a provider's own address has one without this."""
    insecure: bool = False
    """Whether the key may go over plain http to another machine."""

    @field_validator("key")
    @classmethod
    def _name_of_a_key(cls, key: str | None) -> str | None:
        # The value may be a key that somebody put into the file, so no message repeats it.
        if key is not None and (not _KEY_NAME.fullmatch(key) or _NOT_A_MODELS_KEY.search(key)):
            raise ValueError(
                "this must be the name of an environment variable that holds a model's key, such as VLLM_KEY: capital "
                "letters with _KEY at the end"
            )
        return key

    def _check_access(self, asked: str | None) -> None:
        is_served = asked is not None and parse_spec(asked).provider in SERVED
        if not is_served and (self.key is not None or self.insecure):
            raise ValueError("key and insecure are for models that are asked over the network")


class StudentSettings(AskedModel):
    """A model that writes, with its prompts and decoding."""

    model: str
    """Spec, such as `openai:gpt-4o`."""
    prompts: str | None = None
    """Prompt set; the experiment's if not given."""
    temperature: Annotated[float, Field(ge=0)] = 0.7
    max_tokens: Positive = 512
    top_p: Share | None = None
    concurrency: Positive | None = None
    """Calls at once; 64 for an endpoint, what the memory holds for a local model."""
    timeout: Annotated[float, Field(gt=0, le=10**9)] = 600

    @model_validator(mode="after")
    def _known_model(self) -> "StudentSettings":
        _check_spec(self.model)
        if uses_code(self.model):
            raise ValueError("rules: is a grader and writes nothing")
        self._check_access(self.model)
        return self

    @property
    def asked(self) -> str:
        """The model that is asked."""
        return self.model


class GraderSettings(AskedModel):
    """A model that votes."""

    model: str
    rounds: Positive | None = None
    """Independent gradings of a text; odd, so that a majority exists. 3, and 1 for `rules:`."""
    prompts: GraderVariant = "gpt"
    """Which of the prompt set's grader prompts it is asked with."""
    temperature: Annotated[float, Field(ge=0)] = 0.7
    max_tokens: Positive = 1024
    top_p: Share | None = None
    concurrency: Positive | None = None
    timeout: Annotated[float, Field(gt=0, le=10**9)] = 600
    attempts: Positive = 3
    """How often one round is asked until its reply can be read."""

    @model_validator(mode="after")
    def _votes_that_make_sense(self) -> "GraderSettings":
        _check_spec(self.model)
        self._check_access(self.asked)
        if self.votes % 2 == 0:
            raise ValueError(f"rounds must be odd, not {self.votes}")
        if self.votes > 1 and self.asked is None:
            raise ValueError("rules: votes once")
        if self.votes > 1 and self.temperature == 0:
            raise ValueError(
                "several rounds at temperature 0 are one round, copied; raise temperature or set rounds: 1"
            )
        return self

    @property
    def votes(self) -> int:
        """Rounds, with the default filled in."""
        return self.rounds or (1 if self.asked is None else 3)

    @property
    def asked(self) -> str | None:
        """The model that is asked; None if code decides alone."""
        return asked_model(self.model)

    @property
    def has_code(self) -> bool:
        """Whether code decides the skills that have a checker."""
        return uses_code(self.model)


class BudgetSettings(Section):
    """What a run may cost, over all its resumes."""

    max_usd: Annotated[float, Field(ge=0)] | None = None
    max_calls: Annotated[int, Field(ge=0)] | None = None


class AnswerSettings(Section):
    """What is graded of a student's reply."""

    missing_marker: Literal["whole", "zero"] = "whole"


class EvaluateStep(NamedStep):
    """Generate and grade: students × settings × k."""

    stage: Literal["evaluate"]
    students: list[ModelRef]
    graders: list[Name]
    settings: list[Setting] = ["train", "held-out", "all"]
    k: list[Positive] = [1, 2, 3, 4, 5]
    combinations: Positive = 100
    generations: Positive = 3
    ladder: bool = False
    stop_below: Share | None = None
    """Leave out a student's larger k in a setting once its full marks are below this, for every grader."""
    allow_trained: bool = False
    """Evaluate a student on combinations it was trained on all the same; the scores then say how many."""


class GenerateStep(NamedStep):
    """Only the students' part of an evaluation."""

    stage: Literal["generate"]
    students: list[ModelRef]
    settings: list[Setting] = ["all"]
    k: list[Positive]
    combinations: Positive = 100
    generations: Positive = 3


class GradeStep(NamedStep):
    """Grade what earlier steps generated."""

    stage: Literal["grade"]
    of: list[Name]
    graders: list[Name]


Step = Annotated[
    EvaluateStep | GenerateStep | GradeStep | DatasetStep | TrainStep | ReportStep, Field(discriminator="stage")
]


class Experiment(Section):
    """Everything that a run depends on."""

    name: Name
    seed: int = 0
    catalog: str = "paper"
    partition: str | None = None
    prompts: str = "standard"
    exclude: list[str] = []
    rules: Literal["default", "paper"] = "default"
    answer: AnswerSettings = AnswerSettings()
    students: dict[Name, StudentSettings] = {}
    graders: dict[Name, GraderSettings] = {}
    budget: BudgetSettings = BudgetSettings()
    leakage: LeakageSettings = LeakageSettings()
    steps: list[Step]


def load_experiment(path: Path, *, changes: Sequence[str] = ()) -> Experiment:
    """Read and check an experiment file, after changes of the form `a.b=c`."""
    return experiment_of(changed(read_yaml(path), changes), source=str(path))


def experiment_of(document: object, *, source: str) -> Experiment:
    """Check an experiment; every fault is reported, with where it is."""
    try:
        experiment = TypeAdapter(Experiment).validate_python(document)
    except ValidationError as error:
        faults = [f"{_place(e['loc'])}: {e['msg'].removeprefix('Value error, ')}" for e in error.errors()]
        keys = ", ".join(Experiment.model_fields)
        hint = f"Keys of an experiment: {keys}. Each step has a name, a stage, and the keys of its stage."
        raise faults_error(source, faults, hint=hint) from None
    faults = list(_reference_faults(experiment))
    if faults:
        raise faults_error(source, faults, hint="A step names students, graders and earlier steps of its own file.")
    return experiment


def _place(location: tuple[int | str, ...]) -> str:
    return ".".join(str(part + 1) if isinstance(part, int) else part for part in location) or "the file"


def _check_spec(text: str) -> None:
    try:
        parse_spec(text)
    except UserError as error:
        raise ValueError(f"{error.message} {error.hint}") from None


def _reference_faults(experiment: Experiment) -> list[str]:
    """Names that steps use and nobody defines, and names that are used twice."""
    faults: list[str] = []
    made: dict[str, str] = {}
    for step in experiment.steps:
        where = f"steps.{step.name}"
        if step.name in made:
            faults.append(f"{where}: the name is that of an earlier step")
        faults += [f"{where}: {fault}" for fault in _model_faults(step, experiment, made)]
        faults += [
            f"{where}: there is no grader {g!r}" for g in getattr(step, "graders", []) if g not in experiment.graders
        ]
        for data, stage in _inputs_of(step):
            if made.get(data) not in stage:
                faults.append(f"{where}: no earlier {' or '.join(stage)} step is called {data!r}")
        made.setdefault(step.name, step.stage)
    return faults


def _model_faults(step: Step, experiment: Experiment, made: dict[str, str]) -> list[str]:
    faults = []
    for reference in _models_of(step):
        if reference.startswith("step:"):
            name = reference.removeprefix("step:")
            if made.get(name) != "train":
                faults.append(f"no earlier train step is called {name!r}")
            if name in experiment.students:
                faults.append(f"{reference} and the student {name!r} would have one name")
        elif reference not in experiment.students:
            faults.append(f"there is no student {reference!r}")
    return faults


def _models_of(step: Step) -> list[str]:
    if isinstance(step, EvaluateStep | GenerateStep):
        return list(step.students)
    if isinstance(step, DatasetStep):
        return [step.writer] if step.writer else []
    return [step.base] if isinstance(step, TrainStep) else []


def _inputs_of(step: Step) -> list[tuple[str, tuple[str, ...]]]:
    if isinstance(step, TrainStep):
        return [(name, ("dataset",)) for name in step.data_steps]
    if isinstance(step, DatasetStep):
        return [(name, ("dataset",)) for name in step.of]
    if isinstance(step, GradeStep):
        return [(name, ("generate", "evaluate")) for name in step.of]
    return []
