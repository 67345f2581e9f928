"""Models that train steps made: `step:NAME` as a student, and what a checkpoint was trained on."""

from collections.abc import Iterable, Mapping
from pathlib import Path

from skillmix.errors import UserError
from skillmix.experiment.experiment import Experiment, StudentSettings
from skillmix.experiment.sections import student_name
from skillmix.models.lineage import DatasetFacts, Lineage, lineage_of
from skillmix.models.lineage_files import LINEAGE_FILE
from skillmix.runs.run import RunFolder


def settings_for(experiment: Experiment, name: str) -> StudentSettings:
    """How a student is asked; a trained one as its base is."""
    seen: set[str] = set()
    while name not in experiment.students:
        base = next((s.base for s in experiment.steps if s.name == name and s.stage == "train"), None)
        if base is None or name in seen:
            raise UserError(f"There is no student {name!r}.", hint="A step names students and earlier train steps.")
        seen.add(name)
        name = student_name(base)
    return experiment.students[name]


def model_folder(run: RunFolder, step: str) -> Path:
    """Where a train step puts its checkpoint."""
    return run.step(step) / "model"


def with_trained(experiment: Experiment, run: RunFolder) -> Experiment:
    """The experiment with a student for every train step whose checkpoint is there."""
    made = {
        step.name: settings_for(experiment, step.name).model_copy(
            update={"model": f"local:{model_folder(run, step.name)}"}
        )
        for step in experiment.steps
        if step.stage == "train" and (model_folder(run, step.name) / LINEAGE_FILE).is_file()
    }
    return experiment.model_copy(update={"students": {**made, **experiment.students}}) if made else experiment


def require_trained(experiment: Experiment, name: str) -> None:
    """Refuse a step whose student is not trained yet."""
    if name not in experiment.students:
        raise UserError(
            f"The model of step {name!r} is not there yet.",
            hint=f"Run the train step first: skillmix train … --step {name}.",
        )


def trained_combinations(run: RunFolder, experiment: Experiment) -> dict[str, frozenset[str]]:
    """What each student of an experiment was trained on, as far as checkpoints say."""
    found = {name: lineage_of(settings.model) for name, settings in with_trained(experiment, run).students.items()}
    return {name: lineage.combinations for name, lineage in found.items() if lineage is not None}


def student_lineages(
    run: RunFolder, experiment: Experiment | None, students: Iterable[str], datasets: Mapping[str, DatasetFacts]
) -> dict[str, Lineage]:
    """The lineages of those students that were tuned; `datasets` are those of the run, by hash."""
    found = {}
    for student in students:
        settings = experiment.students.get(student) if experiment else None
        lineage = lineage_of(settings.model if settings else f"local:{model_folder(run, student)}", datasets)
        if lineage is not None:
            found[student] = lineage
    return found
