"""Steps of people and graders: `annotate` fixes who reads which texts, `graders` writes a card for each grader."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Annotated, ClassVar, Final, Literal

from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from skillmix.calls import PEOPLE, human_grader
from skillmix.errors import UserError
from skillmix.experiment.step_base import FilledList, ModelRef, Name, Positive, Share, Step, student_name
from skillmix.models.scripted_rater import scripted_rater
from skillmix.render import did_you_mean

HUMAN_RATER: Final = "human"
"""A rater that is a person."""
NARROWEST: Final = 0.001
"""The least width of an interval of agreement that a step or a command may ask for: it needs millions of texts."""
CODE: Final = "rules"
"""The name of code as the truth, whatever the grader that is `rules:` is called."""


def _by_name(raters: object) -> object:
    """A list of names as a table of people."""
    if not isinstance(raters, list) or not all(isinstance(name, str) for name in raters):
        return raters
    twice = sorted({name for name in raters if raters.count(name) > 1})
    if twice:
        raise ValueError(f"{', '.join(map(repr, twice))} is named twice; give each person one name")
    return dict.fromkeys(raters, HUMAN_RATER)


def _named(raters: dict[str, str]) -> dict[str, str]:
    if not raters:
        raise ValueError("nobody is named who reads; give at least one name")
    return raters


def _rater_name(name: str) -> str:
    try:
        human_grader(name)
    except UserError as error:
        raise ValueError(f"{error.message} {error.hint}") from None
    return name


def _rater_spec(spec: str) -> str:
    if spec != HUMAN_RATER:
        try:
            scripted_rater(spec)
        except UserError as error:
            raise ValueError(f"{error.message} {error.hint}") from None
    return spec


Raters = Annotated[
    dict[Annotated[Name, AfterValidator(_rater_name)], Annotated[str, AfterValidator(_rater_spec)]],
    AfterValidator(_named),
    BeforeValidator(_by_name),
]
"""Who reads, each a person (`human`) or simulated (`scripted:rater?…`); a list of names means people."""


class AnnotateStep(Step):
    """People read texts of the run, blind, and answer the questions that graders answer."""

    stage: Literal["annotate"]
    reads_whole_run: ClassVar[bool] = True
    raters: Raters
    """People by name, or a table of `human` and `scripted:rater?…` by name."""
    n: Positive | None = None
    """Texts for each rater; the default is the number that gives `width`, or else 50."""
    width: Annotated[float, Field(ge=NARROWEST, lt=1)] | None = None
    """Width of the 95 % interval of agreement between a rater and a grader."""
    agreement: Share = 0.5
    """Agreement to expect for `width`."""
    overlap: Share = 0.3
    """Share of a rater's texts that all raters read."""
    seed: int = 0
    """Seed of the choice of texts."""
    students: FilledList[ModelRef] | None = None
    """Students whose texts are read; the default is all."""
    k: FilledList[Positive] | None = None
    """Numbers of skills of the texts; the default is all."""

    @model_validator(mode="after")
    def _one_number(self) -> "AnnotateStep":
        if self.n is not None and self.width is not None:
            raise ValueError("n and width both decide the number of texts: give one of them")
        return self

    @property
    def people(self) -> tuple[str, ...]:
        """The raters that are people."""
        return tuple(name for name, spec in self.raters.items() if spec == HUMAN_RATER)

    @property
    def simulated(self) -> dict[str, str]:
        """The simulated raters with their specs."""
        return {name: spec for name, spec in self.raters.items() if spec != HUMAN_RATER}

    @property
    def read_students(self) -> tuple[str, ...] | None:
        """Names of the students whose texts are read; None for all."""
        return None if self.students is None else tuple(map(student_name, self.students))


class GradersStep(Step):
    """A card for each grader of the run."""

    stage: Literal["graders"]
    reads_whole_run: ClassVar[bool] = True
    truth: str | None = None
    """What graders are compared with: `people`, `rules` (code), or a grader; the default is people, else code."""
    rules: Literal["default", "paper"] | None = None
    """Scoring rules; the default is those of the experiment."""


def people_faults(step: Step, steps: Sequence[Step], models: Mapping[str, str], graders: Iterable[str]) -> list[str]:
    """Names in a step of people or graders that the experiment does not have.

    `models` are specs by student; `graders` are names, and `rules` if one of them is code alone.
    """
    faults: list[str] = []
    if isinstance(step, AnnotateStep | GradersStep) and step.name == "report":
        faults.append("a run keeps its report in a folder of this name")
    if isinstance(step, AnnotateStep):
        faults += [*_other_raters(step, steps), *_annotate_faults(step, steps, models)]
    if isinstance(step, GradersStep) and step.truth is not None:
        faults += _truth_faults(step.truth, steps, graders)
    return faults


def _other_raters(step: AnnotateStep, steps: Sequence[Step]) -> Iterator[str]:
    """Names of the step that stand for somebody else in an earlier step."""
    before = next(place for place, one in enumerate(steps) if one is step)
    for earlier in steps[:before]:
        if isinstance(earlier, AnnotateStep):
            for name, spec in step.raters.items():
                other = earlier.raters.get(name, spec)
                if other != spec:
                    yield (
                        f"{name} is {_rater_in_words(spec)} here and {_rater_in_words(other)} in the step "
                        f"{earlier.name}: give one of them another name"
                    )


def _rater_in_words(spec: str) -> str:
    return "a person" if spec == HUMAN_RATER else f"the script {spec}"


def _annotate_faults(step: AnnotateStep, steps: Sequence[Step], models: Mapping[str, str]) -> Iterator[str]:
    writers = list(dict.fromkeys(name for other in steps for name in other.student_names))
    if not writers:
        yield "no step of the file writes texts that people could read"
        return
    unknown = [name for name in step.read_students or () if name not in writers]
    for name in unknown:
        yield f"no step has texts of a student {name!r}. {did_you_mean(name, writers)}".rstrip().removesuffix(".")
    known = {cell.k for other in steps for cell in other.undrawn_cells(steps)}
    if all(other.stage != "dataset" for other in steps):
        yield from (f"no step has texts with k = {k}" for k in step.k or () if k not in known)
    read = [name for name in step.read_students or writers if name not in unknown]
    real = [name for name in read if not models.get(name, "").startswith("scripted:")]
    if real and step.simulated:
        first = next(iter(step.simulated))
        yield f"{first} is simulated and can read scripted texts only, and {real[0]} is no scripted student"


def _truth_faults(truth: str, steps: Sequence[Step], graders: Iterable[str]) -> Iterator[str]:
    raters = [human_grader(name) for s in steps if isinstance(s, AnnotateStep) for name in s.raters]
    known = [PEOPLE, *graders, *raters]
    if truth not in known:
        yield f"there is no grader {truth!r}. {did_you_mean(truth, known)}".rstrip().removesuffix(".")
