"""Let models make their calls in batches, where the experiment says so or the journal has calls in batches."""

import time
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from functools import partial
from typing import TYPE_CHECKING, Protocol

from skillmix.calls import CallProblem, Model, Request
from skillmix.experiment.plan import Settings
from skillmix.models.batches.dialects import DIALECTS, BatchDialect, dialect_of
from skillmix.models.specs import Access, ModelOptions, parse_spec
from skillmix.render import plural
from skillmix.runs.budget import Budget, LimitedBudget, Task
from skillmix.runs.journal.submissions import StoredBatch, Submissions
from skillmix.runs.progress import say

if TYPE_CHECKING:
    from skillmix.models.batches.batch_client import BatchClient
    from skillmix.runs.batches.batch_model import BatchModel


class Quiet(Protocol):
    """Knows whether calls are under way outside batches."""

    @property
    def source_rests(self) -> bool:
        """Whether no new conversation begins until a call is over."""
        ...

    @property
    def awaited(self) -> int:
        """Calls that are not over, without those that rest in batches."""
        ...


def batched(settings: Settings, name: str, stored: Sequence[StoredBatch]) -> BatchDialect | None:
    """The batches that a model needs: of its settings, else of its calls in the journal; None if it needs none."""
    if settings.batch:
        return dialect_of(parse_spec(str(settings.asked)), settings.batch)
    return next((DIALECTS.get(batch.dialect) for batch in stored if batch.model == name), None)


def open_batch_models(
    used: Mapping[str, Settings], models: dict[str, Model], journal: Submissions, budget: Budget, opened: AsyncExitStack
) -> "list[BatchModel]":
    """Replace the models whose calls travel in batches by batch models, which are returned."""
    stored = journal.batches()
    if not stored and not any(settings.batch for settings in used.values()):
        return []
    from skillmix.runs.batches.batch_model import BatchedName, BatchModel

    made = []
    for name, settings in used.items():
        dialect = batched(settings, name, stored)
        if dialect is None:
            continue
        client = _client(settings, dialect)
        direct = None if settings.batch else models[name]
        asked = BatchedName(name, partial(_worst, budget, name), direct)
        model = BatchModel(asked, client, journal)
        opened.push_async_callback(model.close)
        models[name] = model
        made.append(model)
    return made


def _worst(budget: Budget, name: str, request: Request) -> float | None:
    return budget.worst(Task(name, request))


def _client(settings: Settings, dialect: BatchDialect) -> "BatchClient":
    from skillmix.models.batches.opening import open_batches

    access = Access(settings.key, settings.insecure)
    options = ModelOptions(settings.concurrency, settings.timeout, access)
    return open_batches(parse_spec(str(settings.asked)), options, dialect)


class ProbedBatches:
    """The batches of a model, before a run: all that can be asked of them is whether they can be used."""

    def __init__(self, client: "BatchClient") -> None:
        self._client = client

    async def probe(self) -> CallProblem | None:
        """Check that the server has batches and takes the key."""
        return await self._client.probe()


def opened_clients(used: Mapping[str, Settings], opened: AsyncExitStack) -> dict[str, ProbedBatches]:
    """The batches of the models whose settings ask for them."""
    found = {}
    for name, settings in used.items():
        dialect = batched(settings, name, ())
        if dialect is not None:
            client = _client(settings, dialect)
            opened.push_async_callback(client.server.close)
            found[name] = ProbedBatches(client)
    return found


class BatchWatch:
    """Tells the batch models of a step when nothing else is under way, and when to leave."""

    def __init__(self, models: "Sequence[BatchModel]", quiet: Quiet, *, wait: float) -> None:
        self._models = models
        self._quiet = quiet
        self._wait = wait
        for model in models:
            model.expects_more = self.expects_more
            model.look_around = self.look_around
            model.say = say

    def expects_more(self) -> bool:
        """Whether a call outside batches is under way, or conversations are still to begin."""
        return not self._quiet.source_rests or self._quiet.awaited > 0

    def look_around(self) -> None:
        """Leave when only batches are left and none has had a result for as long as the run waits."""
        if self.expects_more() or not all(model.is_idle for model in self._models):
            return
        last = max(model.last_result for model in self._models)
        if any(model.resting for model in self._models) and time.monotonic() - last >= self._wait:
            for model in self._models:
                model.leave()


def hold_submitted(budget: LimitedBudget, journal: Submissions, settings: Mapping[str, Settings]) -> None:
    """Reserve the worst case of every call that is part of a batch."""
    by_tag = {batch.tag: batch for batch in journal.batches()}
    for call in journal.calls():
        batch = by_tag.get(call.tag)
        own = settings.get(batch.model) if batch else None
        dialect = DIALECTS.get(batch.dialect) if batch else None
        is_batched = own is not None and bool(own.batch)
        budget.hold(call.key, call.worst or 0.0, 1.0 if is_batched or dialect is None else dialect.factor)


def forget_batches(journal: Submissions) -> None:
    """Give up all batches of a run: their calls are made again, and count with their worst case."""
    batches = journal.batches()
    given_up = journal.give_up([batch.tag for batch in batches], "given up with its batch")
    if given_up:
        of = "a batch" if len(batches) == 1 else f"{len(batches)} batches"
        say(f"{plural(given_up, 'call')} of {of} will be made again; the provider may bill them twice")
