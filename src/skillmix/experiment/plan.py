"""The cells of an experiment's score table and the combinations drawn for them."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from math import inf
from types import MappingProxyType
from typing import Final

from skillmix.catalog.catalog import Catalog, Partition, Setting, Side
from skillmix.catalog.combinations import (
    Combination,
    Draw,
    Purpose,
    draw_all,
    draw_combinations,
    draw_ladder,
    draw_reserved,
    training_draw,
)
from skillmix.errors import UserError, refuse
from skillmix.experiment.experiment import Experiment, GraderSettings, StudentSettings
from skillmix.experiment.step_base import DrawingStep, LabelParts, Step, UndrawnCell
from skillmix.experiment.steps import DatasetStep


@dataclass(frozen=True, kw_only=True)
class PlannedCell(UndrawnCell):
    """A cell with the combinations drawn for it."""

    step: str
    """The step that grades the texts, or else generates them."""
    combinations: Sequence[Combination]
    first: int = 0
    """Number of the first sample; above 0 if a data set reuses its combinations."""

    @property
    def numbers(self) -> range:
        """Return the numbers of the samples."""
        return range(self.first, self.first + self.generations)


@dataclass(frozen=True, slots=True)
class Place:
    """The source of a step's draws: a catalog, a partition, excluded skills and a seed."""

    catalog: Catalog
    partition: Partition
    exclude: tuple[str, ...]
    seed: int

    def pool(self, setting: Setting, exclude: Iterable[str] = ()) -> Side:
        """Return the skills and topics of a group of the partition."""
        return self.catalog.pool(setting, partition=self.partition.name, exclude=(*self.exclude, *exclude))

    def training_draw(self, setting: Setting, k: int, exclude: Iterable[str] = ()) -> Draw:
        """Make a draw for training data, which avoids the evaluation draws of all groups.

        Groups other than train and held-out are drawn with the train topics.
        """
        side = self.pool(setting, exclude)
        if setting in self.partition.groups:
            side = replace(side, topics=self.partition.train.topics)
        pools = self.catalog.pools(partition=self.partition.name, exclude=self.exclude)
        return training_draw(Draw(side=side, setting=setting, k=k, seed=self.seed), pools)

    def dataset_draw(self, step: DatasetStep, k: int) -> Draw:
        """Make the draw of a dataset step for one k."""
        setting = step.setting_of(k)
        if setting != "all":
            return self.training_draw(setting, k, step.exclude)
        draw = self.training_draw("train", k, step.exclude)
        topics = self.pool("all").topics if self.partition.any_topic_at_one else draw.side.topics
        return replace(draw, side=replace(draw.side, skills=self.pool("all", step.exclude).skills, topics=topics))


def place_of(drawing: DrawingStep | UndrawnCell | LabelParts, experiment: Experiment, catalog: Catalog) -> Place:
    """Return the source of a step's or cell's draws; the experiment's settings are the defaults."""
    own = catalog.member(drawing.catalog)
    is_elsewhere = drawing.catalog is not None
    partition = drawing.partition or (None if is_elsewhere else experiment.partition)
    exclude = () if is_elsewhere else tuple(experiment.exclude)
    return Place(own, own.partition(partition), exclude, experiment.seed)


Around = Mapping[str, frozenset[str]]
"""Maps a step to the ids of combinations that its draws skip because one of its students was trained on them."""
_NOTHING: Final[Around] = MappingProxyType({})


def cells_of(experiment: Experiment, catalog: Catalog, around: Around = _NOTHING) -> list[PlannedCell]:
    """Return the cells of all steps in order; one error reports all impossible draws."""
    cells: list[PlannedCell] = []
    errors: list[UserError] = []
    for step in experiment.steps:
        for cell in step.undrawn_cells(experiment.steps):
            try:
                cells.append(_drawn_cell(step, cell, experiment, catalog, around))
            except UserError as error:
                errors.append(UserError(f"steps.{step.name}: {error.message}", hint=error.hint))
    refuse(experiment.name, errors, hint="Request fewer, or set `combinations: all` to use every combination.")
    return cells


def step_cells(
    step: Step, experiment: Experiment, catalog: Catalog, around: Around = _NOTHING
) -> Iterator[PlannedCell]:
    """Return the cells of one step, whose students share the draws."""
    for cell in step.undrawn_cells(experiment.steps):
        yield _drawn_cell(step, cell, experiment, catalog, around)


