"""What an experiment's evaluations consist of: cells of a table, and the conversations behind them."""

from collections.abc import Iterator
from dataclasses import dataclass

from skillmix.config.experiment import EvaluateStep, Experiment, GenerateStep
from skillmix.core.catalog import Catalog, Setting
from skillmix.core.combinations import Combination, Draw, draw_combinations, draw_ladder


@dataclass(frozen=True, slots=True)
class Cell:
    """One student, setting and k, with everything that is drawn for it."""

    student: str
    graders: tuple[str, ...]
    setting: Setting
    k: int
    combinations: tuple[Combination, ...]
    generations: int


def cells_of(experiment: Experiment, catalog: Catalog) -> list[Cell]:
    """Every cell of every evaluation, in the order of the steps."""
    cells = []
    for step in experiment.steps:
        if isinstance(step, EvaluateStep | GenerateStep):
            cells += list(step_cells(step, experiment, catalog))
    return cells


def step_cells(step: EvaluateStep | GenerateStep, experiment: Experiment, catalog: Catalog) -> Iterator[Cell]:
    """The cells of one step; the same draw serves all its students."""
    for setting in step.settings:
        pool = catalog.pool(setting, partition=experiment.partition, exclude=experiment.exclude)
        for k in step.k:
            draw = Draw(side=pool, setting=setting, k=k, seed=experiment.seed)
            is_ladder = isinstance(step, EvaluateStep) and step.ladder
            combinations = (draw_ladder if is_ladder else draw_combinations)(draw, step.combinations)
            for student in step.students:
                yield Cell(
                    student=student,
                    graders=tuple(step.graders) if isinstance(step, EvaluateStep) else (),
                    setting=setting,
                    k=k,
                    combinations=tuple(combinations),
                    generations=step.generations,
                )
