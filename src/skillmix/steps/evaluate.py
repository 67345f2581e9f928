"""The steps that make calls: all cells at once, or k by k with an early stop."""

from collections.abc import Sequence

from skillmix.experiment.experiment import EvaluateStep
from skillmix.experiment.plan import CallStep, PlannedCell, step_cells
from skillmix.runs.calling import StepContext, calls_of, make_calls
from skillmix.runs.planned_work import calls_a_conversation
from skillmix.runs.scheduler import CallCounts
from skillmix.scores.scoring import run_scores, skipped_cells


async def work_on(step: CallStep, place: StepContext, tally: CallCounts) -> None:
    """Make the calls of a step; with an early stop k by k, else all at once."""
    cells = list(step_cells(step, place.experiment, place.catalog))
    _expect(step, cells, place)
    if not isinstance(step, EvaluateStep) or step.stop_below is None:
        await make_calls(calls_of(step), cells, place, tally)
        return
    for k in sorted(set(step.k)):
        skipped = skipped_cells(place.experiment, run_scores(place.run)) if k > min(step.k) else set()
        cells = [c for c in cells if (step.name, c.student, c.setting, c.k) not in skipped]
        _expect(step, cells, place)
        await make_calls(calls_of(step), [c for c in cells if c.k == k], place, tally)
        if tally.stopped:
            break


def _expect(step: CallStep, cells: Sequence[PlannedCell], place: StepContext) -> None:
    """Tell how many calls the cells are."""
    conversations = {(c.student, combination.id, g) for c in cells for combination in c.combinations for g in c.numbers}
    calls = len(conversations) * calls_a_conversation(place.experiment, getattr(step, "graders", []))
    place.progress.expect(step.name, calls)
