"""Manage the batches of a run: open the models that use batches, reserve costs, and determine when to stop waiting.

A conversation takes three to five batches in a row: the two turns of the student, the gradings, and retries of gradings
that could not be parsed.
"""

import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from skillmix.calls import Model
from skillmix.experiment.plan import Settings
from skillmix.models.specs import DIALECTS, BatchDialect, ModelOptions, dialect_of, parse_spec
from skillmix.render import plural
from skillmix.runs.budget import Budget
from skillmix.runs.journal import StoredBatch, Submissions
from skillmix.runs.progress import say

if TYPE_CHECKING:
    from skillmix.models.batches.clients import BatchClient
    from skillmix.runs.batches.batched import Batched
    from skillmix.runs.scheduler import Scheduler

WAIT: Final = 26 * 3600.0
"""A run stops waiting for its batches after this many seconds without a result. Providers end a batch after 24 h."""


@dataclass(frozen=True, slots=True)
class BatchWishes:
    """The user's options for the batches of a run."""

    wait: float = WAIT
    """The run stops waiting for its batches after this many seconds without a result; with 0, it does not wait."""
    forgets: bool = False
    """Whether to repeat calls that are in batches, although the batches may be billed as well."""


USUAL: Final = BatchWishes()


def batched(settings: Settings, name: str, stored: Sequence[StoredBatch]) -> BatchDialect | None:
    """Return the batch settings of a model, taken from its own settings or else from its calls in the journal.

    None if the model does not use batches.
    """
    if settings.batch:
        return dialect_of(parse_spec(str(settings.asked)), settings.batch)
    return next((DIALECTS.get(batch.dialect) for batch in stored if batch.model == name), None)


def open_batched(
    used: Mapping[str, Settings], models: dict[str, Model], journal: Submissions, budget: Budget, opened: AsyncExitStack
) -> "dict[str, Batched]":
    """Replace models whose calls use batches with batched models, and return the batched models by name."""
    stored = journal.batches()
    if not stored and not any(settings.batch for settings in used.values()):
        return {}
    from skillmix.runs.batches.batched import Batched

    made = {}
    for name, settings in used.items():
        dialect = batched(settings, name, stored)
        if dialect is None:
            continue
        direct = None if settings.batch else models[name]
        model = Batched(name, _client(settings, dialect), journal, budget, say, direct)
        opened.push_async_callback(model.close)
        models[name] = made[name] = model
    return made


def _client(settings: Settings, dialect: BatchDialect) -> "BatchClient":
    from skillmix.models.batches.clients import open_batches

    options = ModelOptions(settings.concurrency, settings.timeout, settings.access, say)
    return open_batches(parse_spec(str(settings.asked)), options, dialect)


def opened_clients(used: Mapping[str, Settings], opened: AsyncExitStack) -> "dict[str, BatchClient]":
    """Open the batch clients of the models whose settings request batches."""
    found = {}
    for name, settings in used.items():
        dialect = batched(settings, name, ())
        if dialect is not None:
            client = _client(settings, dialect)
            opened.push_async_callback(client.server.close)
            found[name] = client
    return found


def watch(models: "Iterable[Batched]", scheduler: "Scheduler", *, wait: float) -> None:
    """Tell the batched models of a step when no other call is in flight, and when to stop waiting."""
    models = list(models)

    def expects_more() -> bool:
        """Whether a call outside batches is in flight, or more conversations may begin."""
        return not scheduler.source_rests or scheduler.awaited > 0

    def look_around() -> None:
        """Stop waiting if only batches are left and none has returned a result during the waiting time of the run."""
        if expects_more() or not all(model.is_idle for model in models):
            return
        last = max(model.last_result for model in models)
        if any(model.resting for model in models) and time.monotonic() - last >= wait:
            for model in models:
                model.leave()

    for model in models:
        model.expects_more, model.look_around = expects_more, look_around


def hold_submitted(budget: Budget, journal: Submissions, settings: Mapping[str, Settings]) -> None:
    """Reserve the worst-case cost of every call that is part of a batch."""
    by_tag = {batch.tag: batch for batch in journal.batches()}
    for call in journal.calls():
        batch = by_tag.get(call.tag)
        own = settings.get(batch.model) if batch else None
        dialect = DIALECTS.get(batch.dialect) if batch else None
        is_batched = own is not None and bool(own.batch)
        budget.hold(call.key, call.worst or 0.0, 1.0 if is_batched or dialect is None else dialect.factor)


def forget_batches(journal: Submissions) -> None:
    """Abandon all batches of a run.

    Their calls are repeated, and the abandoned calls count with their worst-case cost.
    """
    batches = journal.batches()
    given_up = journal.give_up([batch.tag for batch in batches], "given up with its batch")
    if given_up:
        of = "a batch" if len(batches) == 1 else f"{len(batches)} batches"
        say(f"{plural(given_up, 'call')} of {of} will be repeated; the provider may bill them twice")
