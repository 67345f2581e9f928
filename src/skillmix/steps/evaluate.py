"""Evaluate steps: students write and graders grade, all cells at once, or k by k with an early stop."""

from skillmix.datasets.leakage import refuse_trained
from skillmix.experiment.plan import step_cells
from skillmix.experiment.steps import EvaluateStep
from skillmix.runs.calling import StepContext, calls_of, make_calls
from skillmix.runs.scheduler import CallCounts
from skillmix.scores.scoring import run_scores, skipped_cells
from skillmix.steps.calls import CallKind, expect_calls
from skillmix.steps.step_kind import RunResult


class EvaluateKind(CallKind[EvaluateStep]):
    """Students write texts and graders grade them."""

    def check_students(self, step: EvaluateStep, context: StepContext) -> None:
        """Refuse students that were trained on combinations of the step."""
        refuse_trained(step, context.experiment, context.catalog)

    def run(self, step: EvaluateStep, context: StepContext, result: RunResult) -> bool:
        """Check students that an earlier step may just have trained, then make the calls."""
        self.check_students(step, context)
        return super().run(step, context, result)

    async def make_calls(self, step: EvaluateStep, context: StepContext, counts: CallCounts) -> None:
        """With `stop_below`, make the calls k by k and skip the cells that an early stop cancels."""
        if not step.may_stop_early:
            await super().make_calls(step, context, counts)
            return
        cells = list(step_cells(step, context.experiment, context.catalog))
        expect_calls(step, cells, context)
        for k in sorted(set(step.k)):
            skipped = skipped_cells(context.experiment, run_scores(context.run)) if k > min(step.k) else set()
            cells = [c for c in cells if (step.name, c.student, c.label, c.k) not in skipped]
            expect_calls(step, cells, context)
            await make_calls(calls_of(step), [c for c in cells if c.k == k], context, counts)
            if counts.stopped:
                break
