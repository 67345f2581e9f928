"""Combinations that are evaluated somewhere, and so stay out of every data set; and the refusal of the reverse."""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path

from skillmix.catalog.catalog import Catalog
from skillmix.catalog.combinations import combination_of
from skillmix.catalog.files import load_catalog
from skillmix.catalog.yaml import read_text
from skillmix.datasets.leakage import Bars, bars_of
from skillmix.errors import UserError
from skillmix.experiment.experiment import Experiment, load_experiment
from skillmix.experiment.plan import step_cells
from skillmix.experiment.sections import student_name
from skillmix.experiment.steps import EvaluateStep
from skillmix.models.lineage import lineage_of


def bars_for(experiment: Experiment, catalog: Catalog) -> Bars:
    """What the data sets of an experiment must not hold."""
    found = evaluated(experiment, catalog)
    for name in experiment.leakage.evaluations:
        for combination in combinations_in(Path(name)):
            found.setdefault(combination, name)
    reserved = experiment.leakage.reserved
    return bars_of(catalog, partition=experiment.partition, evaluations=found, reserved=reserved)


def evaluated(experiment: Experiment, catalog: Catalog) -> dict[str, str]:
    """The combinations of an experiment's evaluations by id, with the step that has them."""
    found: dict[str, str] = {}
    for step in experiment.steps:
        if isinstance(step, EvaluateStep):
            # The draw is the same for every student.
            for cell in step_cells(step.model_copy(update={"students": step.students[:1]}), experiment, catalog):
                for combination in cell.combinations:
                    found.setdefault(combination.id, f"step {step.name} of {experiment.name}")
    return found


def combinations_in(path: Path) -> Iterator[str]:
    """Ids of the combinations in a file: an experiment, the output of `combinations --json`, or JSON lines."""
    if not path.is_file():
        raise UserError(f"There is no file {str(path)!r}.", hint="leakage.evaluations lists files.")
    if path.suffix in (".yaml", ".yml"):
        experiment = load_experiment(path)
        yield from evaluated(experiment, load_catalog(experiment.catalog))
        return
    text = read_text(path)
    try:
        documents = (
            json.loads(text) if path.suffix == ".json" else [json.loads(x) for x in text.split("\n") if x.strip()]
        )
        found = [_combination(document) for document in documents]
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        raise UserError(
            f"{path} does not hold combinations.",
            hint='It must be an experiment file, or JSON: [{"skills": […], "topic": …}], or one such object a line.',
        ) from None
    yield from found


def _combination(document: Mapping[str, object]) -> str:
    """The id of one; a name that is no text would be the id of something else, which bars nothing."""
    skills, topic = document["skills"], document["topic"]
    if not isinstance(skills, list) or not all(isinstance(name, str) and name for name in [*skills, topic]):
        raise ValueError("a name is not a string")
    return combination_of(skills, str(topic)).id


def trained_on(step: EvaluateStep, experiment: Experiment, catalog: Catalog) -> dict[str, int]:
    """For each student whose lineage is known, how many combinations of a step it was trained on."""
    wanted = set(evaluated(experiment.model_copy(update={"steps": [step]}), catalog))
    found = {}
    for reference in step.students:
        settings = experiment.students.get(student_name(reference))
        lineage = lineage_of(settings.model) if settings else None
        if lineage is not None:
            found[student_name(reference)] = len(wanted & lineage.combinations)
    return found


def refuse_trained(step: EvaluateStep, experiment: Experiment, catalog: Catalog) -> None:
    """Stop before a student is evaluated on what it was trained on, unless the step says that it may."""
    if step.allow_trained:
        return
    for student, count in trained_on(step, experiment, catalog).items():
        if count:
            raise UserError(
                f"{student} was trained on {count} of the combinations of step {step.name}.",
                hint="Evaluate others (another seed), or set allow_trained: true; the scores then say so.",
            )
