"""A model whose calls travel in batches.

Calls gather until no other call of the run can release more of them. Then their batch is noted in the journal,
uploaded, created once, and looked at until its results are there. A call that the journal knows as part of a batch is
not sent: its batch is found again, by its id or its tag, and its result is read.
"""

import asyncio
import secrets
import time
from collections.abc import AsyncIterator, Callable, Iterable
from dataclasses import replace
from typing import Final, NamedTuple

from skillmix.calls import CallKey, CallProblem, Model, Outcome, Request
from skillmix.errors import UserError
from skillmix.models.batches.batch_client import BatchClient, line_outcome
from skillmix.models.batches.batch_records import BatchView, ResultsRead, SearchEnd, one_for_each, shown
from skillmix.models.batches.custom_ids import custom_id
from skillmix.render import plural
from skillmix.runs.batches.batch_faults import BatchRefusal, refusal_of
from skillmix.runs.batches.open_batch import OpenBatch
from skillmix.runs.batches.pace import PACE
from skillmix.runs.journal.row_writer import now
from skillmix.runs.journal.submissions import StoredBatch, Submissions

_CERTAINLY_NOT: Final = ("no connection", "HTTP 429")
"""Passing problems after which a batch does not exist; after any other, it may."""
_GONE_AFTER: Final = 3
"""Looks at a batch that its provider does not know, until it is gone."""
_LEFT: Final = CallProblem("waiting", "in a batch", is_free=True)


class BatchedName(NamedTuple):
    """The model as tasks name it, and the worst case of its calls."""

    name: str
    worst: Callable[[Request], float | None]
    direct: Model | None = None
    """Makes the calls that are in no batch; None if they go into the next one."""


