"""The kinds of step in an experiment file; train steps are in train_step.py.

A new kind is a class here, an entry in `AnyStep`, and a file in the folder `steps/` that does its work.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Annotated, ClassVar, Final, Literal, Self

from pydantic import BeforeValidator, Field, model_validator

from skillmix.calls import PEOPLE, human_grader
from skillmix.catalog.catalog import Setting
from skillmix.catalog.combinations import Purpose
from skillmix.experiment.recipes import (
    DataFilters,
    DataRecipe,
    LeakageSettings,
    RequestChoice,
    plain_recipe,
    recipe_named,
)
from skillmix.experiment.step_base import (
    Counts,
    DrawingStep,
    DrawnPool,
    FilledList,
    ModelRef,
    Name,
    Positive,
    Section,
    SetChoice,
    Share,
    SkillCount,
    SkillNames,
    Step,
    StepInput,
    UndrawnCell,
    count_for,
    keys_in,
    student_name,
)
from skillmix.experiment.train_step import TrainStep
from skillmix.files import accepted_if, refusing_values, with_nearest
from skillmix.models.scripted import scripted_rater

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


Raters = Annotated[
    dict[
        Annotated[Name, accepted_if(human_grader, "this is no name of a person")],
        Annotated[str, accepted_if(lambda spec: spec == HUMAN_RATER or scripted_rater(spec), "this is no rater")],
    ],
    accepted_if(bool, "nobody is named who reads; give at least one name"),
    BeforeValidator(_by_name, json_schema_input_type=dict[Name, str] | list[Name]),
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
    """Width of the 95% interval of agreement between a rater and a grader."""
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
    """Scoring rules; the default is the experiment's."""


def people_faults(
    step: Step, steps: Sequence[Step], models: Mapping[str, str], graders: Iterable[str]
) -> Iterator[str]:
    """Names in a step of people or graders that the experiment does not have.

    `models` are specs by student; `graders` are names, and `rules` if one of them is code alone.
    """
    if isinstance(step, AnnotateStep | GradersStep) and step.name == "report":
        yield "a run keeps its report in a folder of this name"
    if isinstance(step, GradersStep) and step.truth is not None:
        raters = [human_grader(name) for s in steps if isinstance(s, AnnotateStep) for name in s.raters]
        known = [PEOPLE, *graders, *raters]
        if step.truth not in known:
            yield with_nearest(f"there is no grader {step.truth!r}", step.truth, known)
    if not isinstance(step, AnnotateStep):
        return
    before = next(place for place, one in enumerate(steps) if one is step)
    for earlier in (one for one in steps[:before] if isinstance(one, AnnotateStep)):
        for name in (name for name in step.raters if name in earlier.raters):
            specs = step.raters[name], earlier.raters[name]
            here, there = ("a person" if spec == HUMAN_RATER else f"the script {spec}" for spec in specs)
            if here != there:
                yield f"{name} is {here} here and {there} in the step {earlier.name}: give one of them another name"
    writers = list(dict.fromkeys(name for other in steps for name in other.student_names))
    if not writers:
        yield "no step of the file writes texts that people could read"
        return
    unknown = [name for name in step.read_students or () if name not in writers]
    for name in unknown:
        yield with_nearest(f"no step has texts of a student {name!r}", name, writers)
    ks = {cell.k for other in steps for cell in other.undrawn_cells(steps)}
    if all(other.stage != "dataset" for other in steps):
        yield from (f"no step has texts with k = {k}" for k in step.k or () if k not in ks)
    read = [name for name in step.read_students or writers if name not in unknown]
    real = [name for name in read if not models.get(name, "").startswith("scripted:")]
    if real and step.simulated:
        first = next(iter(step.simulated))
        yield f"{first} is simulated and can read scripted texts only, and {real[0]} is no scripted student"


_CONVERSATIONS_PER_TEXT: Final = 100
"""Default limit of a dataset step: conversations written for each text of the target."""
_OF_WRITING: Final = ("graders", "target", "most", "least", "exclude", "rules", "pool")
"""Keys of a dataset step that apply only to a writer."""


