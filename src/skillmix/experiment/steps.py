"""The kinds of step in an experiment file, except train steps, which are in train_step.py.

A new kind needs a class here, an entry in `AnyStep`, and a `StepKind` in the table of steps/kinds.py.
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
"""The model string of a rater who is a person."""
NARROWEST: Final = 0.001
"""The smallest allowed width of an agreement interval, which already requires millions of texts."""
CODE: Final = "rules"
"""The name of code as the source of reference labels, whatever the `rules:` grader is called."""


def _by_name(raters: object) -> object:
    """Turn a list of names into a mapping of people."""
    if not isinstance(raters, list) or not all(isinstance(name, str) for name in raters):
        return raters
    twice = sorted({name for name in raters if raters.count(name) > 1})
    if twice:
        raise ValueError(f"{', '.join(map(repr, twice))} is listed twice; give each person a unique name")
    return dict.fromkeys(raters, HUMAN_RATER)


Raters = Annotated[
    dict[
        Annotated[Name, accepted_if(human_grader, "this is not a valid name of a person")],
        Annotated[
            str,
            accepted_if(
                lambda spec: spec == HUMAN_RATER or scripted_rater(spec), "this is neither human nor scripted:rater?…"
            ),
        ],
    ],
    accepted_if(bool, "there are no raters; give at least one name"),
    BeforeValidator(_by_name, json_schema_input_type=dict[Name, str] | list[Name]),
]
"""Raters by name, each a person (`human`) or simulated (`scripted:rater?…`); a list of names stands for people."""


class AnnotateStep(Step):
    """Raters grade texts of the run blind, by the same questions as graders."""

    stage: Literal["annotate"]
    reads_whole_run: ClassVar[bool] = True
    raters: Raters
    """A list of people, or a mapping of names to `human` or `scripted:rater?…`."""
    n: Positive | None = None
    """Texts per rater (default: as many as `width` requires, or else 50)."""
    width: Annotated[float, Field(ge=NARROWEST, lt=1)] | None = None
    """Width of the 95% interval for the agreement between a rater and a grader."""
    agreement: Share = 0.5
    """Expected agreement, used to compute the number of texts from `width`."""
    overlap: Share = 0.3
    """Share of the texts that all raters read."""
    seed: int = 0
    """Seed for the choice of texts."""
    students: FilledList[ModelRef] | None = None
    """Students whose texts are read (default: all)."""
    k: FilledList[Positive] | None = None
    """Numbers of skills of these texts (default: all)."""

    @model_validator(mode="after")
    def _one_number(self) -> "AnnotateStep":
        if self.n is not None and self.width is not None:
            raise ValueError("n and width both determine the number of texts; remove one of them")
        return self

    @property
    def people(self) -> tuple[str, ...]:
        """Return the raters who are people."""
        return tuple(name for name, spec in self.raters.items() if spec == HUMAN_RATER)

    @property
    def simulated(self) -> dict[str, str]:
        """Return the simulated raters with their model strings."""
        return {name: spec for name, spec in self.raters.items() if spec != HUMAN_RATER}

    @property
    def read_students(self) -> tuple[str, ...] | None:
        """Return the names of the students whose texts are read; None for all."""
        return None if self.students is None else tuple(map(student_name, self.students))


class GradersStep(Step):
    """A card for each grader of the run."""

    stage: Literal["graders"]
    reads_whole_run: ClassVar[bool] = True
    truth: str | None = None
    """Reference labels: `people`, `rules` (code) or a grader's name (default: people, or else code)."""
    rules: Literal["default", "paper"] | None = None
    """Scoring rules (default: the experiment's)."""


def people_faults(
    step: Step, steps: Sequence[Step], models: Mapping[str, str], graders: Iterable[str]
) -> Iterator[str]:
    """Find unknown names in an annotate or graders step.

    `models` are model strings by student; `graders` are names, including `rules` if one grader is code alone.
    """
    if isinstance(step, AnnotateStep | GradersStep) and step.name == "report":
        yield "the name is reserved for a folder of the run; rename the step"
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
                yield f"{name} is {here} here, but {there} in the step {earlier.name}; rename one of them"
    writers = list(dict.fromkeys(name for other in steps for name in other.student_names))
    if not writers:
        yield "no step generates texts to read; add an evaluate or generate step"
        return
    unknown = [name for name in step.read_students or () if name not in writers]
    for name in unknown:
        yield with_nearest(f"no step has texts by a student {name!r}", name, writers)
    ks = {cell.k for other in steps for cell in other.undrawn_cells(steps)}
    if all(other.stage != "dataset" for other in steps):
        yield from (f"no step has texts with k = {k}" for k in step.k or () if k not in ks)
    read = [name for name in step.read_students or writers if name not in unknown]
    real = [name for name in read if not models.get(name, "").startswith("scripted:")]
    if real and step.simulated:
        first = next(iter(step.simulated))
        yield f"the simulated rater {first} can only read texts of scripted students, and {real[0]} is not scripted"


