"""Grade steps: graders grade the texts of earlier steps."""

from skillmix.experiment.experiment import Experiment
from skillmix.experiment.steps import GradeStep
from skillmix.render import are
from skillmix.runs.calling import StepContext
from skillmix.runs.progress.terminal import say
from skillmix.steps.calls import CallKind
from skillmix.steps.estimates import Role
from skillmix.steps.step_kind import RunResult


class GradeKind(CallKind[GradeStep]):
    """Graders grade texts; a text that is not written yet is counted, not written."""

    def grader_role(self, step: GradeStep, experiment: Experiment) -> Role:
        """Graders of texts that an earlier step has already graded grade them again."""
        earlier = experiment.steps[: [other.name for other in experiment.steps].index(step.name)]
        has_grades = any(
            other.grader_names
            and (other.name in step.of or (isinstance(other, GradeStep) and {*other.of} & {*step.of}))
            for other in earlier
        )
        return "re-grader" if has_grades else "grader"

    def run(self, step: GradeStep, context: StepContext, result: RunResult) -> bool:
        """Grade the texts, and say how many are not written yet."""
        may_go_on = super().run(step, context, result)
        left_out = result.counts[step.name].left_out
        if left_out:
            say(f"{step.name}: {are(left_out, 'text')} not written yet and so not graded")
        return may_go_on
