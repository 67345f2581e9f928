"""The lineages of students, read from model files, declared by an experiment, or continued by training."""

from collections.abc import Iterable, Mapping

from skillmix.errors import UserError
from skillmix.experiment.experiment import Experiment
from skillmix.experiment.step_base import JOINED, student_name
from skillmix.models.lineage import Lineage, continued_lineage, lineage_in, lineage_of, lineage_on
from skillmix.models.lineage_files import LINEAGE_FILE, DatasetFile, read_dataset_file
from skillmix.prompts.prompt_set import load_prompts
from skillmix.runs.run import Run
from skillmix.runs.students import made_students, model_folder, settings_for, with_trained


def lineage_of_student(
    experiment: Experiment, name: str, datasets: Mapping[str, DatasetFile] | None = None
) -> Lineage | None:
    """Return a student's lineage, from its model's files or as declared in the experiment; None for a base.

    `datasets` is passed to `lineage_of`. Training a student with a declared lineage continues that lineage.
    """
    settings = experiment.students[name]
    own = lineage_of(settings.model, datasets)
    root = _root_of(experiment, name)
    if root != name and own is not None and experiment.students[root].declares_lineage:
        before = lineage_of_student(experiment, root, datasets)
        return own if before is None else continued_lineage(before, own)
    if not settings.declares_lineage:
        return own
    if own is not None:
        raise UserError(
            f"The student {name} declares a lineage, but its model {settings.model} already has a {LINEAGE_FILE}.",
            hint="Remove lineage, tuned_from and trained_on from the student; skillmix reads the model's file.",
        )
    return _declared_lineage(experiment, name, datasets)


def _declared_lineage(experiment: Experiment, name: str, datasets: Mapping[str, DatasetFile] | None) -> Lineage:
    settings = experiment.students[name]
    try:
        if settings.lineage is not None:
            return lineage_in(settings.lineage, datasets)
        if settings.tuned_from is None:
            return lineage_on(settings.trained_on, base=f"unknown base of {settings.model}")
        tuned = lineage_on(settings.trained_on, base=experiment.students[settings.tuned_from].model)
    except UserError as error:
        raise UserError(f"students.{name}: {error.message}", hint=error.hint) from None
    before = lineage_of_student(experiment, settings.tuned_from, datasets)
    return tuned if before is None else continued_lineage(before, tuned)


def _root_of(experiment: Experiment, name: str) -> str:
    """Return the student at the start of the chain of train steps that made the named student."""
    bases = {made: student_name(source.removeprefix(JOINED)) for made, source in made_students(experiment).items()}
    seen = {name}
    while name in bases and bases[name] not in seen:
        name = bases[name]
        seen.add(name)
    return name


def check_students(experiment: Experiment) -> None:
    """Raise an error if a joined student's prompt set has several turns or a declared lineage cannot be right.

    A declared lineage cannot be right if its files are missing, are damaged, or contradict the model's own file.
    """
    for settings in (settings_for(experiment, name) for step in experiment.steps for name in step.student_names):
        if settings.joined:
            load_prompts(settings.prompts or experiment.prompts).require_bare_turn()
    for name, settings in experiment.students.items():
        if settings.declares_lineage:
            lineage_of_student(experiment, name)


def run_datasets(run: Run) -> list[DatasetFile]:
    """Return the data sets that the steps of a run produced."""
    folders = [file.parent for file in sorted(run.path.glob(f"*/dataset/{LINEAGE_FILE}"))]
    files = {folder.parent.name: read_dataset_file(folder, strict=True) for folder in folders}
    return [file.model_copy(update={"name": step}) for step, file in files.items() if file is not None]


def student_lineages(
    run: Run, experiment: Experiment | None, students: Iterable[str], datasets: Mapping[str, DatasetFile]
) -> dict[str, Lineage]:
    """Return the lineages of the tuned students; `datasets` are the data sets of the run, by hash."""
    known = with_trained(experiment, run) if experiment else None
    lineages = {}
    for student in students:
        if known and student in known.students:
            lineage = lineage_of_student(known, student, datasets)
        else:
            lineage = lineage_of(f"local:{model_folder(run, student)}", datasets)
        if lineage is not None:
            lineages[student] = lineage
    return lineages