_CONVERSATIONS_PER_TEXT: Final = 100
"""Default value of `most`, per text of the target."""
_OF_WRITING: Final = ("graders", "target", "most", "least", "exclude", "rules", "pool")
"""Keys that a dataset step may have only with a writer."""


class _CellsStep(DrawingStep):
    """The keys that generate and evaluate steps share: students × settings × k."""

    students: FilledList[ModelRef]
    """Students that generate texts: names, `step:NAME` for the model of a train step, or `joined:step:NAME`."""
    settings: FilledList[Setting] = ["all"]
    """Groups of the partition to draw from: `train`, `held-out`, `all` or another group."""
    k: FilledList[SkillCount]
    """Numbers of skills; 0 means the plain request (for catalogs of probes)."""
    combinations: Counts = 100
    """Combinations per setting and k: a number, `all`, or a mapping from k or setting to such values."""
    generations: Positive = 3
    """Texts per combination, of which the best counts."""
    exclude: SkillNames = []
    """Skills and exclude lists that the step does not draw, besides the experiment's."""

    @model_validator(mode="after")
    def _combinations_for_all(self) -> Self:
        places = [(setting, k) for setting in self.settings for k in self.k]
        lacking = [place for place in places if count_for(self.combinations, *place) is None]
        if lacking:
            named = ", ".join(f"setting {setting} at k = {k}" for setting, k in lacking)
            raise ValueError(f"combinations has no number for {named}")
        keys = {str(key) for place in places for key in place}
        unknown = [key for key in keys_in(self.combinations) if key not in keys]
        if unknown:
            raise ValueError(f"combinations: {', '.join(unknown)} is neither a setting nor a k of the step")
        return self

    @property
    def model_references(self) -> tuple[str, ...]:
        """Return the students."""
        return tuple(self.students)

    def undrawn_cells(self, steps: Sequence[Step]) -> Iterator[UndrawnCell]:
        """Yield a cell for each setting, k and student; the students share the draws."""
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
    """Students generate texts: students × settings × k."""

    stage: Literal["generate"]
    purpose: Purpose = "evaluation"
    """`training` draws combinations that no evaluation uses, so that a data set may use the texts."""


class EvaluateStep(_CellsStep):
    """Students generate texts and graders grade the texts: students × settings × k."""

    stage: Literal["evaluate"]
    graders: FilledList[Name]
    """Graders of every text."""
    settings: FilledList[Setting] = ["train", "held-out", "all"]
    """Groups of the partition to draw from: `train`, `held-out`, `all` or another group."""
    k: FilledList[SkillCount] = [1, 2, 3, 4, 5]
    """Numbers of skills; 0 means the plain request (for catalogs of probes)."""
    ladder: bool = False
    """Build each combination of k skills by adding a skill to a combination of k - 1 skills."""
    sets: SetChoice = "all"
    """`reserved` draws only skill sets that `leakage.reserved` excludes from every data set."""
    stop_below: Share | None = None
    """Skip larger k for a student in a setting once every grader gives it less than this share of full marks."""
    allow_trained: bool = False
    """Also evaluate students that were trained on these combinations or under another partition; scores are marked."""

    @model_validator(mode="after")
    def _reserved_sets_of_two(self) -> "EvaluateStep":
        if self.sets == "reserved" and min(self.k) < 2:
            raise ValueError("sets: reserved needs k of 2 or more, because single skills are never reserved")
        if self.sets == "reserved" and self.ladder:
            raise ValueError("a ladder starts with single skills, which are never reserved; remove sets or ladder")
        if self.ladder and any(cell.count is None for cell in self.undrawn_cells([])):
            raise ValueError("a ladder needs a number of combinations instead of all")
        return self