class _CellsStep(DrawingStep):
    """What generate and evaluate steps have in common: students × settings × k."""

    students: FilledList[ModelRef]
    """Students that write, `step:NAME` for the model of a train step, or `joined:step:NAME`."""
    settings: FilledList[Setting] = ["all"]
    """Groups of the partition to draw skills and topics from: `train`, `held-out`, `all`, or a further one."""
    k: FilledList[SkillCount]
    """Numbers of skills; 0 is the plain request, for catalogs of probes."""
    combinations: Counts = 100
    """Combinations of each setting and k: a number, `all`, or such values by k or by setting."""
    generations: Positive = 3
    """Texts of each combination; the best of them counts."""
    exclude: SkillNames = []
    """Skills and exclude lists that the step does not draw, besides the experiment's; tables name them."""

    @model_validator(mode="after")
    def _combinations_for_all(self) -> Self:
        places = [(setting, k) for setting in self.settings for k in self.k]
        lacking = [place for place in places if count_for(self.combinations, *place) is None]
        if lacking:
            named = ", ".join(f"setting {setting} at k = {k}" for setting, k in lacking)
            raise ValueError(f"combinations names no number for {named}")
        keys = {str(key) for place in places for key in place}
        unknown = [key for key in keys_in(self.combinations) if key not in keys]
        if unknown:
            raise ValueError(f"combinations names {', '.join(unknown)}, which is no setting and no k of the step")
        return self

    @property
    def model_references(self) -> tuple[str, ...]:
        """The students."""
        return tuple(self.students)

    def undrawn_cells(self, steps: Sequence[Step]) -> Iterator[UndrawnCell]:
        """One cell for each setting, k and student; the students share the draws."""
        for setting in self.settings:
            for k in self.k:
                count = count_for(self.combinations, setting, k)
                for student in self.student_names:
                    yield UndrawnCell(
                        source=self.name,
                        student=student,
                        graders=self.grader_names,
                        setting=setting,
                        k=k,
                        count=count if isinstance(count, int) else None,
                        generations=self.generations,
                        is_ladder=getattr(self, "ladder", False),
                        sets=getattr(self, "sets", "all"),
                        purpose=getattr(self, "purpose", "evaluation"),
                        exclude=tuple(self.exclude),
                        catalog=self.catalog,
                        partition=self.partition,
                    )


class GenerateStep(_CellsStep):
    """Students write texts: students × settings × k."""

    stage: Literal["generate"]
    purpose: Purpose = "evaluation"
    """With `training`, the step draws combinations that no evaluation has, and a data set may take its texts."""


class EvaluateStep(_CellsStep):
    """Students write texts and graders grade them: students × settings × k."""

    stage: Literal["evaluate"]
    graders: FilledList[Name]
    """Graders that grade every text."""
    settings: FilledList[Setting] = ["train", "held-out", "all"]
    """Groups of the partition to draw skills and topics from: `train`, `held-out`, `all`, or a further one."""
    k: FilledList[SkillCount] = [1, 2, 3, 4, 5]
    """Numbers of skills; 0 is the plain request, for catalogs of probes."""
    ladder: bool = False
    """Whether each combination extends one of the next smaller k."""
    sets: SetChoice = "all"
    """`reserved` draws only skill sets that no data set may hold, by `leakage.reserved`."""
    stop_below: Share | None = None
    """Skip a student's larger k in a setting once every grader gives it fewer full marks than this share."""
    allow_trained: bool = False
    """Evaluate a student even on combinations it was trained on, or under another partition; the scores then say so."""

    @model_validator(mode="after")
    def _reserved_sets_of_two(self) -> "EvaluateStep":
        if self.sets == "reserved" and min(self.k) < 2:
            raise ValueError("sets: reserved needs k of 2 or more, because single skills are never reserved")
        if self.sets == "reserved" and self.ladder:
            raise ValueError("a ladder begins with single skills, which are never reserved: give sets or ladder")
        if self.ladder and any(cell.count is None for cell in self.undrawn_cells([])):
            raise ValueError("a ladder needs a number of combinations, not all")
        return self


class GradeStep(Step):
    """Graders grade the texts of earlier steps."""

    stage: Literal["grade"]
    of: FilledList[Name]
    """Generate and evaluate steps whose texts are graded."""
    graders: FilledList[Name]
    """Graders that grade them."""
    students: FilledList[ModelRef] | None = None
    """Students whose texts are graded; the default is all students of the steps in `of`."""
    settings: FilledList[Setting] | None = None
    """Settings whose texts are graded; the default is all."""
    k: FilledList[SkillCount] | None = None
    """Numbers of skills whose texts are graded; the default is all."""

    @property
    def inputs(self) -> tuple[StepInput, ...]:
        """The steps whose texts are graded."""
        return tuple(StepInput(name, ("generate", "evaluate")) for name in self.of)

    def undrawn_cells(self, steps: Sequence[Step]) -> Iterator[UndrawnCell]:
        """The wanted cells of the graded steps, with the graders of this step."""
        students = None if self.students is None else [student_name(name) for name in self.students]
        for cell in (cell for step in steps if step.name in self.of for cell in step.undrawn_cells(steps)):
            wanted = ((students, cell.student), (self.settings, cell.setting), (self.k, cell.k))
            if all(values is None or value in values for values, value in wanted):
                yield replace(cell, graders=self.grader_names)

    def unmatched(self, steps: Sequence[Step]) -> list[str]:
        """Students, settings and k of this step that the graded steps do not have."""
        cells = [cell for step in steps if step.name in self.of for cell in step.undrawn_cells(steps)]
        known = {cell.student for cell in cells}
        missing = [f"student {name}" for name in self.students or () if student_name(name) not in known]
        missing += [f"setting {n}" for n in self.settings or () if n not in {cell.setting for cell in cells}]
        return missing + [f"k = {k}" for k in self.k or () if k not in {cell.k for cell in cells}]


