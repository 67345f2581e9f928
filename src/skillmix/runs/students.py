"""The students of an experiment, including the models that its train steps make (`step:NAME`)."""

from collections.abc import Iterable, Mapping
from pathlib import Path

from skillmix.errors import UserError
from skillmix.experiment.experiment import Experiment, StudentSettings
from skillmix.experiment.step_base import student_name
from skillmix.models.lineage import DatasetFacts, Lineage, lineage_of
from skillmix.models.lineage_files import LINEAGE_FILE
from skillmix.runs.run import Run


def settings_for(experiment: Experiment, name: str) -> StudentSettings:
    """The settings of a student; a trained student has those of its base."""
    seen: set[str] = set()
    while name not in experiment.students:
        base = next((s.base for s in experiment.steps if s.name == name and s.stage == "train"), None)
        if base is None or name in seen:
            raise UserError(f"There is no student {name!r}.", hint="A step names students and earlier train steps.")
        seen.add(name)
        name = student_name(base)
    return experiment.students[name]


def model_folder(run: Run, step: str) -> Path:
    """The folder of the checkpoint that a train step makes."""
    return run.step(step) / "model"


def with_trained(experiment: Experiment, run: Run) -> Experiment:
    """The experiment with a student for every train step that has made its checkpoint."""
    trained = {
        step.name: settings_for(experiment, step.name).model_copy(
            update={"model": f"local:{model_folder(run, step.name)}"}
        )
        for step in experiment.steps
        if step.stage == "train" and (model_folder(run, step.name) / LINEAGE_FILE).is_file()
    }
    return experiment.model_copy(update={"students": {**trained, **experiment.students}}) if trained else experiment


def require_trained(experiment: Experiment, name: str) -> None:
    """Refuse a student that is not trained yet."""
    if name not in experiment.students:
        raise UserError(
            f"The model of step {name!r} is not trained yet.",
            hint=f"Run the train step first: skillmix train … --step {name}.",
        )


def trained_combinations(run: Run, experiment: Experiment) -> dict[str, frozenset[str]]:
    """The combinations that each tuned student of an experiment was trained on."""
    specs = {name: settings.model for name, settings in with_trained(experiment, run).students.items()}
    return {name: lineage.combinations for name, spec in specs.items() if (lineage := lineage_of(spec)) is not None}


def student_lineages(
    run: Run, experiment: Experiment | None, students: Iterable[str], datasets: Mapping[str, DatasetFacts]
) -> dict[str, Lineage]:
    """The lineages of those students that were tuned; `datasets` are those of the run, by hash."""
    lineages = {}
    for student in students:
        settings = experiment.students.get(student) if experiment else None
        lineage = lineage_of(settings.model if settings else f"local:{model_folder(run, student)}", datasets)
        if lineage is not None:
            lineages[student] = lineage
    return lineages
