"""The calls that a step plans, for the progress bar and for models in this process."""

from collections.abc import Sequence

from skillmix.experiment.experiment import Experiment
from skillmix.experiment.step_base import Step
from skillmix.models.specs import ModelSpec, parse_spec, provider_of
from skillmix.runs.progress.time_left import Work
from skillmix.runs.run import TURNS
from skillmix.runs.students import settings_for


def calls_a_conversation(experiment: Experiment, graders: Sequence[str]) -> int:
    """The turns of a student, and the votes of graders that are models."""
    settings = [experiment.graders[name] for name in graders]
    return TURNS + sum(one.votes for one in settings if one.asked)


def planned_calls(step: Step, experiment: Experiment) -> Work:
    """The calls of a step, as far as the experiment file shows; the step corrects the number when it begins."""
    total = step.conversations(experiment.steps) * calls_a_conversation(experiment, step.grader_names)
    return Work(step.name, _kind(step, experiment), total, step.call_bound)


def _kind(step: Step, experiment: Experiment) -> str:
    """The models that are called; those in this process count as one, since a tuned model is as fast as its base."""
    models = [settings_for(experiment, name).model for name in step.student_names]
    models += [model for name in step.grader_names if (model := experiment.graders[name].asked)]
    names = {"here" if provider_of(model).is_in_process else model for model in models}
    return f"calls: {', '.join(sorted(names))}"


def first_model_here(step: Step, experiment: Experiment) -> ModelSpec | None:
    """The first model that a step loads into this process; None if the model is not trained yet."""
    for name in dict.fromkeys(step.student_names):
        if name in experiment.students:
            spec = parse_spec(experiment.students[name].model)
            if provider_of(spec).is_in_process:
                return spec
    return None
