"""Evaluate steps: students write and graders grade, all cells at once, or k by k with an early stop."""

from skillmix.catalog.catalog import Catalog
from skillmix.datasets.leakage import refuse_other_partitions
from skillmix.experiment.experiment import Experiment
from skillmix.experiment.steps import EvaluateStep
from skillmix.runs.calling import StepContext, calls_of, make_calls
from skillmix.runs.planned_work import PlannedCalls
from skillmix.runs.run import Run
from skillmix.runs.scheduler import CallCounts
from skillmix.scores.scoring import run_scores, skipped_cells
from skillmix.steps.calls import CallKind, draw_around_training, drawn_cells, skipped_combinations


class EvaluateKind(CallKind[EvaluateStep]):
    """Students write texts and graders grade them."""

    def check_students(self, step: EvaluateStep, experiment: Experiment, catalog: Catalog, run: Run) -> None:
        """Refuse students of another partition, and a draw that training data leave too few combinations for."""
        skipped_combinations(step, experiment, catalog, run)
        refuse_other_partitions(step, experiment, catalog)

    def prepare(self, step: EvaluateStep, context: StepContext) -> None:
        """Check students that an earlier step may just have trained, and draw around their data."""
        self.check_students(step, context.experiment, context.catalog, context.run)
        draw_around_training(step, context)

    async def make_calls(self, step: EvaluateStep, context: StepContext, counts: CallCounts) -> None:
        """With `stop_below`, make the calls k by k and skip the cells that an early stop cancels."""
        if not step.may_stop_early:
            await super().make_calls(step, context, counts)
            return
        cells = list(drawn_cells(step, context))
        for k in sorted(set(step.k)):
            skipped = skipped_cells(context.experiment, run_scores(context.run)) if k > min(step.k) else set()
            cells = [c for c in cells if (step.name, c.student, c.label, c.k) not in skipped]
            context.progress.expect(step.name, PlannedCalls(cells, context.experiment).total)
            await make_calls(calls_of(step), [c for c in cells if c.k == k], context, counts)
            if counts.stopped:
                break