class BatchModel:
    """Gathers calls into batches and reads their results; one process does so for a run."""

    def __init__(self, asked: BatchedName, client: BatchClient, journal: Submissions) -> None:
        self._asked = asked
        self._client = client
        self._journal = journal
        self._pace = PACE[0]
        self._pending: dict[CallKey, Request] = {}
        self._batches: dict[str, OpenBatch] = {}
        self._tags: dict[CallKey, str] = {}
        """The batches of calls that were submitted and have no result yet."""
        self._answers: asyncio.Queue[tuple[Request, Outcome] | asyncio.Task[None]] = asyncio.Queue()
        self._to_direct: asyncio.Queue[Request | None] = asyncio.Queue()
        self._direct_calls = 0
        self._wake = asyncio.Event()
        self._is_over = False
        self._is_leaving = False
        self._is_busy = False
        """Whether a question to the provider has no answer yet."""
        self._most = client.dialect.most_requests
        self._not_before = 0.0
        self._pause = 0.0
        self._refused = 0
        self.last_result = time.monotonic()
        """When a batch was last created or read."""
        self.expects_more: Callable[[], bool] = lambda: False
        """Whether a call that is under way elsewhere can release more calls."""
        self.look_around: Callable[[], None] = lambda: None
        """Is called again and again, to leave when it is time."""
        self.say: Callable[[str], None] = lambda line: None
        self._find_stored()

    def _find_stored(self) -> None:
        for stored in self._journal.batches():
            if stored.model != self._asked.name:
                continue
            self._check_place(stored)
            own = self._journal.calls(stored.tag)
            self._batches[stored.tag] = OpenBatch(stored, [call.custom_id for call in own])
            self._tags |= {call.key: stored.tag for call in own}

    def _check_place(self, stored: StoredBatch) -> None:
        here = self._client.dialect.name, self._client.server.address
        if (stored.dialect, stored.address) != here:
            raise UserError(
                f"A batch of {plural(stored.requests, 'call')} of {stored.model.replace(':', ' ')} is under way at "
                f"{stored.address} ({stored.dialect}), and the experiment now names {here[1]} ({here[0]}).",
                hint="Set the model's address and batch back until the batch is over, or give it up with "
                "--forget-batches.",
            )

    @property
    def resting(self) -> int:
        """Calls that wait for a batch to be sent, or for its results."""
        return len(self._pending) + sum(len(batch.waiting) for batch in self._batches.values())

    @property
    def is_idle(self) -> bool:
        """Whether nothing can happen before a provider has done something, or a pause is over."""
        is_paused = time.monotonic() < self._not_before
        looked = all(batch.looks for batch in self._batches.values() if batch.waiting)
        return not self._is_busy and (not self._pending or is_paused) and looked and self._answers.empty()

    def keeps(self, request: Request) -> bool:
        """Whether a call will be part of a batch, or is."""
        return self._asked.direct is None or request.key in self._tags

    def leave(self) -> None:
        """Wait for no batch any more; calls that are part of one stay so."""
        self._is_leaving = True
        self._wake.set()

    async def probe(self) -> CallProblem | None:
        """Check that the server has batches and takes the key."""
        return await self._client.probe()

    async def close(self) -> None:
        """Close the connections."""
        await self._client.server.close()

    async def serve(self, requests: AsyncIterator[Request]) -> AsyncIterator[tuple[Request, Outcome]]:
        """Yield every request with its outcome; when this leaves, with a problem that says so."""
        working = [asyncio.create_task(self._pull(requests)), asyncio.create_task(self._drive())]
        if self._asked.direct is not None:
            working.append(asyncio.create_task(self._call_directly(self._asked.direct)))
        for task in working:
            task.add_done_callback(self._answers.put_nowait)
        left = len(working)
        try:
            while left:
                answer = await self._answers.get()
                if isinstance(answer, asyncio.Task):
                    answer.result()  # an exception ends the serving
                    left -= 1
                else:
                    yield answer
        finally:
            for task in working:
                task.cancel()

    async def _pull(self, requests: AsyncIterator[Request]) -> None:
        async for request in requests:
            self._take(request)
            self._wake.set()
        self._is_over = True
        self._to_direct.put_nowait(None)
        self._wake.set()

    def _take(self, request: Request) -> None:
        """Find the place of a call: its batch, the next batch, or the model itself."""
        batch = self._batches.get(self._tags.get(request.key, ""))
        if batch is not None:
            batch.waiting[custom_id(batch.tag, str(request.key), request.content_hash)] = request
            if batch.is_read:
                self._hand_out(batch)
        elif self._asked.direct is not None:
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
        """Send and look, until the stream of calls is over and none is left."""
        while not (self._is_over and not self.resting):
            if self._is_leaving:
                self._give_back()
            else:
                self._is_busy = True
                await self._look_and_send()
                self._is_busy = False
                self.look_around()
            await self._wait()

    async def _look_and_send(self) -> None:
        # A batch that was refused for want of room makes the next one smaller, so looks come first.
        for batch in self._due():
            await self._look(batch)
        if self._may_send():
            await self._send(self._next_chunk())

    def _give_back(self) -> None:
        for request in [*self._pending.values(), *self._all_waiting()]:
            self._answers.put_nowait((request, _LEFT))
        self._pending.clear()
        for batch in self._batches.values():
            batch.waiting.clear()

    def _all_waiting(self) -> Iterable[Request]:
        return [request for batch in self._batches.values() for request in batch.waiting.values()]

    def _due(self) -> list[OpenBatch]:
        due = time.monotonic()
        return [batch for batch in self._batches.values() if batch.next_look <= due and not batch.is_read]

    async def _wait(self) -> None:
        """Sleep until a call arrives, a look is due or it is time to see whether calls can be sent."""
        if self._is_over and not self.resting:
            return
        looks = [batch.next_look for batch in self._batches.values() if not batch.is_read]
        wait = min(looks, default=time.monotonic() + self._pace.longest_wait) - time.monotonic()
        wait = min(wait, self._pace.tick if self._pending or self._is_leaving else 10 * self._pace.tick)
        self._wake.clear()
        try:
            async with asyncio.timeout(max(wait, 0.001)):
                await self._wake.wait()
        except TimeoutError:
            return

    # Sending

    def _may_send(self) -> bool:
        if not self._pending or time.monotonic() < self._not_before:
            return False
        return len(self._pending) >= self._most or not self.expects_more()

    def _next_chunk(self) -> list[Request]:
        return list(self._pending.values())[: self._most]

    async def _send(self, requests: list[Request]) -> None:
        """Note a batch, upload it and create it; each step is in the journal before the next."""
        tag = f"skx{secrets.token_hex(8)}"
        requests, lines = self._fitting(tag, requests)
        stored = self._noted(tag, requests)
        uploaded = await self._client.upload(tag, lines)
        if isinstance(uploaded, CallProblem):
            self._refuse(OpenBatch(stored, []), requests, refusal_of(uploaded))
            return
        if uploaded is not None and not await self._until_ready(stored, uploaded, requests):
            return
        self._journal.note_creating(tag, uploaded)
        stored = replace(stored, state="creating", file=uploaded, changed=now())
        batch = self._open(stored, requests)
        made = await self._client.create(tag, uploaded, lines)
        self.last_result = time.monotonic()
        if isinstance(made, BatchView):
            self._adopt(batch, made)
        elif made.reason in _CERTAINLY_NOT or (made.kind != "passing" and made.is_free):
            self._refuse(batch, requests, refusal_of(made))
        else:
            self.say(
                f"{self._words(batch)}: the provider's answer was lost ({made.reason}); "
                "it is looked for before anything is sent again"
            )
            batch.plan_look(self._pace)

    def _fitting(self, tag: str, requests: list[Request]) -> tuple[list[Request], list[bytes]]:
        """The first requests whose lines fit into one batch."""
        lines: list[bytes] = []
        size = 0
        for request in requests:
            line = self._client.line(custom_id(tag, str(request.key), request.content_hash), request)
            size += len(line) + 1
            if lines and size > self._client.dialect.most_bytes:
                break
            lines.append(line)
        return requests[: len(lines)], lines

    def _noted(self, tag: str, requests: list[Request]) -> StoredBatch:
        place = self._client.dialect.name, self._client.server.address
        at = now()
        stored = StoredBatch(tag, self._asked.name, *place, len(requests), "written", None, None, None, at, at)
        self._journal.submit(stored, [(request, self._asked.worst(request)) for request in requests])
        return stored

    async def _until_ready(self, stored: StoredBatch, file: str, requests: list[Request]) -> bool:
        """Wait until the provider has read the file; False if it does not say so."""
        for _ in range(60):
            ready = await self._client.is_ready(file)
            if ready is True:
                return True
            if self._is_leaving:
                break
            await asyncio.sleep(self._pace.first_look)
        problem = CallProblem("passing", "the file is not ready", is_free=True)
        self._refuse(OpenBatch(stored, []), requests, refusal_of(problem))
        return False

    def _open(self, stored: StoredBatch, requests: list[Request]) -> OpenBatch:
        ids = {custom_id(stored.tag, str(r.key), r.content_hash): r for r in requests}
        batch = self._batches[stored.tag] = OpenBatch(stored, list(ids), waiting=ids)
        self._tags |= {request.key: stored.tag for request in requests}
        for request in requests:
            self._pending.pop(request.key, None)
        return batch

    def _adopt(self, batch: OpenBatch, view: BatchView) -> None:
        """Note the id of a batch that is created, or found again."""
        self._journal.note_created(batch.tag, view.id)
        self._journal.note_seen(batch.tag, shown(view.word))
        word = shown(view.word)
        batch.stored = replace(batch.stored, state="created", batch=view.id, seen=word, changed=now())
        self.say(f"{self._words(batch)}: created")
        batch.looks = 1
        batch.wait = 0.0
        batch.plan_look(self._pace)

    def _refuse(self, batch: OpenBatch, requests: list[Request], refusal: BatchRefusal) -> None:
        """Forget a batch that does not exist, and do with its calls what the refusal means for them."""
        self._journal.forget(batch.tag)
        self._batches.pop(batch.tag, None)
        self._untag(batch.tag)
        for request in requests:
            self._pending.pop(request.key, None)
        self._refused += refusal.is_counted
        # After a crash a batch may be refused before its calls have come here, so its own size counts.
        is_alone = all(other.is_read for other in self._batches.values())
        may_shrink = refusal.is_about_room and is_alone and batch.stored.requests > 1
        if may_shrink:
            self._most = max(1, min(self._most, batch.stored.requests // 2))
        if refusal.problem.kind == "passing" and self._refused <= self._pace.refusals:
            for request in requests:
                self._take(request)
            # A smaller batch can go at once; a run that does not wait would find the same refusal again.
            pause = 0.0 if may_shrink else min(self._pace.longest_pause, self._pause * 2 or self._pace.pause)
            self._pause = pause
            self._not_before = time.monotonic() + max(pause, min(refusal.problem.retry_after or 0.0, 600.0))
            calls = plural(batch.stored.requests, "call")
            self.say(f"a batch of {calls} was refused ({refusal.words}); another one takes them")
            return
        if refusal.problem.kind == "fatal":
            self._end_run(requests, refusal.problem)
            return
        for request in requests:
            self._answers.put_nowait((request, replace(refusal.problem, kind="failed")))

    def _end_run(self, requests: list[Request], problem: CallProblem) -> None:
        """Answer one call with a fatal problem, which ends the run; the others are left as they are."""
        if not requests:  # the calls of a batch that an earlier run has sent come here later
            return
        first, *others = requests
        self._pending |= {request.key: request for request in others}
        self._answers.put_nowait((first, problem))
        self._not_before = time.monotonic() + self._pace.longest_pause

    def _untag(self, tag: str) -> None:
        self._tags = {key: other for key, other in self._tags.items() if other != tag}

    # Looking

    async def _look(self, batch: OpenBatch) -> None:
        batch.looks += 1
        if batch.stored.batch is None:
            await self._find(batch)
        else:
            await self._view(batch, batch.stored.batch)

    async def _find(self, batch: OpenBatch) -> None:
        """Look for a batch that may have been created before its id was noted."""
        found: BatchView | SearchEnd | CallProblem = SearchEnd.ABSENT
        if batch.stored.state != "written":
            known = frozenset(other.batch for other in self._journal.batches() if other.batch)
            found = await self._client.find(batch.stored, known)
        if isinstance(found, BatchView):
            self._adopt(batch, found)
            batch.looks, batch.next_look = 0, 0.0
        elif found is SearchEnd.ABSENT and self._must_exist_by_now(batch):
            await self._client.tidy(batch.stored)
            self._drop(batch)
        else:
            self._look_later(batch, found)

    def _must_exist_by_now(self, batch: OpenBatch) -> bool:
        return batch.stored.state == "written" or time.time() - batch.stored.changed_at >= self._pace.settled

    def _drop(self, batch: OpenBatch) -> None:
        """Forget a batch that was never created; its calls are free to be sent."""
        self._journal.forget(batch.tag)
        del self._batches[batch.tag]
        self._untag(batch.tag)
        for request in batch.waiting.values():
            self._take(request)

    def _look_later(self, batch: OpenBatch, found: object) -> None:
        problem = found if isinstance(found, CallProblem) else None
        if problem is not None and problem.kind == "fatal" and batch.waiting:
            custom, request = next(iter(batch.waiting.items()))
            del batch.waiting[custom]
            self._answers.put_nowait((request, problem))
        batch.plan_look(self._pace, problem.retry_after if problem else None)

    async def _view(self, batch: OpenBatch, batch_id: str) -> None:
        view = await self._client.view(batch_id)
        if isinstance(view, CallProblem):
            self._not_seen(batch, view)
            return
        batch.gone = 0
        if shown(view.word) != batch.stored.seen:
            self._journal.note_seen(batch.tag, shown(view.word))
            batch.stored = replace(batch.stored, seen=shown(view.word), changed=now())
            self.say(f"{self._words(batch)}: {shown(view.word) or 'no state'}")
        if view.state == "under way":
            batch.plan_look(self._pace)
        elif view.state == "failed" and not view.results and not view.answered:
            self._fail(batch, view)
        else:
            await self._read(batch, view)

    def _not_seen(self, batch: OpenBatch, problem: CallProblem) -> None:
        """Look again later, unless the provider has forgotten the batch."""
        batch.gone += problem.reason == "HTTP 404"
        if problem.reason != "HTTP 404":
            self._look_later(batch, problem)
        elif batch.gone < _GONE_AFTER:
            batch.plan_look(self._pace)
        else:
            self.say(f"{self._words(batch)}: the provider does not know it any more; its calls are made again")
            batch.is_read = True
            self._hand_out(batch)

    def _fail(self, batch: OpenBatch, view: BatchView) -> None:
        """Deal with a batch that was refused after its creation: no call of it was made."""
        named = {fault.line: fault for fault in view.faults if fault.line is not None}
        at_fault = {batch.order[line - 1]: fault for line, fault in named.items() if 0 < line <= len(batch.order)}
        refusal = BatchRefusal.of_view(view, self._client.server.endpoint)
        requests = dict(batch.waiting)
        if not at_fault or len(batch.order) != batch.stored.requests:
            self._refuse(batch, list(requests.values()), refusal)
            return
        innocent = [request for custom, request in requests.items() if custom not in at_fault]
        self._refuse(batch, innocent, replace(refusal, problem=replace(refusal.problem, kind="passing")))
        for custom, fault in at_fault.items():
            if custom in requests:
                self._tags.pop(requests[custom].key, None)
                problem = CallProblem("failed", f"refused by the batch: {shown(fault.code)}", shown(fault.message))
                self._answers.put_nowait((requests[custom], replace(problem, is_free=True)))

    async def _read(self, batch: OpenBatch, view: BatchView) -> None:
        """Read the results; look again for a while if some are missing."""
        read = await self._client.results(view, batch.stored.requests) if view.results else ResultsRead(())
        if isinstance(read, CallProblem) and read.reason != "HTTP 404":
            self._look_later(batch, read)
            return
        if isinstance(read, CallProblem):  # a file that is not there may come late
            read = ResultsRead(())
        batch.lines = one_for_each([*batch.lines.values(), *read.lines])
        batch.ends_early = view.state != "ended"
        is_late = time.time() - batch.stored.changed_at >= self._pace.late
        if self._lacks_results(batch, view, read) and not is_late:
            batch.plan_look(self._pace)
            return
        batch.is_read = True
        self._pause, self._refused = 0.0, 0
        self._journal.note_read(batch.tag)
        self.last_result = time.monotonic()
        answered = sum(custom in batch.lines and batch.lines[custom].kind == "answer" for custom in batch.order)
        self.say(f"{self._words(batch)}: {answered} of {plural(len(batch.order), 'call')} answered")
        self._hand_out(batch)

    def _lacks_results(self, batch: OpenBatch, view: BatchView, read: ResultsRead) -> bool:
        """Whether results may come that are not there yet, or could not be read."""
        missing = [custom for custom in batch.order if custom not in batch.lines]
        if not missing:
            return False
        if not batch.ends_early or read.unreadable:
            return True
        answers = sum(line.kind == "answer" for line in batch.lines.values())
        return view.answered is not None and answers < view.answered

    def _hand_out(self, batch: OpenBatch) -> None:
        """Give every call that waits its outcome."""
        for custom, request in batch.waiting.items():
            line = batch.lines.get(custom)
            outcome: Outcome
            if line is not None:
                outcome = line_outcome(self._client.server, request, line)
            else:
                outcome = CallProblem("passing", "no result in its batch", is_free=batch.ends_early)
            self._tags.pop(request.key, None)
            self._answers.put_nowait((request, outcome))
        batch.handed_out += len(batch.waiting)
        batch.waiting.clear()
        if batch.handed_out >= len(batch.order):
            self._batches.pop(batch.tag, None)

    def _words(self, batch: OpenBatch) -> str:
        return f"batch {batch.tag} of {plural(batch.stored.requests, 'call')} ({self._asked.name.replace(':', ' ')})"
