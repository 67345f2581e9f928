"""Reading the replies of a large run in a second process, while this one goes on with the journal."""

from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from itertools import islice
from multiprocessing import get_context
from typing import Final

from skillmix.calls import Call, Reply
from skillmix.grading.ballots import ReadCall, Rounds, StudentText, gradings_of, read_reply
from skillmix.grading.reader import Reading, read_grades
from skillmix.prompts.rubric import Phrases, rubric_of
from skillmix.runs.helper_process import is_there_a_second_core

Grading = tuple[Call, StudentText]
_BATCH: Final = 500
_AHEAD: Final = 8
"""Batches under way: enough to keep both processes busy, few enough to hold in memory."""
WORTH_IT: Final = 10_000
"""Gradings that are read here before another process is started: it takes a second to come up."""


def read_gradings(
    texts: Iterable[StudentText],
    calls: Iterable[Call],
    *,
    phrases: Phrases,
    rounds: Rounds | None,
    here: int = WORTH_IT,
) -> Iterator[ReadCall]:
    """The same as `read_calls`, in the same order; beyond the first ones with help, where there is a second core."""
    gradings = gradings_of(texts, calls, rounds=rounds)
    yield from _read_here(islice(gradings, here), phrases)
    batches = iter(lambda: list(islice(gradings, _BATCH)), [])
    first = next(batches, None)
    if first is None:
        return
    pool = _helper()
    if pool is None:
        for batch in (first, *batches):
            yield from _read_here(batch, phrases)
        return
    with pool:
        waiting = deque([_sent(pool, first, phrases)])
        for batch in batches:
            waiting.append(_sent(pool, batch, phrases))
            if len(waiting) > _AHEAD:
                yield from _received(*waiting.popleft(), phrases)
        while waiting:
            yield from _received(*waiting.popleft(), phrases)


def _read_here(gradings: Iterable[Grading], phrases: Phrases) -> Iterator[ReadCall]:
    for call, text in gradings:
        reading = read_reply(text, call.outcome.text, phrases=phrases) if isinstance(call.outcome, Reply) else None
        yield ReadCall(call, text, reading)


def _helper() -> ProcessPoolExecutor | None:
    """One more process, started afresh: this one may have threads that a copy of it would not survive."""
    if not is_there_a_second_core():
        return None
    try:
        return ProcessPoolExecutor(max_workers=1, mp_context=get_context("spawn"))
    except (OSError, ImportError):  # a system without semaphores
        return None


_Readings = list[Reading | None]
_Waiting = tuple[list[Grading], "Future[_Readings] | None"]
_Asked = tuple[tuple[str, ...], str, str]
"""Skills, topic and the student's text."""


def _sent(pool: ProcessPoolExecutor, batch: list[Grading], phrases: Phrases) -> _Waiting:
    texts: dict[int, _Asked] = {}
    replies = []
    for call, text in batch:  # the rounds of a text share what is sent of it
        meant = text.combination
        asked = texts.setdefault(id(text), (meant.skills, meant.topic, text.answer.text))
        replies.append((asked, call.outcome.text if isinstance(call.outcome, Reply) else None))
    try:
        return batch, pool.submit(_readings, replies, phrases)
    except BrokenProcessPool:
        return batch, None


def _readings(replies: list[tuple[_Asked, str | None]], phrases: Phrases) -> _Readings:
    return [
        None if reply is None else read_grades(rubric_of(skills, topic, phrases=phrases), reply, text=text)
        for (skills, topic, text), reply in replies
    ]


def _received(batch: list[Grading], future: "Future[_Readings] | None", phrases: Phrases) -> Iterator[ReadCall]:
    readings = _result(future)
    if readings is None:
        yield from _read_here(batch, phrases)
        return
    for (call, text), reading in zip(batch, readings, strict=True):
        yield ReadCall(call, text, reading)


def _result(future: "Future[_Readings] | None") -> _Readings | None:
    """None if the process is gone: it was killed, or ran a script that has no main guard, and stopped there."""
    try:
        return None if future is None else future.result()
    except BrokenProcessPool:
        return None