class PerSkill(Section):
    """Limits on the texts of each skill, for each k."""

    floor: Annotated[int, Field(ge=0)] = 0
    """Minimum number of texts per skill; a skill that stays below it is reported."""
    ceiling: Positive | None = None
    """Maximum number of texts per skill."""

    @model_validator(mode="after")
    def _floor_below_ceiling(self) -> "PerSkill":
        if self.ceiling is not None and self.floor > self.ceiling:
            raise ValueError(f"floor {self.floor} is above ceiling {self.ceiling}")
        return self


class _NamedDatasetStep(DrawingStep):
    """The keys of a dataset step that pydantic puts before the filters."""

    stage: Literal["dataset"]


class DatasetStep(DataFilters, _NamedDatasetStep):
    """A data set of conversations with full marks, written by a model or joined from earlier data sets."""

    writer: ModelRef | None = None
    """Model that writes; without a writer, the step joins the data sets in `of`."""
    of: list[Name] = []
    """Earlier dataset steps to join."""
    graders: list[Name] = []
    """A text is kept if every grader gives it full marks."""
    recipe: str | None = None
    """A data set of the paper: `D(1)`, `D(1,2)`, `D(1,2,3)`, …, or `ablation`."""
    k: list[Positive] = []
    """Numbers of skills, if there is no recipe."""
    skills: Literal["train", "all"] | None = None
    """Skills drawn for k = 1: `all` by default in a recipe, else `train`."""
    pool: Setting | None = None
    """A further group of the partition to draw from instead of `train`; its texts are about the train topics."""
    target: Positive | dict[Positive, Positive] | None = None
    """Texts to keep for each k."""
    most: Positive | None = None
    """Maximum number of conversations for each k; the default is 100 for each text of the target."""
    least: Annotated[int, Field(ge=0)] | None = None
    """Minimum number of texts for each k before later steps begin; the default is the target."""
    exclude: SkillNames = []
    """Skills and exclude lists that no request to the writer names, besides the experiment's."""
    generations: Positive = 1
    """Conversations per combination. When all combinations are used, another round of the same size begins."""
    per_skill: PerSkill = PerSkill()
    """Fewest and most texts of each skill, for each k."""
    size: Positive | None = None
    """Number of texts in the data set; the default is all of them. A smaller set is part of a larger one."""
    shares: dict[Positive, Annotated[float, Field(gt=0)]] = {}
    """Relative weight of each k in a data set with a `size`; by default k does not matter."""
    prompts: str | None = None
    """Prompt set of the rows; by default the experiment's."""
    requests: RequestChoice = "all"
    """With `one`, each request names one skill of its text and says "any skill" for each other; for controls."""
    rules: Literal["default", "paper"] | None = None
    """Scoring rules that decide which texts have full marks; the default is the experiment's."""
    leakage: LeakageSettings | None = None
    """What the data set must not contain; other keys come from the experiment."""
    only_requested: bool = False
    """Whether to leave out texts that show a further skill of the partition, where code can tell; for controls."""

    @model_validator(mode="after")
    def _written_or_joined(self) -> "DatasetStep":
        if (self.writer is None) == (not self.of):
            raise ValueError("a data set is written by a writer or joined by `of`: give one of them")
        if self.writer is not None and not (self.graders and self.target and (self.k or self.recipe)):
            raise ValueError("a writer needs graders, a target, and k or a recipe")
        writing = [name for name in _OF_WRITING if getattr(self, name) not in (None, [])]
        if self.of and writing:
            raise ValueError(
                f"joined data sets are written and graded already: only a writer takes {', '.join(writing)}"
            )
        if self.recipe is not None and (self.k or self.shares):
            raise ValueError("a recipe says which k: k and shares do not apply")
        if self.shares and self.size is None:
            raise ValueError("shares need a size")
        targets = self.target.values() if isinstance(self.target, dict) else [self.target or 0]
        if self.least is not None and self.least > max(targets):
            raise ValueError(f"least {self.least} is above the target")
        with refusing_values():
            ks = self.data_recipe.ks
        named = set(self.target) if isinstance(self.target, dict) else set()
        if named and named != set(ks):
            raise ValueError(f"target names k = {sorted(named)}, the data set k = {sorted(ks)}")
        if self.shares and ks and set(self.shares) != set(ks):
            raise ValueError(f"shares name k = {sorted(self.shares)}, the data set k = {sorted(ks)}")
        return self

    @property
    def data_recipe(self) -> DataRecipe:
        """The recipe, from its name or from k, size and shares."""
        if self.recipe is not None:
            return recipe_named(self.recipe, size=self.size, skills=self.skills)
        ks = tuple(dict.fromkeys(self.k or self.shares))
        return plain_recipe(ks, size=self.size, skills=self.skills, shares=self.shares)

    def max_conversations(self, k: int) -> int:
        """Maximum number of conversations for one k."""
        return self.most or _CONVERSATIONS_PER_TEXT * self.target_of(k)

    def target_of(self, k: int) -> int:
        """Number of texts to keep for one k."""
        return self.target[k] if isinstance(self.target, dict) else self.target or 0

    @property
    def model_references(self) -> tuple[str, ...]:
        """The writer, if there is one."""
        return (self.writer,) if self.writer else ()

    @property
    def inputs(self) -> tuple[StepInput, ...]:
        """The data sets that the step joins."""
        return tuple(StepInput(name, ("dataset",)) for name in self.of)

    @property
    def planned_texts(self) -> int | None:
        """The sum of the targets; None for joined data sets."""
        return sum(self.target_of(k) for k in self.data_recipe.ks) if self.writer else None

    def pools_drawn_from(self, steps: Sequence[Step]) -> tuple[DrawnPool, ...]:
        """The pool `all` if k = 1 draws all skills, else `train` or the pool that the step names."""
        ks = self.data_recipe.ks if self.writer else ()
        settings = dict.fromkeys(self.setting_of(k) for k in ks)
        return tuple(DrawnPool(name, tuple(self.exclude), self.catalog, self.partition) for name in settings)

    def setting_of(self, k: int) -> Setting:
        """The group of the partition that the writer's combinations of k skills are drawn from."""
        return "all" if k == 1 and self.data_recipe.skills == "all" else self.pool or "train"


