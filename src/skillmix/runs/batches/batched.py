"""A model whose calls are sent in a provider's batches.

The model collects calls until no other call in the run can trigger more of them. Then the batch is recorded in the
journal, uploaded, created once, and polled until its results arrive. A call that the journal lists in a batch is not
sent again. Instead, the batch is found by its id or its tag, and the result is read.

Times come from the process's monotonic clock, so a batch or its results count as missing only after the process has
polled for a whole waiting period.
"""

import asyncio
import json
import re
import secrets
import time
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Final

from skillmix.calls import CallKey, CallProblem, Limits, Model, Outcome, Request
from skillmix.errors import UserError
from skillmix.models.batches.clients import BatchClient, BatchView, LineResult, Sought, shown
from skillmix.models.servers.masking import MASK
from skillmix.render import plural
from skillmix.runs.budget import Budget, Task
from skillmix.runs.journal import StoredBatch, Submissions, custom_id
from skillmix.runs.rows import now

_CERTAINLY_NOT: Final = ("no connection", "HTTP 429")
"""Temporary problems after which the batch does not exist. After any other problem, the batch may exist."""
_MOST_FILE_LOOKS: Final = 60
_MOST_LOST: Final = 2
"""The number of consecutive batches that may be lost before the step stops."""
_ABOUT_ROOM: Final = re.compile(r"token.?limit|enqueued|too many|quota.{0,40}batch|batch.{0,40}limit", re.IGNORECASE)
"""Matches rejections that no longer occur once other batches have ended or the batch is smaller."""
_LEFT: Final = CallProblem("waiting", "in a batch", is_free=True)
_LOST: Final = CallProblem("passing", "lost with its batch")


@dataclass(frozen=True, slots=True)
class BatchPace:
    """Waiting times in seconds, and the limit on rejected batches."""

    first_look: float = 5.0
    """The wait from the creation of a batch to its first poll. Each later wait is 50% longer than the one before."""
    longest_wait: float = 120.0
    """The longest wait between two polls of a batch."""
    tick: float = 0.05
    """The wait between two checks for calls that can join the next batch."""
    settled: float = 60.0
    """The time after its creation request when a batch that the provider does not list counts as nonexistent."""
    late: float = 600.0
    """The time after the end of a batch when its missing results count as lost."""
    pause: float = 30.0
    """The wait from the rejection of a whole batch to the next batch. Each later wait is twice as long."""
    longest_pause: float = 600.0
    refusals: int = 3
    """The number of consecutive batches that may be rejected for temporary reasons before the run stops."""


PACE = BatchPace()
"""The pace of this process; tests set a faster pace here."""


@dataclass(slots=True)
class OpenBatch:
    """A batch that was sent, with the calls that wait for results and the results read so far."""

    stored: StoredBatch
    order: list[str]
    """The ids of the calls, in the order of the lines in the batch.

    After a crash, these are only the ids of calls without an outcome.
    """
    waiting: dict[str, Request] = field(default_factory=dict)
    """Calls that wait for their results, by their ids in the batch."""
    lines: dict[str, LineResult] = field(default_factory=dict)
    """Results that were read, by the ids of their calls."""
    is_over: bool = False
    """Whether no more results are expected."""
    without: CallProblem = _LOST
    """The outcome for calls that have no result once the batch is finished."""
    next_look: float = 0.0
    wait: float = 0.0
    looks: int = 0
    doubted: float | None = None
    """The time of the poll since which the batch or some of its results have been missing; None if none are."""

    def plan_look(self, asked: float | None = None) -> None:
        """Schedule the next poll after a growing wait, but not before the time that the provider requested."""
        self.wait = min(PACE.longest_wait, self.wait * 1.5 if self.wait else PACE.first_look)
        self.next_look = time.monotonic() + max(self.wait, min(asked or 0.0, 600.0))

    def has_doubted(self, seconds: float) -> bool:
        """Record that something is missing at this poll; return True if it has been missing for this many seconds."""
        moment = time.monotonic()
        if self.doubted is None:
            self.doubted = moment
        return moment - self.doubted >= seconds


