"""Models that train steps made: `step:NAME` as a student, and what a checkpoint was trained on."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from skillmix.errors import UserError
from skillmix.experiment.experiment import Experiment, StudentSettings
from skillmix.experiment.sections import student_name
from skillmix.hashing import short_id
from skillmix.models.checkpoints import named_folders
from skillmix.models.lineage_files import LINEAGE, read_lineage
from skillmix.models.specs import parse_spec
from skillmix.runs.run import Run


@dataclass(frozen=True, slots=True)
class Lineage:
    """What a checkpoint says of itself."""

    combinations: frozenset[str]
    """Everything that it or a model before it was trained on."""
    identity: str
    """A hash of all that is said: another data set, recipe or seed is another model."""


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


def model_folder(run: Run, step: str) -> Path:
    """Where a train step puts its checkpoint."""
    return run.step(step) / "model"


def with_trained(experiment: Experiment, run: Run) -> Experiment:
    """The experiment with a student for every train step whose checkpoint is there."""
    made = {
        step.name: settings_for(experiment, step.name).model_copy(
            update={"model": f"local:{model_folder(run, step.name)}"}
        )
        for step in experiment.steps
        if step.stage == "train" and (model_folder(run, step.name) / LINEAGE).is_file()
    }
    return experiment.model_copy(update={"students": {**made, **experiment.students}}) if made else experiment


def require_trained(experiment: Experiment, name: str) -> None:
    """Refuse a step whose student is not trained yet."""
    if name not in experiment.students:
        raise UserError(
            f"The model of step {name!r} is not there yet.",
            hint=f"Run the train step first: skillmix train … --step {name}.",
        )


def trained_combinations(run: Run, experiment: Experiment) -> dict[str, frozenset[str]]:
    """What each student of an experiment was trained on, as far as checkpoints say."""
    found = {name: lineage_of(settings.model) for name, settings in with_trained(experiment, run).students.items()}
    return {name: lineage.combinations for name, lineage in found.items() if lineage is not None}


def lineage_of(model: str) -> Lineage | None:
    """What the checkpoint behind a spec was trained on; None if it does not say, or is not a folder."""
    documents = list(_documents(model))
    if not documents:
        return None
    trained = [document.get("combinations") for document in documents]
    ids = {str(one) for some in trained if isinstance(some, list) for one in some}
    return Lineage(frozenset(ids), short_id("lineage", *documents))


def _documents(model: str, above: tuple[str, ...] = ()) -> Iterator[Mapping[str, object]]:
    """What a checkpoint, its adapters, and the models that they were made from say of themselves."""
    if model in above:
        raise UserError(
            f"The model {model} was made from itself, as its {LINEAGE} says.",
            hint="Restore the file, or train it again.",
        )
    spec = parse_spec(model)
    if spec.provider not in ("local", "bundled"):
        return
    for folder in named_folders(spec):
        told = read_lineage(folder)
        if told is not None and told.get("kind") == "model":
            yield told
            base = told.get("base")
            if isinstance(base, dict) and isinstance(base.get("spec"), str) and base["spec"] != model:
                yield from _documents(base["spec"], (*above, model))
