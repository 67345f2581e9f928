"""One person's answers about texts, as stored in the person's file, and the single process that may add to the file."""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from skillmix.calls import UNKNOWN_DECODING, GradeKey, Message, Reply, Request, human_grader
from skillmix.errors import UserError
from skillmix.grading.points import StudentText
from skillmix.runs.journal import JournalReader, JournalWriter
from skillmix.runs.people import HumanAnswer, answer_of_document, document_of, rater_file, rater_model
from skillmix.runs.verdicts import PERSON

ItemKey = tuple[str, str]
"""A combination and the hash of a text; an answer applies to the text, whichever student generated it."""


@dataclass(frozen=True, slots=True)
class Attempts:
    """One person's answers about one text, stored under the conversation that contains the text."""

    conversation: tuple[str, str, int]
    by_number: dict[int, HumanAnswer | None] = field(default_factory=dict)
    """The answers by number; None for a damaged answer."""

    @property
    def latest(self) -> HumanAnswer | None:
        """Return the answer that counts; None if no answer can be read."""
        return self.by_number[max(self.by_number)] if self.by_number else None


Answers = dict[ItemKey, Attempts]


def item_key(text: StudentText) -> ItemKey:
    """Return the key under which a person's answers contain a text."""
    return text.combination.id, text.id


def latest_answer(answers: Answers, text: StudentText) -> HumanAnswer | None:
    """Return the latest answer about a text, which is the one that counts; None if there is no answer yet."""
    attempts = answers.get(item_key(text))
    return None if attempts is None else attempts.latest


def stored_answers(folder: Path, rater: str) -> Answers:
    """Read a person's answers from the folder of people's answers, even while another process writes the file."""
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


class RaterJournal(AbstractContextManager["RaterJournal"]):
    """Adds one person's answers to a run; only one process can do so at a time.

    `model` is the model string of a simulated person. A name cannot refer to both a person and a script.
    """

    def __init__(self, folder: Path, rater: str, *, model: str = PERSON) -> None:
        self.grader = human_grader(rater)
        self._model = model
        require_same_rater(folder, rater, model)
        self._writer = JournalWriter(rater_file(folder, rater))
        try:
            self._writer.into_one_file()  # clean up in case an earlier process was killed
            self._answers = stored_answers(folder, rater)
        except BaseException:
            self._writer.close()
            raise

    def __exit__(self, *problem: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the file and unlock it."""
        self._writer.close()

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """Store everything inside the block together, or nothing at all."""
        with self._writer.transaction():
            yield
        self._writer.into_one_file()

    def latest(self, text: StudentText) -> HumanAnswer | None:
        """Return the latest answer about a text, which is the one that counts; None if there is no answer yet."""
        return latest_answer(self._answers, text)

    def store(self, text: StudentText, shown: str, answer: HumanAnswer) -> bool:
        """Store an answer in one transaction; return False if it is already stored.

        `shown` is the task as the person saw it. A changed answer is stored as a further attempt; the latest attempt
        counts.
        """
        attempts = self._answers.get(item_key(text), Attempts(text.conversation))
        sent = {one.id for one in attempts.by_number.values() if one is not None and one.id is not None}
        if answer.id in sent or (attempts.latest is not None and attempts.latest.says_the_same(answer)):
            return False
        number = max(attempts.by_number, default=-1) + 1
        key = GradeKey(*attempts.conversation, text.id, self.grader, 0, number)
        request = Request(key, self._model, (Message("user", shown),), UNKNOWN_DECODING, None)
        with self.transaction():
            self._writer.add_combinations([text.combination])
            self._writer.record(request, Reply(document_of(answer)), origin="imported")
        attempts.by_number[number] = answer
        self._answers[item_key(text)] = attempts
        return True


def require_same_rater(folder: Path, rater: str, model: str = PERSON) -> None:
    """Raise an error if a person uses the name of a simulated rater, or vice versa."""
    stored = rater_model(folder, rater)
    if stored not in (None, model):
        given = "a person" if stored == PERSON else f"the simulated rater {stored}"
        now = "a person" if model == PERSON else model
        raise UserError(
            f"The answers of {rater} in this run come from {given}, not from {now}.",
            hint="Give the other rater another name.",
        )
