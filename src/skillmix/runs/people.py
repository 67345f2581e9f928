"""People's answers about texts: the format of the answers, and one journal file for each person.

A document contains one vote, which is 1, 0, or null for "unsure", for each criterion that people are asked about.
People are not asked about the length, because code checks it. An unsure vote is an unknown point, never a zero.

People can answer while the experiment runs, and a person who read a copy of the run on another machine can send back a
single file. Therefore, each person has a separate file with its own lock, and every stored answer is in the file
itself, not in a separate log.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeGuard

from skillmix.calls import human_grader
from skillmix.errors import UserError
from skillmix.grading.reader import Reading
from skillmix.prompts.rubric import Criterion, Rubric
from skillmix.runs.journal import JournalReader

Vote = int | None
"""1 for yes, 0 for no, None for unsure."""
LONGEST_COMMENT: Final = 5_000


@dataclass(frozen=True, slots=True)
class HumanAnswer:
    """A person's answer about one text."""

    votes: Mapping[str, Vote]
    """The votes, by criterion name."""
    comment: str = ""
    seconds: float | None = None
    """Seconds that the text was on the screen before the answer; None if unknown."""
    id: str | None = None
    """An id that the page makes for each answer, so that a resubmitted answer is stored once."""

    def says_the_same(self, other: "HumanAnswer") -> bool:
        """Whether another answer has the same votes and the same comment."""
        return dict(self.votes) == dict(other.votes) and self.comment == other.comment


def asked_criteria(rubric: Rubric) -> tuple[Criterion, ...]:
    """Return the criteria that people are asked about, which are all criteria except the length."""
    return rubric.criteria[:-1]


def document_of(answer: HumanAnswer) -> str:
    """Encode an answer for the journal."""
    document = {
        "votes": dict(answer.votes),
        "comment": answer.comment,
        "seconds": answer.seconds,
        "id": answer.id,
    }
    return json.dumps(document, ensure_ascii=False, allow_nan=False)


def answer_of_document(text: str) -> HumanAnswer | None:
    """Decode a person's answer from its document; return None if the document is damaged."""
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
    """Whether a value is a vote. `True` and 1.0 are not votes.

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
    """Convert a person's answer to a parsed grade, with the comment as its note.

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


def rater_file(folder: Path, rater: str) -> Path:
    """Return the path of a rater's answer file."""
    return folder / f"{rater}.sqlite"


def raters_of(folder: Path) -> list[str]:
    """Return the raters whose answers are in a folder, sorted by name."""
    for file in sorted(folder.glob("*.sqlite")):
        try:
            human_grader(file.stem)
        except UserError as error:
            raise UserError(
                f"The file {file} cannot be an answer file: {error.message}",
                hint="Move it away; a person's answers are in NAME.sqlite, where NAME is the value of --rater.",
            ) from None
    return sorted(file.stem for file in folder.glob("*.sqlite"))


def rater_model(folder: Path, rater: str) -> str | None:
    """Return the model of a rater: `person`, or a simulated rater's model string.

    None if the rater has not answered yet.
    """
    if not rater_file(folder, rater).exists():
        return None
    with JournalReader(rater_file(folder, rater)) as journal:
        return next((call.model for call in journal.calls("grade")), None)
