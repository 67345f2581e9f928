"""`skillmix run` and `skillmix evaluate`: generate and grade what is missing, then score."""

import asyncio
import sys
from collections.abc import Iterator
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass
from pathlib import Path

from skillmix.config.catalogs import load_catalog
from skillmix.config.experiment import (
    EvaluateStep,
    Experiment,
    GenerateStep,
    GraderSettings,
    ReportStep,
    StudentSettings,
    load_experiment,
)
from skillmix.config.prompt_sets import load_prompts
from skillmix.core.calls import Model
from skillmix.core.catalog import Catalog
from skillmix.core.errors import UserError
from skillmix.core.specs import parse_spec
from skillmix.engine.journal import JournalWriter
from skillmix.engine.run_folder import RunFolder, new_run
from skillmix.engine.scheduler import FreePurse, LimitedPurse, Purse, Scheduler, Tally, Task
from skillmix.models.opening import open_model
from skillmix.stages.conversations import Conversations
from skillmix.stages.experiment import continue_run
from skillmix.stages.plan import Cell, step_cells

_PROGRESS_EVERY = 5.0


@dataclass(frozen=True, slots=True)
class RunResult:
    """How an experiment went."""

    run: RunFolder
    called: int
    found: int
    failed: dict[str, str]
    stopped: str | None

    @property
    def is_complete(self) -> bool:
        """Whether nothing is missing."""
        return not self.failed and self.stopped is None


def run_experiment(path: Path) -> RunResult:
    """Every step of an experiment file that this version knows; the others are refused before the first call."""
    experiment = load_experiment(path)
    for step in experiment.steps:
        if not isinstance(step, EvaluateStep | GenerateStep | ReportStep):
            raise UserError(
                f"The stage {step.stage!r} of step {step.name!r} is not here yet.", hint="Leave the step out."
            )
    catalog = load_catalog(experiment.catalog)
    run = new_run(experiment.name)
    continue_run(run, experiment, catalog)
    with run.write() as journal:
        tally = asyncio.run(_run_steps(experiment, catalog, journal))
    run.note_invocation({"command": "run", "called": tally.called, "catalog_hash": catalog.content_hash()})
    failed = {str(key): reason for key, reason in tally.failed.items()}
    return RunResult(run, tally.called, tally.found, failed, tally.stopped)


async def _run_steps(experiment: Experiment, catalog: Catalog, journal: JournalWriter) -> Tally:
    names = {experiment.prompts, *(s.prompts or experiment.prompts for s in experiment.students.values())}
    prompts = {name: load_prompts(name) for name in names}
    total = Tally()
    for step in experiment.steps:
        if not isinstance(step, EvaluateStep | GenerateStep):
            continue
        graders = step.graders if isinstance(step, EvaluateStep) else []
        cells = list(step_cells(step, experiment, catalog))
        conversations = Conversations(experiment, catalog, prompts, graders=graders)
        for cell in cells:
            journal.add_combinations(cell.combinations)
        async with AsyncExitStack() as opened:
            models = _open_models(experiment, step.students, graders, opened)
            scheduler = Scheduler(models, journal, purse=_purse(experiment, journal))
            scheduler.tally = total
            watch = asyncio.create_task(_watch(step.name, total))
            try:
                await scheduler.run(_first_turns(cells, conversations), conversations.follow)
            finally:
                watch.cancel()
    return total


def _first_turns(cells: list[Cell], conversations: Conversations) -> Iterator[Task]:
    """One first turn for each conversation; settings share those they have in common."""
    seen: set[tuple[str, str, int]] = set()
    for cell in cells:
        for combination in cell.combinations:
            for generation in range(cell.generations):
                conversation = (cell.student, combination.id, generation)
                if conversation not in seen:
                    seen.add(conversation)
                    yield conversations.first(cell.student, combination, generation)


def _open_models(
    experiment: Experiment, students: list[str], graders: list[str], opened: AsyncExitStack
) -> dict[str, Model]:
    models: dict[str, Model] = {}
    entries: list[tuple[str, StudentSettings | GraderSettings]] = [
        *((f"student:{name}", experiment.students[name]) for name in students),
        *((f"grader:{name}", experiment.graders[name]) for name in graders),
    ]
    for name, settings in entries:
        spec = parse_spec(settings.model)
        models[name] = open_model(spec, concurrency=settings.concurrency, timeout=settings.timeout)
        opened.push_async_callback(models[name].close)
    return models


def _purse(experiment: Experiment, journal: JournalWriter) -> Purse:
    budget = experiment.budget
    if budget.max_usd is not None:
        raise UserError("budget.max_usd needs prices, which are not here yet.", hint="Use budget.max_calls for now.")
    if budget.max_calls is None:
        return FreePurse()
    names = [f"student:{name}" for name in experiment.students] + [f"grader:{name}" for name in experiment.graders]
    return LimitedPurse(dict.fromkeys(names), spent=journal.spent(), max_calls=budget.max_calls, max_usd=None)


async def _watch(step: str, tally: Tally) -> None:
    """A plain line now and then, on standard error."""
    with suppress(asyncio.CancelledError):
        while True:
            await asyncio.sleep(_PROGRESS_EVERY)
            sys.stderr.write(f"{step}: {tally.called} calls, {tally.found} found, {tally.retried} tried again\n")
