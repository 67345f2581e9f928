"""The students of an experiment, including the models that its train steps produce (`step:NAME`)."""

from collections.abc import Mapping
from pathlib import Path
from typing import Final

from skillmix.errors import UserError
from skillmix.experiment.experiment import Experiment, StudentSettings
from skillmix.experiment.step_base import JOINED, student_name
from skillmix.models.lineage_files import LINEAGE_FILE
from skillmix.prompts.prompt_set import turns_with
from skillmix.render import name_hint
from skillmix.runs.run import Run

_NO_DECLARATION: Final[Mapping[str, object]] = {"tuned_from": None, "trained_on": [], "lineage": None}
"""A trained student inherits the settings of its base, except for these lineage settings."""


def made_students(experiment: Experiment) -> dict[str, str]:
    """Map the student of each train step to its base, and each joined student to its reference `joined:step:NAME`."""
    asked = dict.fromkeys(reference for step in experiment.steps for reference in step.model_references)
    joined = {student_name(reference): reference for reference in asked if reference.startswith(JOINED)}
    return joined | {step.name: step.base for step in experiment.steps if step.stage == "train"}


def settings_for(experiment: Experiment, name: str) -> StudentSettings:
    """Return the settings of a student. A trained student has the settings of its base."""
    if name in experiment.students:
        return experiment.students[name]
    source = made_students(experiment).get(name)
    if source is None:
        raise UserError(
            f"There is no student {name!r}.",
            hint=name_hint(name, experiment.students, otherwise="A step can use students and earlier train steps."),
        )
    settings = settings_for(experiment, student_name(source.removeprefix(JOINED)))
    return settings.model_copy(update={"joined": True}) if source.startswith(JOINED) else settings


def turns_of(experiment: Experiment, student: str) -> int:
    """Return the number of turns in a student's conversations, which its prompt set determines."""
    return turns_with(settings_for(experiment, student).prompts or experiment.prompts)


def has_settings(run: Run, name: str) -> bool:
    """Whether the experiments of a run define a student's settings; always true for an imported run."""
    return run.is_imported or name in run.known_experiment.students or name in made_students(run.known_experiment)


def model_folder(run: Run, step: str) -> Path:
    """Return the folder in which a train step saves its checkpoint."""
    return run.step(step) / "model"


def with_trained(experiment: Experiment, run: Run) -> Experiment:
    """Return the experiment with the students that train steps have produced, including joined students."""
    steps = {n: s.removeprefix(JOINED) if s.startswith(JOINED) else n for n, s in made_students(experiment).items()}
    trained = {}
    for name, step in steps.items():
        if (model_folder(run, step) / LINEAGE_FILE).is_file():
            settings = settings_for(experiment, name)
            engine = "vllm" if settings.model.startswith("vllm:") else "local"
            own = {**_NO_DECLARATION, "model": f"{engine}:{model_folder(run, step)}"}
            trained[name] = settings.model_copy(update=own)
    return experiment.model_copy(update={"students": {**trained, **experiment.students}}) if trained else experiment


def require_trained(experiment: Experiment, name: str) -> None:
    """Raise an error if the student is not trained yet."""
    if name not in experiment.students:
        raise UserError(
            f"The model of step {name!r} is not trained yet.",
            hint=f"Run the train step first: skillmix train … --step {name}.",
        )
