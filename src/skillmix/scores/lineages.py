"""Lineage and data sets, as the steps of a run left them in their folders."""

from collections.abc import Iterable, Mapping
from pathlib import Path

from skillmix.experiment.experiment import Experiment
from skillmix.models.checkpoints import named_folders
from skillmix.models.lineage import DatasetFacts, Lineage, continued, dataset_facts, lineage_of
from skillmix.models.lineage_files import LINEAGE, read_lineage
from skillmix.models.specs import parse_spec
from skillmix.runs.run import Run
from skillmix.runs.students import settings_for
from skillmix.scores.compare import ComparableStudent


def run_datasets(run: Run) -> list[DatasetFacts]:
    """The data sets that a run made, by step."""
    found = []
    for file in sorted(run.path.glob(f"*/dataset/{LINEAGE}")):
        document = read_lineage(file.parent)
        if document is not None:
            found.append(dataset_facts(file.parents[1].name, document))
    return found


def run_lineages(
    run: Run, experiment: Experiment | None, students: Iterable[str], datasets: Iterable[DatasetFacts]
) -> dict[str, Lineage]:
    """Of every student whose weights lie where they can be asked; the others are bases."""
    by_hash = {facts.hash: facts for facts in datasets if facts.hash}
    found = {}
    for student in students:
        settings = experiment.students.get(student) if experiment else None
        spec = settings.model if settings else f"local:{run.path / student / 'model'}"
        lineage = _lineage_of_spec(spec, by_hash)
        if lineage is not None:
            found[student] = lineage
    return found


def student_specs(experiment: Experiment) -> dict[str, str]:
    """What every student is, those that train steps made included."""
    trained = {step.name: f"made by step {step.name}" for step in experiment.steps if step.stage == "train"}
    return {name: s.model for name, s in experiment.students.items()} | trained


def run_contenders(
    run: Run, experiment: Experiment | None, students: Iterable[str], lineages: Mapping[str, Lineage]
) -> list[ComparableStudent]:
    """Students with what decides whom they may be compared with."""
    specs = student_specs(experiment) if experiment else {}
    found = []
    for student in students:
        lineage = lineages.get(student)
        seed = lineage.seed if lineage and lineage.seed is not None else experiment.seed if experiment else 0
        partition = (lineage.partition if lineage else None) or (experiment.partition if experiment else None)
        prompts, decoding = _asked_with(experiment, student) if experiment and specs else ("", "")
        spec = specs.get(student, student)
        found.append(
            ComparableStudent(run.name, student, spec, prompts, lineage, partition or "default", seed, decoding)
        )
    return found


def _asked_with(experiment: Experiment, student: str) -> tuple[str, str]:
    """A student's prompt set, and how it draws."""
    settings = settings_for(experiment, student)
    decoding = f"temperature {settings.temperature}, top_p {settings.top_p}, {settings.max_tokens} tokens"
    return settings.prompts or experiment.prompts, decoding


_LONGEST_LINE = 50
"""Of models trained from one another; a longer one goes in a circle."""


def _lineage_of_spec(spec: str, by_hash: Mapping[str, DatasetFacts], depth: int = 0) -> Lineage | None:
    """What a checkpoint says of itself, and of those it was trained from."""
    if not spec.startswith(("local:", "bundled:")) or depth > _LONGEST_LINE:
        return None
    for folder in reversed(named_folders(parse_spec(spec))):  # an adapter says more than what it lies on
        document = read_lineage(folder)
        if document is not None and document.get("kind") == "model":
            lineage = lineage_of(document, {**by_hash, **_beside(document)})
            before = _lineage_of_spec(lineage.base, by_hash, depth + 1)
            return continued(lineage, before) if before else lineage
    return None


def _beside(document: dict[str, object]) -> dict[str, DatasetFacts]:
    """Data sets of other runs that a model's file points to, where they still are."""
    listed = document.get("dataset")
    found = {}
    for entry in listed if isinstance(listed, list) else []:
        if isinstance(entry, dict) and isinstance(entry.get("path"), str):
            known = read_lineage(Path(entry["path"]))
            facts = dataset_facts(Path(entry["path"]).name, known) if known else None
            if facts and facts.hash and facts.hash == entry.get("hash"):
                found[facts.hash] = facts
    return found
