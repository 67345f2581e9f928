"""The calls that a step plans, for the progress bar and for models in this process."""

from collections.abc import Sequence

from skillmix.experiment.experiment import Experiment
from skillmix.experiment.step_base import Step
from skillmix.models.specs import ModelSpec, parse_spec, provider_of
from skillmix.runs.progress.time_left import Work
from skillmix.runs.run import TURNS
from skillmix.runs.students import settings_for, turns_of


def calls_a_conversation(experiment: Experiment, students: Sequence[str], graders: Sequence[str]) -> float:
    """The turns of a student, on average over several, and the votes of graders that are models."""
    settings = [experiment.graders[name] for name in graders]
    turns = [turns_of(experiment, name) for name in students] or [TURNS]
    return sum(turns) / len(turns) + sum(one.votes for one in settings if one.asked)


def planned_calls(step: Step, experiment: Experiment) -> Work:
    """The calls of a step, as far as the experiment file shows; the step corrects the number when it begins."""
    each = calls_a_conversation(experiment, step.student_names, step.grader_names)
    total = round(step.conversations(experiment.steps) * each)
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