class Contrast(Section):
    """A comparison that is planned before any score is seen: a student minus another one, or minus itself elsewhere."""

    student: Name
    """A student, by its name in the file."""
    setting: Name
    k: Positive
    against: Name | None = None
    """The student to compare with; the default is the same student."""
    against_setting: Name | None = None
    """Setting of the other side; the default is the same setting."""
    against_k: Positive | None = None
    """k of the other side; the default is the same k."""
    claim: str | None = None
    """What a gain would show, as the end of a sentence."""
    condition: str | None = None
    """What limits the claim, as a sentence."""

    @model_validator(mode="after")
    def _has_two_sides(self) -> "Contrast":
        if self.other == (self.student, self.setting, self.k):
            raise ValueError("both sides are the same: give against, against_setting or against_k")
        return self

    @property
    def other(self) -> tuple[str, str, int]:
        """The other side: student, setting and k."""
        return self.against or self.student, self.against_setting or self.setting, self.against_k or self.k

    @property
    def is_paired(self) -> bool:
        """Whether both sides have the same combinations."""
        return self.other[1:] == (self.setting, self.k)


class ReportStep(Step):
    """A report on all earlier steps: tables, figures and pages."""

    stage: Literal["report"]
    reads_whole_run: ClassVar[bool] = True
    rules: Literal["default", "paper", "both"] | None = None
    """Scoring rules; the default is the experiment's. `both` shows both side by side."""
    published: bool = False
    """Whether to show the paper's figures next to the run's."""
    tokens: Annotated[float, Field(gt=0)] = 2e12
    """Size of the training corpus in tokens, for the novelty bound."""
    runs: tuple[str, ...] = ()
    """Further runs to show in the same report."""
    contrasts: list[Contrast] = []
    """Comparisons that are planned before any score is seen, in the order in which they are tested."""


AnyStep = Annotated[
    EvaluateStep | GenerateStep | GradeStep | DatasetStep | TrainStep | AnnotateStep | GradersStep | ReportStep,
    Field(discriminator="stage"),
]
"""A step of any kind; its `stage` names the kind."""
