"""Generate steps: students write, and nothing is graded."""

from skillmix.experiment.steps import GenerateStep
from skillmix.steps.calls import CallKind


class GenerateKind(CallKind[GenerateStep]):
    """Students write texts."""