class GradeStep(Step):
    """Graders grade the texts of earlier steps."""

    stage: Literal["grade"]
    of: FilledList[Name]
    """Generate and evaluate steps whose texts are graded."""
    graders: FilledList[Name]
    """Graders of these texts."""
    students: FilledList[ModelRef] | None = None
    """Students whose texts are graded (default: all students of the steps in `of`)."""
    settings: FilledList[Setting] | None = None
    """Settings of these texts (default: all)."""
    k: FilledList[SkillCount] | None = None
    """Numbers of skills of these texts (default: all)."""

    @property
    def inputs(self) -> tuple[StepInput, ...]:
        """Return the steps whose texts are graded."""
        return tuple(StepInput(name, ("generate", "evaluate")) for name in self.of)

    def undrawn_cells(self, steps: Sequence[Step]) -> Iterator[UndrawnCell]:
        """Yield the selected cells of the graded steps, with the graders of this step."""
        students = None if self.students is None else [student_name(name) for name in self.students]
        for cell in (cell for step in steps if step.name in self.of for cell in step.undrawn_cells(steps)):
            wanted = ((students, cell.student), (self.settings, cell.setting), (self.k, cell.k))
            if all(values is None or value in values for values, value in wanted):
                yield replace(cell, graders=self.grader_names)

    def unmatched(self, steps: Sequence[Step]) -> list[str]:
        """Return the students, settings and k of this step that do not occur in the graded steps."""
        cells = [cell for step in steps if step.name in self.of for cell in step.undrawn_cells(steps)]
        known = {cell.student for cell in cells}
        missing = [f"student {name}" for name in self.students or () if student_name(name) not in known]
        missing += [f"setting {n}" for n in self.settings or () if n not in {cell.setting for cell in cells}]
        return missing + [f"k = {k}" for k in self.k or () if k not in {cell.k for cell in cells}]


class PerSkill(Section):
    """Limits on the texts of each skill, for each k."""

    floor: Annotated[int, Field(ge=0)] = 0
    """Minimum number of texts per skill; skills below it are reported."""
    ceiling: Positive | None = None
    """Maximum number of texts per skill."""

    @model_validator(mode="after")
    def _floor_below_ceiling(self) -> "PerSkill":
        if self.ceiling is not None and self.floor > self.ceiling:
            raise ValueError(f"floor {self.floor} is above ceiling {self.ceiling}")
        return self


class _NamedDatasetStep(DrawingStep):
    """The keys of a dataset step that come before the filters in listings."""

    stage: Literal["dataset"]


class DatasetStep(DataFilters, _NamedDatasetStep):
    """A data set of conversations with full marks, generated by a model or joined from earlier data sets."""

    writer: ModelRef | None = None
    """Model that generates the texts; without it, the step joins the data sets in `of`."""
    of: list[Name] = []
    """Earlier dataset steps whose data sets are joined."""
    graders: list[Name] = []
    """Graders that must all give a text full marks."""
    recipe: str | None = None
    """A data set of the paper: `D(1)`, `D(1,2)`, `D(1,2,3)`, …, or `ablation`."""
    k: list[Positive] = []
    """Numbers of skills, without a recipe."""
    skills: Literal["train", "all"] | None = None
    """Skills that are drawn for k = 1 (default: `all` with a recipe, else `train`)."""
    pool: Setting | None = None
    """Group of the partition to draw from instead of `train`; its texts are about the train topics."""
    target: Positive | dict[Positive, Positive] | None = None
    """Texts to keep for each k."""
    most: Positive | None = None
    """Maximum number of conversations for each k (default: 100 per text of the target)."""
    least: Annotated[int, Field(ge=0)] | None = None
    """Number of texts of each k that is enough for later steps to begin (default: the target)."""
    exclude: SkillNames = []
    """Skills and exclude lists that are never requested, besides the experiment's."""
    generations: Positive = 1
    """Conversations per combination; once all combinations are used, another round begins."""
    per_skill: PerSkill = PerSkill()
    """Minimum and maximum number of texts of each skill, for each k."""
    size: Positive | None = None
    """Texts in the data set (default: all); a larger set contains the smaller one."""
    shares: dict[Positive, Annotated[float, Field(gt=0)]] = {}
    """Relative weight of each k in a data set with a `size` (default: texts are chosen regardless of k)."""
    prompts: str | None = None
    """Prompt set of the conversations (default: the experiment's)."""
    requests: RequestChoice = "all"
    """`one`, for controls: each request names one skill of its text, and "any skill" in place of each other skill."""
    rules: Literal["default", "paper"] | None = None
    """Scoring rules that determine which texts have full marks (default: the experiment's)."""
    leakage: LeakageSettings | None = None
    """Content to exclude from the data set; keys that are not set here have the experiment's values."""
    only_requested: bool = False
    """For controls: exclude texts that show another skill of the partition, if code can detect it."""

    @model_validator(mode="after")
    def _written_or_joined(self) -> "DatasetStep":
        if (self.writer is None) == (not self.of):
            raise ValueError("a data set either has a writer, or joins the data sets in `of`; give one of them")
        if self.writer is not None and not (self.graders and self.target and (self.k or self.recipe)):
            raise ValueError("a writer needs graders, a target, and k or a recipe")
        writing = [name for name in _OF_WRITING if getattr(self, name) not in (None, [])]
        if self.of and writing:
            raise ValueError(f"{', '.join(writing)} need a writer, and joined data sets have none; remove these keys")
        if self.recipe is not None and (self.k or self.shares):
            raise ValueError("the recipe determines k; remove k and shares")
        if self.shares and self.size is None:
            raise ValueError("shares need a size; set size")
        targets = self.target.values() if isinstance(self.target, dict) else [self.target or 0]
        if self.least is not None and self.least > max(targets):
            raise ValueError(f"least {self.least} is above the target")
        with refusing_values():
            ks = self.data_recipe.ks
        named = set(self.target) if isinstance(self.target, dict) else set()
        if named and named != set(ks):
            raise ValueError(f"target has k = {sorted(named)}, but the data set has k = {sorted(ks)}")
        if self.shares and ks and set(self.shares) != set(ks):
            raise ValueError(f"shares have k = {sorted(self.shares)}, but the data set has k = {sorted(ks)}")
        return self

    @property
    def data_recipe(self) -> DataRecipe:
        """Return the named recipe, or the recipe that k, size and shares describe."""
        if self.recipe is not None:
            return recipe_named(self.recipe, size=self.size, skills=self.skills)
        ks = tuple(dict.fromkeys(self.k or self.shares))
        return plain_recipe(ks, size=self.size, skills=self.skills, shares=self.shares)

    def max_conversations(self, k: int) -> int:
        """Return the maximum number of conversations for one k."""
        return self.most or _CONVERSATIONS_PER_TEXT * self.target_of(k)

    def target_of(self, k: int) -> int:
        """Return the number of texts to keep for one k."""
        return self.target[k] if isinstance(self.target, dict) else self.target or 0

    @property
    def model_references(self) -> tuple[str, ...]:
        """Return the writer, if there is one."""
        return (self.writer,) if self.writer else ()

    @property
    def inputs(self) -> tuple[StepInput, ...]:
        """Return the data sets that the step joins."""
        return tuple(StepInput(name, ("dataset",)) for name in self.of)

    @property
    def planned_texts(self) -> int | None:
        """Return the sum of the targets; None for joined data sets."""
        return sum(self.target_of(k) for k in self.data_recipe.ks) if self.writer else None

    def setting_of(self, k: int) -> Setting:
        """Return the group of the partition from which the writer's combinations of k skills are drawn."""
        return "all" if k == 1 and self.data_recipe.skills == "all" else self.pool or "train"


