"""A text with its grading calls, and the reading of each call."""

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from skillmix.calls import Call, GradeKey, Reply
from skillmix.grading.ballots import StudentText
from skillmix.grading.reader import Reading
from skillmix.runs.reading.reply_reader import ReplyReader


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


def read_gradings(ungraded: Iterable[Ungraded], reader: ReplyReader) -> Iterator[GradedConversation]:
    """Read gradings in their order."""
    for text, calls in ungraded:
        readings = [
            reader.read(text, c.outcome.text, grader=grade_key(c).grader) if isinstance(c.outcome, Reply) else None
            for c in calls
        ]
        yield GradedConversation(text, calls, readings)


def grade_key(call: Call) -> GradeKey:
    """The key of a call of a conversation's gradings."""
    assert isinstance(call.key, GradeKey)  # conversations join grading calls only
    return call.key
