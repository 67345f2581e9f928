"""What an experiment's steps of calls consist of: cells of a table, and the conversations behind them."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import product
from typing import Final

from skillmix.catalog.catalog import Catalog, Setting
from skillmix.catalog.combinations import Combination, Draw, draw_combinations, draw_ladder
from skillmix.experiment.dataset_step import DatasetStep
from skillmix.experiment.experiment import (
    EvaluateStep,
    Experiment,
    GenerateStep,
    GraderSettings,
    GradeStep,
    Step,
    StudentSettings,
)
from skillmix.experiment.sections import student_name

CallStep = EvaluateStep | GenerateStep | GradeStep
CALL_STEPS: Final = (EvaluateStep, GenerateStep, GradeStep)
"""The steps that ask models."""


@dataclass(frozen=True, slots=True)
class PlannedCell:
    """One student, setting and k, with everything that is drawn for it."""

    step: str
    student: str
    graders: tuple[str, ...]
    setting: Setting
    k: int
    combinations: tuple[Combination, ...]
    generations: int
    first: int = 0
    """Number of the first generation; later ones extend what is there."""

    @property
    def numbers(self) -> range:
        """The generations' numbers."""
        return range(self.first, self.first + self.generations)


def cells_of(experiment: Experiment, catalog: Catalog) -> list[PlannedCell]:
    """Every cell of every step of calls, in the order of the steps."""
    steps = [step for step in experiment.steps if isinstance(step, CALL_STEPS)]
    return [cell for step in steps for cell in step_cells(step, experiment, catalog)]


def step_cells(step: CallStep, experiment: Experiment, catalog: Catalog) -> Iterator[PlannedCell]:
    """The cells of one step; the same draw serves all its students."""
    if isinstance(step, GradeStep):
        for earlier in experiment.steps:
            if earlier.name in step.of and isinstance(earlier, CALL_STEPS):
                for cell in step_cells(earlier, experiment, catalog):
                    yield replace(cell, step=step.name, graders=tuple(step.graders))
        return
    for setting in step.settings:
        pool = catalog.pool(setting, partition=experiment.partition, exclude=experiment.exclude)
        for k in step.k:
            draw = Draw(side=pool, setting=setting, k=k, seed=experiment.seed)
            is_ladder = isinstance(step, EvaluateStep) and step.ladder
            combinations = _drawn(draw, step.combinations, is_ladder=is_ladder)
            for student in step.students:
                yield PlannedCell(
                    step=step.name,
                    student=student_name(student),
                    graders=tuple(step.graders) if isinstance(step, EvaluateStep) else (),
                    setting=setting,
                    k=k,
                    combinations=combinations,
                    generations=step.generations,
                )


@lru_cache(maxsize=256)
def _drawn(draw: Draw, count: int, *, is_ladder: bool) -> tuple[Combination, ...]:
    """The same draw is wanted by checks, by the calls and by the scores of a run."""
    return tuple((draw_ladder if is_ladder else draw_combinations)(draw, count))


def drawn_settings(step: Step, experiment: Experiment) -> list[Setting]:
    """The settings that a step's combinations come from."""
    if isinstance(step, EvaluateStep | GenerateStep):
        return list(step.settings)
    if isinstance(step, DatasetStep):
        return ["all" if step.chosen.skills == "all" else "train"]
    earlier = [s for s in experiment.steps if isinstance(step, GradeStep) and s.name in step.of]
    return [setting for s in earlier for setting in drawn_settings(s, experiment)]


def data_writers(step: Step) -> list[str]:
    """Who writes a data set."""
    return [student_name(step.writer)] if isinstance(step, DatasetStep) and step.writer else []


def written_by(step: Step) -> list[str]:
    """The students that a step asks."""
    if isinstance(step, DatasetStep):
        return data_writers(step)
    return [student_name(reference) for reference in getattr(step, "students", [])]


GradedPlace = tuple[str, str, str, int]
"""Student, grader, setting and k."""


def graded_places(steps: Sequence[Step], experiment: Experiment) -> frozenset[GradedPlace]:
    """The cells that these steps grade."""
    places: set[GradedPlace] = set()
    for step in steps:
        of = step.of if isinstance(step, GradeStep) else [step.name]
        for source in experiment.steps:
            if source.name in of and isinstance(source, EvaluateStep | GenerateStep):
                names = product(source.students, getattr(step, "graders", ()), source.settings, source.k)
                places |= {(student_name(student), grader, setting, k) for student, grader, setting, k in names}
    return frozenset(places)


Settings = StudentSettings | GraderSettings


def entries(experiment: Experiment, students: Sequence[str], graders: Sequence[str]) -> dict[str, Settings]:
    """Settings by the names that tasks use; graders that are code alone are not asked."""
    return {f"student:{name}": experiment.students[name] for name in students} | {
        f"grader:{name}": experiment.graders[name] for name in graders if experiment.graders[name].asked
    }