class Contrast(Section):
    """A planned comparison: a student's score minus another student's, or minus its own in another setting or k."""

    student: Name
    """A student, by its name in the file."""
    setting: Name
    k: Positive
    against: Name | None = None
    """Student of the second side (default: `student`)."""
    against_setting: Name | None = None
    """Setting of the second side (default: `setting`)."""
    against_k: Positive | None = None
    """Number of skills on the second side (default: `k`)."""
    claim: str | None = None
    """Conclusion that a gain would support, worded as the end of a sentence."""
    condition: str | None = None
    """Caveat about the claim, worded as a sentence."""

    @model_validator(mode="after")
    def _has_two_sides(self) -> "Contrast":
        if self.other == (self.student, self.setting, self.k):
            raise ValueError("both sides are the same; set against, against_setting or against_k")
        return self

    @property
    def other(self) -> tuple[str, str, int]:
        """Return the second side: student, setting and k."""
        return self.against or self.student, self.against_setting or self.setting, self.against_k or self.k

    @property
    def is_paired(self) -> bool:
        """Whether both sides have the same combinations."""
        return self.other[1:] == (self.setting, self.k)


class ReportStep(Step):
    """A report with tables, figures and pages about all earlier steps."""

    stage: Literal["report"]
    reads_whole_run: ClassVar[bool] = True
    rules: Literal["default", "paper", "both"] | None = None
    """Scoring rules (default: the experiment's); `both` shows the scores by both side by side."""
    published: bool = False
    """Show the paper's published figures next to those of the run."""
    tokens: Annotated[float, Field(gt=0)] = 2e12
    """Tokens of the training corpus, for the novelty bound."""
    runs: tuple[str, ...] = ()
    """Other runs to show in the same report."""
    contrasts: list[Contrast] = []
    """Planned comparisons in the order of their tests."""


AnyStep = Annotated[
    EvaluateStep | GenerateStep | GradeStep | DatasetStep | TrainStep | AnnotateStep | GradersStep | ReportStep,
    Field(discriminator="stage"),
]
"""A step of any kind, which its `stage` determines."""
