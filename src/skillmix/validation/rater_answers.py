"""One person's answers about texts, as stored in the person's file."""

from dataclasses import dataclass, field
from pathlib import Path

from skillmix.calls import GradeKey, Reply, human_grader
from skillmix.errors import UserError
from skillmix.grading.points import StudentText
from skillmix.runs.journal import JournalReader
from skillmix.runs.people import HumanAnswer, answer_of_document, rater_file, rater_model
from skillmix.runs.verdicts import PERSON


@dataclass(frozen=True, slots=True)
class Attempts:
    """One person's answers about one text, stored under the conversation that contains the text."""

    conversation: tuple[str, str, int]
    by_number: dict[int, HumanAnswer | None] = field(default_factory=dict)
    """The answers by attempt number; None for a damaged answer."""

    @property
    def latest(self) -> HumanAnswer | None:
        """Return the answer that counts; None if no answer can be read."""
        return self.by_number[max(self.by_number)] if self.by_number else None


Answers = dict[tuple[str, str], Attempts]
"""Answers by combination and hash of the text; an answer applies to the text, whichever student wrote it."""


def attempts_at(answers: Answers, text: StudentText) -> Attempts:
    """Return the answers about a text; if there are none yet, add an empty entry."""
    return answers.setdefault((text.combination.id, text.id), Attempts(text.conversation))


def stored_answers(folder: Path, rater: str) -> Answers:
    """Read a person's stored answers, even while another process writes the file."""
    grader, file = human_grader(rater), rater_file(folder, rater)
    answers: Answers = {}
    if not file.exists():
        return answers
    with JournalReader(file) as journal:
        for call in journal.calls("grade"):
            key = call.key
            if isinstance(key, GradeKey) and key.grader == grader and key.round == 0:
                conversation = (key.student, key.combination, key.generation)
                attempts = answers.setdefault((key.combination, key.text), Attempts(conversation))
                if attempts.conversation == conversation:
                    document = call.outcome.text if isinstance(call.outcome, Reply) else ""
                    attempts.by_number[key.attempt] = answer_of_document(document)
    return answers


def require_same_rater(folder: Path, rater: str, model: str = PERSON) -> None:
    """Raise an error if a person uses the name of a simulated rater, or vice versa."""
    stored = rater_model(folder, rater)
    if stored not in (None, model):
        given = "a person" if stored == PERSON else f"the simulated rater {stored}"
        now = "a person" if model == PERSON else model
        raise UserError(
            f"The answers of {rater} in this run come from {given}, not from {now}.",
            hint="Choose a different name for the new rater.",
        )
