"""A run's own copy of its experiment: written once, compared ever after."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from typing import Final

import yaml

from skillmix.catalog.catalog import Catalog
from skillmix.catalog.yaml import read_yaml
from skillmix.errors import UserError
from skillmix.experiment.experiment import Experiment, experiment_of
from skillmix.prompts.prompt_set import PromptSet
from skillmix.prompts.rubric import Phrases
from skillmix.runs.run import RunFolder, write_whole


def read_experiment(run: RunFolder) -> dict[str, object]:
    """The experiment as it was resolved when the run was made."""
    document = read_yaml(run.experiment_file)
    if not isinstance(document, dict):
        raise UserError(f"{run.experiment_file} is damaged.", hint="Restore it from a copy.")
    return document


def criteria_of(experiment: Mapping[str, object]) -> Phrases:
    """How the criteria of a run are worded."""
    stored = experiment.get("criteria")
    if not isinstance(stored, dict):
        return Phrases()
    known = {name: str(stored[name]) for name in ("skill", "topic", "sense", "length") if name in stored}
    return Phrases(**known)


def begin_run(run: RunFolder, experiment: Mapping[str, object]) -> None:
    """Make the folder, or check that it belongs to this experiment."""
    refuse_other_import(run, experiment)
    if not run.experiment_file.exists():
        run.path.mkdir(parents=True, exist_ok=True)
        write_whole(run.experiment_file, yaml.safe_dump(dict(experiment), sort_keys=False, allow_unicode=True))


def refuse_other_import(run: RunFolder, experiment: Mapping[str, object]) -> None:
    """Check that a run, if there is one, belongs to this experiment."""
    if not run.experiment_file.exists():
        return
    stored = read_experiment(run)
    changed = sorted(k for k in experiment.keys() | stored.keys() if experiment.get(k) != stored.get(k))
    if changed:
        has = ", ".join(f"{key}: {stored.get(key)!r}" for key in changed)
        raise UserError(
            f"The run {run.path} exists with another {', '.join(changed)}.",
            hint=f"It has {has}. Use another run name, or set it back.",
        )


_FIXED: Final = ("name", "seed", "catalog", "catalog_hash", "partition", "exclude")
"""What a run cannot change; more combinations, generations, rounds, k, students and graders only extend it."""


def continue_run(run: RunFolder, experiment: Experiment, catalog: Catalog) -> None:
    """Make a run's folder, or go on with it; its copy of the experiment is the latest one.

    Whoever calls it holds the run's lock.
    """
    document = checked_document(run, experiment, catalog)
    run.path.mkdir(parents=True, exist_ok=True)
    write_whole(run.experiment_file, yaml.safe_dump(document, sort_keys=False, allow_unicode=True))


@contextmanager
def continued(
    run: RunFolder, experiment: Experiment, catalog: Catalog, *, has_made: Callable[[], bool]
) -> Iterator[None]:
    """Make an experiment the run's own; one that is refused before it has made anything leaves the former in place."""
    before = run.experiment_file.read_text(encoding="utf-8") if run.experiment_file.exists() else None
    continue_run(run, experiment, catalog)
    try:
        yield
    except UserError:
        if before is not None and not has_made():
            write_whole(run.experiment_file, before)
        raise


def checked_document(run: RunFolder, experiment: Experiment, catalog: Catalog) -> dict[str, object]:
    """An experiment as its run keeps it; an error if the run is there and cannot become it."""
    document: dict[str, object] = experiment.model_dump(mode="json")
    document["catalog_hash"] = catalog.content_hash()
    stored = read_experiment(run) if run.experiment_file.exists() else document
    changed = [key for key in _FIXED if stored.get(key) != document.get(key)]
    if changed:
        has = ", ".join(f"{key}: {stored.get(key)!r}" for key in changed)
        raise UserError(
            f"The run {run.path} exists with another {', '.join(changed)}.",
            hint=f"It has {has}. Use another name for the experiment, or set it back.",
        )
    return document


def experiment_of_run(document: Mapping[str, object]) -> Experiment | None:
    """The experiment of a run that made its own calls; None for an imported one."""
    if "students" not in document:
        return None
    settings = {key: value for key, value in document.items() if key != "catalog_hash"}
    return experiment_of(settings, source="experiment.yaml")


def imported_experiment(
    run: RunFolder, *, stage: str, catalog: Catalog | None = None, prompts: PromptSet | None = None
) -> dict[str, object]:
    """The experiment of a run whose calls were made elsewhere; its criteria are how the graders worded theirs."""
    return {
        "name": run.name,
        "seed": None,
        "catalog": catalog.name if catalog else None,
        "catalog_hash": catalog.content_hash() if catalog else None,
        "partition": None,
        "prompts": prompts.name if prompts else None,
        "criteria": asdict(prompts.phrases if prompts else Phrases()),
        "steps": [{"name": "import", "stage": stage}],
    }
