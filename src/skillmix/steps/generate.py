"""Generate steps: students write, and nothing is graded."""

from skillmix.experiment.steps import GenerateStep
from skillmix.runs.calling import StepContext
from skillmix.steps.calls import CallKind, draw_around_training
from skillmix.steps.step_kind import RunResult


class GenerateKind(CallKind[GenerateStep]):
    """Students write texts."""

    def run(self, step: GenerateStep, context: StepContext, result: RunResult) -> bool:
        """Draw the combinations of an evaluation around what the students were trained on, and make the calls."""
        if step.purpose == "evaluation":
            draw_around_training(step, context)
        return super().run(step, context, result)
