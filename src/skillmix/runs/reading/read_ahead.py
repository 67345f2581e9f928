"""Read the gradings of conversations; beyond the first ones, a second process can read while this one goes on."""

from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from itertools import islice
from multiprocessing import get_context
from typing import Final, NamedTuple

from skillmix.calls import Call, GradeKey, Reply
from skillmix.grading.ballots import StudentText
from skillmix.grading.reader import Reading
from skillmix.prompts.rubric import Phrases, rubric_of
from skillmix.runs.helper_process import is_there_a_second_core
from skillmix.runs.reading.reply_reader import ReplyReader, reading_by

_BATCH: Final = 200
"""Conversations that go to the second process together."""
_AHEAD: Final = 8
"""Batches under way: enough to keep both processes busy, few enough to hold in memory."""
WORTH_IT: Final = 10_000
"""Gradings that are read here before a second process is started, which takes a second."""


class Ungraded(NamedTuple):
    """A text and its grading calls, not read yet."""

    text: StudentText
    calls: list[Call]


class GradedConversation(NamedTuple):
    """A text and its grading calls, each with its reading."""

    text: StudentText
    calls: list[Call]
    readings: list[Reading | None]
    """In the order of the calls; None for a call without a reply."""


def read_gradings(
    ungraded: Iterator[Ungraded], reader: ReplyReader, *, here: int | None
) -> Iterator[GradedConversation]:
    """Read gradings in their order: all of them here, or beyond `here` of them in a second process if there is one."""
    count = 0
    for conversation in ungraded:
        yield _read_here(conversation, reader)
        count += len(conversation.calls)
        if here is not None and count >= here:
            break
    yield from _read_with_help(ungraded, reader)


def _read_with_help(ungraded: Iterator[Ungraded], reader: ReplyReader) -> Iterator[GradedConversation]:
    batches = iter(lambda: list(islice(ungraded, _BATCH)), [])
    first = next(batches, None)
    if first is None:
        return
    pool = _helper()
    if pool is None:
        for batch in (first, *batches):
            yield from (_read_here(conversation, reader) for conversation in batch)
        return
    with pool:
        waiting = deque([_sent(pool, first, reader.phrases)])
        for batch in batches:
            waiting.append(_sent(pool, batch, reader.phrases))
            if len(waiting) > _AHEAD:
                yield from _received(waiting.popleft(), reader)
        while waiting:
            yield from _received(waiting.popleft(), reader)


def _read_here(conversation: Ungraded, reader: ReplyReader) -> GradedConversation:
    text, calls = conversation
    readings = [
        reader.read(text, c.outcome.text, grader=_grader(c)) if isinstance(c.outcome, Reply) else None for c in calls
    ]
    return GradedConversation(text, calls, readings)


def _grader(call: Call) -> str:
    assert isinstance(call.key, GradeKey)  # only grading calls are read
    return call.key.grader


def _helper() -> ProcessPoolExecutor | None:
    """A second process, started afresh: a fork of this one would not survive its threads."""
    if not is_there_a_second_core():
        return None
    try:
        return ProcessPoolExecutor(max_workers=1, mp_context=get_context("spawn"))
    except (OSError, ImportError):  # a system without semaphores
        return None


_Readings = list[list[Reading | None]]
"""By conversation."""


class _Batch(NamedTuple):
    conversations: list[Ungraded]
    future: "Future[_Readings] | None"
    """None if the second process is gone."""


class _Replies(NamedTuple):
    """What the second process needs of a conversation."""

    skills: tuple[str, ...]
    topic: str
    text: str
    replies: list[tuple[str, str] | None]
    """Each with the name of its grader; None for a call without a reply."""


def _sent(pool: ProcessPoolExecutor, batch: list[Ungraded], phrases: Phrases) -> _Batch:
    content = [
        _Replies(
            text.combination.skills,
            text.combination.topic,
            text.answer.text,
            [(_grader(c), c.outcome.text) if isinstance(c.outcome, Reply) else None for c in calls],
        )
        for text, calls in batch
    ]
    try:
        return _Batch(batch, pool.submit(_readings, content, phrases))
    except BrokenProcessPool:
        return _Batch(batch, None)


def _readings(batch: list[_Replies], phrases: Phrases) -> _Readings:
    readings: _Readings = []
    for skills, topic, text, replies in batch:
        rubric = rubric_of(skills, topic, phrases=phrases)
        readings.append([None if one is None else reading_by(one[0], rubric, one[1], text=text) for one in replies])
    return readings


def _received(batch: _Batch, reader: ReplyReader) -> Iterator[GradedConversation]:
    readings = _result(batch.future)
    if readings is None:
        yield from (_read_here(conversation, reader) for conversation in batch.conversations)
        return
    for (text, calls), read in zip(batch.conversations, readings, strict=True):
        yield GradedConversation(text, calls, read)


def _result(future: "Future[_Readings] | None") -> _Readings | None:
    """None if the process is gone: it was killed, or ran a script that has no main guard, and stopped there."""
    try:
        return None if future is None else future.result()
    except BrokenProcessPool:
        return None