def _drawn_cell(step: Step, cell: UndrawnCell, experiment: Experiment, catalog: Catalog, around: Around) -> PlannedCell:
    place = place_of(cell, experiment, catalog)
    if cell.purpose == "training":
        draw = place.training_draw(cell.setting, cell.k, cell.exclude)
    else:
        draw = Draw(side=place.pool(cell.setting, cell.exclude), setting=cell.setting, k=cell.k, seed=experiment.seed)
    draw = replace(draw, without=around.get(cell.source, frozenset()))
    reserved = experiment.reserved if cell.sets == "reserved" else None
    # At k = 0, each topic is one combination, so there may be fewer than requested.
    count = cell.count if cell.count is None or cell.k else min(cell.count, draw.total)
    drawn = _drawn(draw, count, is_ladder=cell.is_ladder and cell.k > 0, reserved=reserved)
    return PlannedCell(**vars(cell), step=step.name, combinations=drawn)


@lru_cache(maxsize=2048)
def _drawn(draw: Draw, count: int | None, *, is_ladder: bool, reserved: float | None) -> tuple[Combination, ...]:
    """Draw combinations; cached, because the checks, calls and scores of a run use the same draws."""
    if count is None:
        return tuple(draw_all(draw, reserved))
    if reserved is not None:
        return tuple(draw_reserved(draw, count, reserved))
    return tuple((draw_ladder if is_ladder else draw_combinations)(draw, count))


RowKey = tuple[str, str, str, int]
"""Student, grader, setting as named in tables, and k."""


def graded_cells(steps: Sequence[Step], experiment: Experiment) -> frozenset[RowKey]:
    """Return the rows of the score table that the given steps fill."""
    return frozenset(
        (cell.student, grader, cell.label, cell.k)
        for step in steps
        for cell in step.undrawn_cells(experiment.steps)
        for grader in cell.graders
    )


PlannedDraw = tuple[float, bool, Purpose]
"""The number of combinations (infinity for all), whether they form a ladder, and the draw's purpose."""


def planned_rows(experiment: Experiment) -> dict[RowKey, set[PlannedDraw]]:
    """Return the planned draws of each row of an experiment's score table."""
    rows: dict[RowKey, set[PlannedDraw]] = {}
    for step in experiment.steps:
        for cell in step.undrawn_cells(experiment.steps):
            for grader in cell.graders:
                key = (cell.student, grader, cell.label, cell.k)
                rows.setdefault(key, set()).add((cell.count or inf, cell.is_ladder, cell.purpose))
    return rows


def writers_and_graders(experiment: Experiment) -> set[tuple[str, str]]:
    """Return the writers of data sets with their graders. Their texts are not in the score table."""
    steps = [step for step in experiment.steps if step.stage == "dataset"]
    return {(student, grader) for step in steps for student in step.student_names for grader in step.grader_names}


def covers(experiment: Experiment, other: Experiment) -> bool:
    """Return whether an experiment plans all combinations and writers of another experiment."""
    rows = planned_rows(experiment)
    has_rows = all(
        any(count >= wanted and kind == wanted_kind for count, *kind in rows.get(key, ()))
        for key, draws in planned_rows(other).items()
        for wanted, *wanted_kind in draws
    )
    return has_rows and writers_and_graders(other) <= writers_and_graders(experiment)


def uncovered(former: Iterable[Experiment], following: Experiment) -> list[Experiment]:
    """List the former experiments of a run that the next experiment does not cover, without repetitions."""
    kept: list[Experiment] = []
    for experiment in former:
        larger = [e for e in kept if covers(e, experiment)]
        if larger:  # the later file takes precedence
            names = {
                "students": larger[0].students | experiment.students,
                "graders": larger[0].graders | experiment.graders,
            }
            experiment = larger[0].model_copy(update=names)
        kept = [*(e for e in kept if not covers(experiment, e)), experiment]
    return [e for e in kept if not covers(following, e)]


Settings = StudentSettings | GraderSettings


def settings_by_model(experiment: Experiment, students: Sequence[str], graders: Sequence[str]) -> dict[str, Settings]:
    """Return model settings by name in tasks, `student:NAME` or `grader:NAME`, without graders that are only code."""
    return {f"student:{name}": experiment.students[name] for name in students} | {
        f"grader:{name}": experiment.graders[name] for name in graders if experiment.graders[name].asked
    }
