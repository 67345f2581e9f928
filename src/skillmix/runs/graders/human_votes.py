"""The answer of a person about one text: the document that the journal keeps as a reply, and its reading.

A document has a vote for each criterion that people are asked about: 1, 0, or null for "unsure". Code counts the
length, so nobody is asked about it. An unsure vote is an unknown point, never a zero.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, TypeGuard

from skillmix.grading.reader import Reading
from skillmix.prompts.rubric import Criterion, Rubric

Vote = int | None
"""1 for yes, 0 for no, None for unsure."""
LONGEST_COMMENT: Final = 5_000


@dataclass(frozen=True, slots=True)
class HumanAnswer:
    """What a person answered about one text."""

    votes: Mapping[str, Vote]
    """By name of the criterion."""
    comment: str = ""
    seconds: float | None = None
    """Seconds that the text was on the screen before the answer; None if unknown."""
    id: str | None = None
    """An id that the page makes for each answer, so that an answer that is sent twice is stored once."""

    def says_the_same(self, other: "HumanAnswer") -> bool:
        """Whether votes and comment are equal."""
        return dict(self.votes) == dict(other.votes) and self.comment == other.comment


def asked_criteria(rubric: Rubric) -> tuple[Criterion, ...]:
    """The criteria that people are asked about: all but the length."""
    return rubric.criteria[:-1]


def document_of(answer: HumanAnswer) -> str:
    """An answer as the journal keeps it."""
    document = {
        "votes": dict(answer.votes),
        "comment": answer.comment,
        "seconds": answer.seconds,
        "id": answer.id,
    }
    return json.dumps(document, ensure_ascii=False, allow_nan=False)


def answer_of_document(text: str) -> HumanAnswer | None:
    """The answer that a document holds; None if it is damaged."""
    try:
        document = json.loads(text)
    except (ValueError, RecursionError):
        return None
    if not isinstance(document, dict):
        return None
    votes, comment, seconds, own_id = (document.get(name) for name in ("votes", "comment", "seconds", "id"))
    if not isinstance(votes, dict) or not all(is_vote(vote) for vote in votes.values()):
        return None
    return HumanAnswer(
        votes,
        comment if isinstance(comment, str) else "",
        float(seconds) if is_duration(seconds) else None,
        own_id if isinstance(own_id, str) else None,
    )


def is_vote(value: object) -> bool:
    """Whether a value is a vote; true and 1.0 are not.

    >>> [is_vote(value) for value in (1, 0, None, True, 1.0, "1")]
    [True, True, True, False, False, False]
    """
    return value is None or (type(value) is int and value in (0, 1))


def is_duration(value: object) -> TypeGuard[float]:
    """Whether a value is a number of seconds.

    >>> [is_duration(value) for value in (1.5, -1, True, float("nan"), 10**400)]
    [True, False, False, False, False]
    """
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < 1e9


def read_human_answer(rubric: Rubric, document: str) -> Reading:
    """A person's answer in the form of a grader's reading; the comment is its note.

    >>> from skillmix.prompts.rubric import rubric_of
    >>> read_human_answer(rubric_of(["metaphor"], "Sewing"), '{"votes": {"metaphor": 1, "topic": null, "sense": 0}}')
    Reading(points=(1.0, None, 0.0, None), problem=None, notes=())
    """
    answer = answer_of_document(document)
    if answer is None:
        return Reading(None, "the answer is damaged")
    names = [criterion.name for criterion in asked_criteria(rubric)]
    if answer.votes.keys() != set(names):
        return Reading(None, "the answer has other criteria")
    points = [None if (vote := answer.votes[name]) is None else float(vote) for name in names]
    return Reading((*points, None), None, (answer.comment,) if answer.comment else ())
