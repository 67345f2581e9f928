"""`skillmix run` and `skillmix evaluate`: generate and grade what is missing, then score."""

import asyncio
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass
from itertools import product
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
from skillmix.config.price_file import load_prices
from skillmix.config.prompt_sets import load_prompts
from skillmix.core.calls import Model
from skillmix.core.catalog import Catalog
from skillmix.core.combinations import Combination
from skillmix.core.errors import UserError
from skillmix.core.prices import Price, price_of
from skillmix.core.specs import parse_spec
from skillmix.engine.journal import JournalWriter
from skillmix.engine.run_folder import RunFolder, new_run
from skillmix.engine.scheduler import LimitedPurse, Purse, Scheduler, Tally, Task
from skillmix.models.opening import open_model
from skillmix.stages.conversations import TURNS, Conversations
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


def run_experiment(path: Path, *, prices: Path | None = None) -> RunResult:
    """Every step of an experiment file that this version knows; the others are refused before the first call."""
    return run_checked(load_experiment(path), prices=prices)


def run_checked(experiment: Experiment, *, prices: Path | None = None) -> RunResult:
    """The same for an experiment that is in memory."""
    for step in experiment.steps:
        if not isinstance(step, EvaluateStep | GenerateStep | ReportStep):
            raise UserError(
                f"The stage {step.stage!r} of step {step.name!r} is not here yet.", hint="Leave the step out."
            )
    catalog = load_catalog(experiment.catalog)
    run = new_run(experiment.name)
    continue_run(run, experiment, catalog)
    with run.write() as journal:
        purse = _purse(experiment, journal, load_prices(prices))
        tally = asyncio.run(_run_steps(experiment, catalog, journal, purse))
    run.note_invocation({"command": "run", "called": tally.called, "catalog_hash": catalog.content_hash()})
    failed = {str(key): reason for key, reason in tally.failed.items()}
    return RunResult(run, tally.called, tally.found, failed, tally.stopped)


async def _run_steps(experiment: Experiment, catalog: Catalog, journal: JournalWriter, purse: Purse) -> Tally:
    names = {experiment.prompts, *(s.prompts or experiment.prompts for s in experiment.students.values())}
    prompts = {name: load_prompts(name) for name in names}
    total = Tally()
    await _probe(experiment)
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
            scheduler = Scheduler(models, journal, purse=purse)
            scheduler.tally = total
            expected = total.called + total.found + _expected_calls(cells, conversations)
            watch = asyncio.create_task(_watch(step.name, total, expected))
            try:
                tasks = _first_turns(cells, conversations, journal, total)
                await scheduler.run(tasks, conversations.follow)
            finally:
                watch.cancel()
    return total


def _expected_calls(cells: list[Cell], conversations: Conversations) -> int:
    """Calls if every text can be graded and every vote be read."""
    told = {
        (c.student, combination.id, g) for c in cells for combination in c.combinations for g in range(c.generations)
    }
    return len(told) * (TURNS + conversations.votes_wanted())


def _first_turns(
    cells: list[Cell], conversations: Conversations, journal: JournalWriter, tally: Tally
) -> Iterator[Task]:
    """One first turn for each conversation that is not over; settings share those they have in common.

    What is plainly unfinished comes first, so that a long run goes on at once. A conversation with all its calls is
    looked at for votes that cannot be read; the first of each cell is walked through in full, where a changed setting
    shows.
    """
    whole = TURNS + conversations.votes_wanted()
    done = {student: journal.calls_by_conversation(student) for student in {cell.student for cell in cells}}
    later: list[tuple[Cell, Combination, int]] = []
    seen: set[tuple[str, str, int]] = set()
    for cell in cells:
        for place, (combination, generation) in enumerate(product(cell.combinations, range(cell.generations))):
            conversation = (cell.student, combination.id, generation)
            if conversation in seen:
                continue
            seen.add(conversation)
            if place > 0 and done[cell.student].get((combination.id, generation), 0) >= whole:
                later.append((cell, combination, generation))
            else:
                yield conversations.first(cell.student, combination, generation)
    for cell, combination, generation in later:
        calls = journal.conversation(cell.student, combination.id, generation)
        if conversations.is_settled(combination, calls):
            tally.found += len(calls)
        else:
            yield conversations.first(cell.student, combination, generation)


def _entries(
    experiment: Experiment, students: Iterable[str], graders: Iterable[str]
) -> dict[str, StudentSettings | GraderSettings]:
    """Settings by the names that tasks use."""
    return {f"student:{name}": experiment.students[name] for name in students} | {
        f"grader:{name}": experiment.graders[name] for name in graders
    }


def _open_models(
    experiment: Experiment, students: Iterable[str], graders: Iterable[str], opened: AsyncExitStack
) -> dict[str, Model]:
    models: dict[str, Model] = {}
    for name, settings in _entries(experiment, students, graders).items():
        spec = parse_spec(settings.model)
        models[name] = open_model(spec, concurrency=settings.concurrency, timeout=settings.timeout)
        opened.push_async_callback(models[name].close)
    return models


async def _probe(experiment: Experiment) -> None:
    """Find a wrong key, address or name of any model before the first paid call."""
    async with AsyncExitStack() as opened:
        used = [step for step in experiment.steps if isinstance(step, EvaluateStep | GenerateStep)]
        students = {name for step in used for name in step.students}
        graders = {name for step in used if isinstance(step, EvaluateStep) for name in step.graders}
        models = _open_models(experiment, students, graders, opened)
        for name, problem in zip(models, await asyncio.gather(*(m.probe() for m in models.values())), strict=True):
            if problem is not None:
                raise UserError(
                    f"{name.replace(':', ' ')} cannot be used: {problem.reason}. {problem.detail}".rstrip(),
                    hint="Check its name, its address and the key in the environment. No call was made.",
                )


def _purse(experiment: Experiment, journal: JournalWriter, prices: dict[str, Price]) -> Purse:
    budget = experiment.budget
    entries = _entries(experiment, experiment.students, experiment.graders)
    known = {name: price_of(parse_spec(settings.model), prices) for name, settings in entries.items()}
    unknown = sorted({entries[name].model for name, price in known.items() if price is None})
    if budget.max_usd is not None and unknown:
        raise UserError(
            f"budget.max_usd cannot be kept: the price of {', '.join(unknown)} is not known.",
            hint="Add it to a price file and give that with --prices.",
        )
    return LimitedPurse(known, spent=journal.spent(), max_calls=budget.max_calls, max_usd=budget.max_usd)


async def _watch(step: str, tally: Tally, expected: int) -> None:
    """How it goes, on standard error: one line that is written over on a terminal, a line now and then elsewhere."""
    is_terminal = sys.stderr.isatty()
    started, before = time.monotonic(), tally.called
    with suppress(asyncio.CancelledError):
        while True:
            await asyncio.sleep(1.0 if is_terminal else _PROGRESS_EVERY)
            rate = (tally.called - before) / (time.monotonic() - started)
            left = max(0, expected - tally.called - tally.found)
            minutes = f"about {left / rate / 60:.0f} min left" if rate else "time left unknown"
            line = (
                f"{step}: {tally.called} calls, {tally.found} found, about {left} to go, {rate:.0f}/s, {minutes}, "
                f"{tally.tokens} tokens, {tally.cost_usd:.2f} US dollars, {tally.retried} tried again"
            )
            sys.stderr.write(f"\r{line}\x1b[K" if is_terminal else f"{line}\n")
            sys.stderr.flush()