class Batched:
    """Collects calls into batches and reads their results. Only one process per run may do this."""

    limits: Limits = Limits(may_rest=True)

    def __init__(
        self,
        name: str,
        client: BatchClient,
        journal: Submissions,
        budget: Budget,
        say: Callable[[str], None],
        direct: Model | None = None,
    ) -> None:
        self._name = name
        """The name of the model in tasks."""
        self._client = client
        self._journal = journal
        self._budget = budget
        self._say = say
        self._direct = direct
        """Makes the calls that are not in a batch; None if such calls join the next batch."""
        self._pending: dict[CallKey, Request] = {}
        self._batches: dict[str, OpenBatch] = {}
        self._tags: dict[CallKey, str] = {}
        """For each submitted call without a result, the tag of its batch."""
        self._answers: asyncio.Queue[tuple[Request, Outcome] | asyncio.Task[None]] = asyncio.Queue()
        """Outcomes that wait to be yielded, and the workers of `serve` that have ended."""
        self._to_direct: asyncio.Queue[Request | None] = asyncio.Queue()
        self._wake = asyncio.Event()
        self._is_over = False
        self._is_leaving = False
        self._is_busy = False
        """Whether a request to the provider is in flight."""
        self._most = client.dialect.most_requests
        self._not_before = 0.0
        self._pause = 0.0
        self._refused = 0
        self.last_result = time.monotonic()
        """The time when a batch was last created or read."""
        self.expects_more: Callable[[], bool] = lambda: False
        """Returns whether a call in flight elsewhere can trigger more calls."""
        self.look_around: Callable[[], None] = lambda: None
        """Called at every poll; may stop the wait for batches."""
        for stored in journal.batches():
            if stored.model == name:
                self._check_place(stored)
                own = journal.calls(stored.tag)
                self._batches[stored.tag] = OpenBatch(stored, [call.custom_id for call in own])
                self._tags |= {call.key: stored.tag for call in own}

    def _check_place(self, stored: StoredBatch) -> None:
        here = self._client.dialect.name, self._client.server.address
        if (stored.dialect, stored.address) != here:
            raise UserError(
                f"A batch of {plural(stored.requests, 'call')} of {stored.model.replace(':', ' ')} is in progress at "
                f"{stored.address} ({stored.dialect}), but the experiment now specifies {here[1]} ({here[0]}).",
                hint="Restore the model's URL and batch settings until the batch has ended, or abandon it with "
                "--forget-batches.",
            )

    @property
    def resting(self) -> int:
        """Count the calls that wait for their batch to be sent or for its results."""
        return len(self._pending) + sum(len(batch.waiting) for batch in self._batches.values())

    @property
    def is_idle(self) -> bool:
        """Whether nothing can happen until a provider acts or a pause ends.

        If a batch may be lost, even a run that does not wait for batches stays open until the loss is certain.
        """
        is_paused = time.monotonic() < self._not_before
        decided = all(one.looks and one.doubted is None for one in self._batches.values() if one.waiting)
        return not self._is_busy and (not self._pending or is_paused) and decided and self._answers.empty()

    def keeps(self, request: Request) -> bool:
        """Whether a call is, or will be, part of a batch."""
        return self._direct is None or request.key in self._tags

    def leave(self) -> None:
        """Stop waiting for batches, which remain at the provider."""
        self._is_leaving = True
        self._wake.set()

    async def probe(self) -> CallProblem | None:
        """Check that the server offers batches and accepts the key."""
        return await self._client.probe()

    async def close(self) -> None:
        """Close the connections."""
        await self._client.server.close()

    async def serve(self, requests: AsyncIterator[Request]) -> AsyncIterator[tuple[Request, Outcome]]:
        """Yield every request with its outcome.

        If the run stops waiting for its batches, the outcome is a problem of the kind `waiting`.
        """
        direct = [self._call_directly(self._direct)] if self._direct else []
        workers = {asyncio.create_task(one) for one in (self._pull(requests), self._drive(), *direct)}
        for worker in workers:
            worker.add_done_callback(self._answers.put_nowait)
        try:
            while workers:
                result = await self._answers.get()
                if isinstance(result, asyncio.Task):
                    result.result()
                    workers.discard(result)
                else:
                    yield result
        finally:
            for worker in workers:
                worker.cancel()

    async def _pull(self, requests: AsyncIterator[Request]) -> None:
        async for request in requests:
            self._take(request)
            self._wake.set()
        self._is_over = True
        self._to_direct.put_nowait(None)
        self._wake.set()

    def _take(self, request: Request) -> None:
        """Assign a call to an existing batch, to the next batch, or to the model itself."""
        batch = self._batches.get(self._tags.get(request.key, ""))
        if batch is not None:
            batch.waiting[custom_id(batch.stored.tag, str(request.key), request.content_hash)] = request
            if batch.is_over:
                self._hand_out(batch)
        elif self._direct is not None:
            self._to_direct.put_nowait(request)
        else:
            self._pending[request.key] = request

    async def _call_directly(self, model: Model) -> None:
        async def stream() -> AsyncIterator[Request]:
            while (request := await self._to_direct.get()) is not None:
                yield request

        async for answer in model.serve(stream()):
            self._answers.put_nowait(answer)

    async def _drive(self) -> None:
        """Send and poll batches until the stream of calls has ended and no call is left."""
        while True:
            if self._is_leaving:
                waiting = [request for batch in self._batches.values() for request in batch.waiting.values()]
                for request in [*self._pending.values(), *waiting]:
                    self._answers.put_nowait((request, _LEFT))
                self._pending.clear()
                for batch in self._batches.values():
                    batch.waiting.clear()
            else:
                self._is_busy = True
                # After a batch is rejected for lack of capacity, the next batch is smaller, so polls come first.
                moment = time.monotonic()
                for batch in [one for one in self._batches.values() if one.next_look <= moment and not one.is_over]:
                    await self._look(batch)
                is_full = len(self._pending) >= self._most
                if self._pending and time.monotonic() >= self._not_before and (is_full or not self.expects_more()):
                    await self._send(list(self._pending.values())[: self._most])
                self._is_busy = False
                self.look_around()
            if self._is_over and not self.resting:
                return
            looks = [batch.next_look for batch in self._batches.values() if not batch.is_over]
            wait = min(looks, default=time.monotonic() + PACE.longest_wait) - time.monotonic()
            wait = min(wait, PACE.tick if self._pending or self._is_leaving else 10 * PACE.tick)
            self._wake.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout(max(wait, 0.001)):
                    await self._wake.wait()

    # Sending

    async def _send(self, requests: list[Request]) -> None:
        """Record a batch, upload its requests, and create it. Each step is journaled before the next one begins."""
        dialect, address = self._client.dialect, self._client.server.address
        lost = self._journal.lost(self._name)
        if lost >= _MOST_LOST:
            detail = (
                f"{address} does not list {lost} consecutive batches that were sent there. They may be "
                "billed, and their calls count with their worst-case cost; use --forget-batches to send another batch"
            )
            self._end_run(requests, CallProblem("fatal", "batches are lost", detail, is_free=True))
            return
        tag = f"skx{secrets.token_hex(8)}"
        lines: list[bytes] = []
        size = 0
        for request in requests:
            line = self._client.line(custom_id(tag, str(request.key), request.content_hash), request)
            size += len(line) + 1
            if lines and size > dialect.most_bytes:
                break
            lines.append(line)
        requests = requests[: len(lines)]
        at = now()
        stored = StoredBatch(tag, self._name, dialect.name, address, len(requests), "written", None, None, None, at, at)
        self._journal.submit(stored, [(one, self._budget.worst(Task(self._name, one))) for one in requests])
        file = await self._client.upload(tag, lines)
        if isinstance(file, CallProblem):
            self._refuse(OpenBatch(stored, []), requests, file)
            return
        for look in range(_MOST_FILE_LOOKS + 1):  # until the provider has read the file
            if file is None or await self._client.is_ready(file):
                break
            if self._is_leaving or look == _MOST_FILE_LOOKS:
                self._refuse(OpenBatch(stored, []), requests, CallProblem("passing", "the file is not ready"))
                return
            await asyncio.sleep(PACE.first_look)
        self._journal.note(tag, state="creating", file=file)
        ids = {custom_id(tag, str(r.key), r.content_hash): r for r in requests}
        batch = OpenBatch(replace(stored, state="creating", file=file), list(ids), waiting=ids)
        self._batches[tag] = batch
        self._tags |= {request.key: tag for request in requests}
        for request in requests:
            self._pending.pop(request.key, None)
        made = await self._client.create(tag, file, lines)
        self.last_result = time.monotonic()
        if isinstance(made, BatchView):
            self._adopt(batch, made)
            batch.looks = 1
        elif made.reason in _CERTAINLY_NOT or (made.kind != "passing" and made.is_free):
            self._refuse(batch, requests, made)
            return
        else:
            self._say(
                f"{self._words(batch)}: the provider's answer was lost ({made.reason}); skillmix looks for the "
                "batch before it sends anything again"
            )
        batch.plan_look()

    def _adopt(self, batch: OpenBatch, view: BatchView) -> None:
        """Store the id of a batch that was created or found again."""
        word = shown(view.word)
        self._journal.note(batch.stored.tag, state="created", provider_id=view.id, seen=word)
        self._say(f"{self._words(batch)}: created")
        batch.stored = replace(batch.stored, state="created", batch=view.id, seen=word)
        batch.wait = 0.0

    def _forget(self, batch: OpenBatch) -> None:
        """Drop a batch whose calls were never made, so that they can be sent again."""
        tag = batch.stored.tag
        self._journal.forget(tag)
        self._batches.pop(tag, None)
        self._tags = {key: other for key, other in self._tags.items() if other != tag}

    def _refuse(
        self, batch: OpenBatch, requests: list[Request], problem: CallProblem, *, is_counted: bool = False
    ) -> None:
        """Drop a batch that the provider rejected as a whole, and handle its calls as the problem requires.

        Only a few consecutive rejections are tolerated. A rejection for lack of capacity does not count.
        """
        self._forget(batch)
        for request in requests:
            self._pending.pop(request.key, None)
        is_about_room = bool(_ABOUT_ROOM.search(problem.detail))
        kind = "passing" if is_about_room and problem.kind == "failed" else problem.kind
        problem = replace(problem, kind=kind, is_free=True)
        self._refused += is_counted and not is_about_room
        # After a crash, a batch may be rejected before its calls have been requested again, so use its stored size.
        is_alone = all(other.is_over for other in self._batches.values())
        may_shrink = is_about_room and is_alone and batch.stored.requests > 1
        if may_shrink:
            self._most = max(1, min(self._most, batch.stored.requests // 2))
        if problem.kind == "passing" and self._refused <= PACE.refusals:
            for request in requests:
                self._take(request)
            # A smaller batch can be sent at once. A batch of the same size would be rejected again, so it waits.
            self._pause = 0.0 if may_shrink else min(PACE.longest_pause, self._pause * 2 or PACE.pause)
            self._not_before = time.monotonic() + max(self._pause, min(problem.retry_after or 0.0, 600.0))
            calls, why = plural(batch.stored.requests, "call"), f"{problem.reason}: {problem.detail}".removesuffix(": ")
            self._say(f"a batch of {calls} was refused ({why}); they will be sent in another batch")
        elif problem.kind == "fatal":
            self._end_run(requests, problem)
        else:
            for request in requests:
                self._answers.put_nowait((request, replace(problem, kind="failed")))

    def _end_run(self, requests: list[Request], problem: CallProblem) -> None:
        """Answer one call with a fatal problem, which ends the run. The other calls remain pending."""
        if not requests:  # the calls of a batch from an earlier run arrive later
            return
        first, *others = requests
        self._pending.pop(first.key, None)
        self._pending |= {request.key: request for request in others}
        self._answers.put_nowait((first, problem))
        self._not_before = time.monotonic() + PACE.longest_pause

    # Polling

    async def _look(self, batch: OpenBatch) -> None:
        """Poll a batch by its id.

        If the batch has no id, or if the provider does not know the id, look for its tag in the list.
        """
        batch.looks += 1
        stored = batch.stored
        sought = Sought(stored.tag, stored.file, stored.requests, stored.since)
        view = None if stored.batch is None else await self._client.view(stored.batch)
        if stored.state != "written" and (
            view is None or (isinstance(view, CallProblem) and view.reason == "HTTP 404")
        ):
            others = frozenset(one.batch for one in self._journal.batches() if one.batch and one.tag != stored.tag)
            view = await self._client.find(sought, others)
        if view is None:
            if stored.state == "written":
                await self._client.tidy(sought)
                self._forget(batch)
                for request in batch.waiting.values():
                    self._take(request)
            elif batch.has_doubted(PACE.settled):
                await self._client.tidy(sought)
                self._say(
                    f"{self._words(batch)}: the provider no longer knows it; its calls count with their worst-case "
                    "cost and are repeated"
                )
                self._end(batch, _LOST)
            else:
                batch.plan_look()
        elif isinstance(view, CallProblem):
            batch.doubted = None
            self._look_later(batch, view)
        else:
            await self._follow(batch, view)

    def _look_later(self, batch: OpenBatch, problem: CallProblem) -> None:
        if problem.kind == "fatal" and batch.waiting:
            custom, request = next(iter(batch.waiting.items()))
            del batch.waiting[custom]
            self._answers.put_nowait((request, problem))
        batch.plan_look(problem.retry_after)

    async def _follow(self, batch: OpenBatch, view: BatchView) -> None:
        """Act on the state of a batch."""
        word = shown(view.word)
        if view.id != batch.stored.batch:
            self._adopt(batch, view)
        elif word != batch.stored.seen:
            self._journal.note(batch.stored.tag, seen=word)
            batch.stored = replace(batch.stored, seen=word)
            self._say(f"{self._words(batch)}: {word or 'no state'}")
        if view.state == "in progress":
            batch.doubted = None
            batch.plan_look()
        elif view.state == "failed" and not view.results and not view.answered:
            self._fail(batch, view)
        else:
            await self._read(batch, view)

    def _fail(self, batch: OpenBatch, view: BatchView) -> None:
        """Handle a batch that was rejected after its creation, so that none of its calls was made."""
        named = {fault.line: fault for fault in view.faults if fault.line is not None}
        at_fault = {batch.order[line - 1]: fault for line, fault in named.items() if 0 < line <= len(batch.order)}
        texts = [f"{fault.code} {fault.message}".strip() for fault in view.faults]
        text = "; ".join(texts[:3]) or f"the batch has the state {view.word}"
        problem = self._client.server.endpoint.failure(400, json.dumps({"error": {"message": text}}).encode())
        if problem.kind != "fatal":
            problem = CallProblem("passing", f"batch {shown(view.word)}", MASK.line(text))
        requests = dict(batch.waiting)
        if not at_fault or len(batch.order) != batch.stored.requests:
            self._refuse(batch, list(requests.values()), problem, is_counted=True)
            return
        innocent = [request for custom, request in requests.items() if custom not in at_fault]
        self._refuse(batch, innocent, replace(problem, kind="passing"), is_counted=True)
        for custom, fault in at_fault.items():
            if custom in requests:
                reason = f"refused by the batch: {shown(fault.code)}"
                own = CallProblem("failed", reason, shown(fault.message), is_free=True)
                self._answers.put_nowait((requests[custom], own))

    async def _read(self, batch: OpenBatch, view: BatchView) -> None:
        """Read the results. If some are missing, continue to poll for a while."""
        wanted = frozenset(batch.order)
        answered: set[str] = set()
        found = await self._client.results(view, batch.stored.requests)
        if isinstance(found, CallProblem) and found.reason != "HTTP 404":
            self._look_later(batch, found)
            return
        lines, unreadable = ([], 0) if isinstance(found, CallProblem) else found  # a missing file may arrive late
        for line in lines:
            if line.kind == "answer" and line.custom_id.startswith(batch.stored.tag):
                answered.add(line.custom_id)
            if line.custom_id in wanted and line.beats(batch.lines.get(line.custom_id)):
                batch.lines[line.custom_id] = line
        missing = len(wanted) - len(batch.lines)
        is_empty = view.state == "ended" and view.answered is None and not batch.lines
        paid = batch.stored.requests if is_empty else view.answered or 0
        is_unread = missing > 0 and (unreadable > 0 or len(answered) < paid)
        if (is_unread or (missing and view.state == "ended")) and not batch.has_doubted(PACE.late):
            batch.plan_look()
            return
        batch.doubted = None
        self._pause, self._refused = 0.0, 0
        self._journal.note(batch.stored.tag, state="read")
        self.last_result = time.monotonic()
        good = sum(line.kind == "answer" for line in batch.lines.values())
        self._say(f"{self._words(batch)}: {good} of {plural(len(batch.order), 'call')} answered")
        without = CallProblem("passing", "no result in its batch", is_free=view.state != "ended")
        if is_unread:
            self._say(
                f"{self._words(batch)}: {plural(missing, 'result')} cannot be read; these calls may be billed "
                "and count with their worst-case cost; the next run repeats them"
            )
            where = f"batch {view.id} at {self._client.server.address}"
            without = CallProblem("failed", "unreadable result of a batch", where)
        self._end(batch, without)

    def _end(self, batch: OpenBatch, without: CallProblem) -> None:
        """Stop expecting results; calls without a result receive the outcome `without`."""
        batch.is_over, batch.without, batch.doubted = True, without, None
        self._hand_out(batch)

    def _hand_out(self, batch: OpenBatch) -> None:
        """Pass each waiting call its outcome."""
        for custom, request in batch.waiting.items():
            line = batch.lines.pop(custom, None)
            outcome = batch.without if line is None else self._client.outcome(request, line)
            self._tags.pop(request.key, None)
            self._answers.put_nowait((request, outcome))
        batch.waiting.clear()

    def _words(self, batch: OpenBatch) -> str:
        calls = plural(batch.stored.requests, "call")
        return f"batch {batch.stored.tag} of {calls} ({self._name.replace(':', ' ')})"
