"""Generate steps: students write, and nothing is graded."""

from skillmix.experiment.steps import GenerateStep
from skillmix.runs.calling import StepContext
from skillmix.steps.calls import CallKind, draw_around_training


class GenerateKind(CallKind[GenerateStep]):
    """Students write texts."""

    def prepare(self, step: GenerateStep, context: StepContext) -> None:
        """Draw the combinations of an evaluation around what the students were trained on."""
        if step.purpose == "evaluation":
            draw_around_training(step, context)
