"""What is checked before a run is changed: a run that is refused leaves everything as it was."""

import json
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from skillmix.catalog.catalog import Catalog
from skillmix.catalog.combinations import combination_of
from skillmix.datasets.evaluations import bars_for, refuse_trained
from skillmix.errors import UserError
from skillmix.experiment.dataset_step import DatasetStep
from skillmix.experiment.experiment import EvaluateStep, Experiment, Step
from skillmix.experiment.plan import CALL_STEPS, PlannedCell, cells_of, step_cells, written_by
from skillmix.experiment.report_step import ReportStep
from skillmix.experiment.train_step import TrainStep
from skillmix.models.lineage_files import read_model_lineage
from skillmix.prompts.files import load_prompts
from skillmix.runs.calling import StepContext, calls_of, conversations_of
from skillmix.runs.conversations import Conversations
from skillmix.runs.folders import DATASET, MODEL, REPORT, require_replaceable
from skillmix.runs.run import Run, open_run
from skillmix.runs.scheduler import CallCounts
from skillmix.runs.students import model_folder, require_trained, with_trained


def check_plan(experiment: Experiment, catalog: Catalog, steps: Sequence[Step], run: Run) -> None:
    """Find whatever is wrong with an experiment that can be known without its journal and without a call.

    Prompts and draws are checked for all steps, since whoever reads the run needs them; files and folders for those
    that are to be done.
    """
    _check_prompts(experiment, catalog)
    cells_of(experiment, catalog)
    if any(isinstance(step, DatasetStep) for step in steps):
        bars_for(experiment, catalog)
    for step in steps:
        if isinstance(step, TrainStep):
            _check_training(step, experiment, run)
        elif isinstance(step, DatasetStep):
            require_replaceable(run.step(step.name) / "dataset", DATASET)
        elif isinstance(step, ReportStep):
            require_replaceable(run.path / "report", REPORT)
            for name in step.runs:
                open_run(name)


def _check_prompts(experiment: Experiment, catalog: Catalog) -> None:
    own = [settings.prompts for settings in experiment.students.values()]
    own += [step.prompts for step in experiment.steps if isinstance(step, DatasetStep)]
    for name in sorted({experiment.prompts, *(name for name in own if name)}):
        load_prompts(name)
    any_combination = combination_of([catalog.skills[0].name], catalog.topics[0])
    graded = load_prompts(experiment.prompts)
    for settings in experiment.graders.values():
        if settings.asked is not None:
            graded.grader_prompt(catalog, any_combination, answer="", variant=settings.prompts)


def _check_training(step: TrainStep, experiment: Experiment, run: Run) -> None:
    from skillmix.training.sources import check_data

    check_data(step)
    folder = model_folder(run, step.name)
    made = read_model_lineage(folder)
    if made is None:
        require_replaceable(folder, MODEL)
    begun = _document(run.step(step.name) / "begun.json") if made is None else made
    recipe = begun.get("recipe")
    stored = {**(recipe if isinstance(recipe, dict) else {}), **({"seed": begun["seed"]} if "seed" in begun else {})}
    now = {**step.decisive(), "seed": experiment.seed if step.seed is None else step.seed}
    if any(stored[key] != value for key, value in now.items() if key in stored):
        raise was_other(run.step(step.name))


def was_other(folder: Path) -> UserError:
    """The error for a training run that was begun with other settings."""
    return UserError(
        f"{folder} is from other data, another base or another recipe.",
        hint="Remove the folder to train anew, or give the step another name.",
    )


def _document(file: Path) -> dict[str, Any]:
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def check_journal(place: StepContext, steps: Sequence[Step]) -> None:
    """Find what contradicts the journal: another model, prompt or decoding under a name that it knows.

    The first conversation of every cell is walked through as far as the journal has it.
    """
    now = replace(place, experiment=with_trained(place.experiment, place.run))
    for step in now.experiment.steps:
        for conversations, cell in _first_cells(step, now):
            if cell.student in now.experiment.students and cell.combinations:
                _walk(conversations, cell, now)
    _check_students(now, steps)


def _check_students(place: StepContext, steps: Sequence[Step]) -> None:
    """Find students that nobody has trained, and those that were trained on what they would be asked."""
    to_be_trained: set[str] = set()
    for step in steps:
        for name in written_by(step):
            if name not in to_be_trained:
                require_trained(place.experiment, name)
        if isinstance(step, EvaluateStep):
            refuse_trained(step, place.experiment, place.catalog)
        if isinstance(step, TrainStep):
            to_be_trained.add(step.name)


def _first_cells(step: Step, place: StepContext) -> Iterator[tuple[Conversations, PlannedCell]]:
    if isinstance(step, CALL_STEPS):
        conversations = conversations_of(calls_of(step), place)
        yield from ((conversations, cell) for cell in step_cells(step, place.experiment, place.catalog))
    elif isinstance(step, DatasetStep) and step.writer:
        yield from _first_of_dataset(step, place)


def _first_of_dataset(step: DatasetStep, place: StepContext) -> Iterable[tuple[Conversations, PlannedCell]]:
    from skillmix.datasets.from_runs import plan_of, writers_of
    from skillmix.datasets.waves import Waves

    waves = Waves(step, place, plan_of(step, place), writers_of(place.run.name, place.experiment), CallCounts())
    conversations = conversations_of(waves.calls, place)
    return [(conversations, cell) for cell in waves.first_cells()]


def _walk(conversations: Conversations, cell: PlannedCell, place: StepContext) -> None:
    """Ask the journal, and nobody else; a request that differs from the stored one is an error."""
    waiting = deque([conversations.first(cell.student, cell.combinations[0], cell.numbers[0])])
    while waiting:
        request = waiting.popleft().request
        outcome = place.journal.find(request)
        if outcome is not None:
            waiting.extend(conversations.follow(request, outcome))
