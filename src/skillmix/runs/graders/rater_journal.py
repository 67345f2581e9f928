"""The journal file of one person's answers: `human-NAME.sqlite` beside the calls of a run.

Readers take the union of all files in the folder, so the answers count like any votes. A file of its own has its own
lock: people can answer while the experiment runs, and somebody who read a copy of the run on another machine sends
this one file back.
"""

from contextlib import AbstractContextManager
from pathlib import Path
from types import TracebackType
from typing import Self

from skillmix.calls import UNKNOWN_DECODING, GradeKey, Message, Reply, Request, human_grader
from skillmix.grading.ballots import StudentText
from skillmix.runs.graders.human_votes import HumanAnswer, answer_of_document, document_of
from skillmix.runs.graders.run_grader import PERSON
from skillmix.runs.journal.journal import JournalWriter

TextKey = tuple[str, str, int, str]
"""Student, combination, generation and the hash of the text."""


def text_key(text: StudentText) -> TextKey:
    """The key under which answers about a text are kept."""
    return *text.conversation, text.id


class RaterJournal(AbstractContextManager["RaterJournal"]):
    """Adds the answers of one person to a run; only one process can at a time."""

    def __init__(self, folder: Path, rater: str) -> None:
        self.grader = human_grader(rater)
        file = f"human-{rater}.sqlite"
        _make_file(folder, file)
        self._writer = JournalWriter(folder, file=file)
        try:
            self._answers = self._read()
        except BaseException:
            self._writer.close()
            raise

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __enter__(self) -> Self:
        return self

    def close(self) -> None:
        """Close the file and free its lock."""
        self._writer.close()

    def latest(self, key: TextKey) -> HumanAnswer | None:
        """The answer about a text that counts; None if there is none yet."""
        attempts = self._answers.get(key)
        return attempts[max(attempts)] if attempts else None

    @property
    def answered(self) -> frozenset[TextKey]:
        """The texts that have an answer."""
        return frozenset(key for key in self._answers if self.latest(key) is not None)

    def store(self, text: StudentText, shown: str, answer: HumanAnswer) -> bool:
        """Store an answer in one transaction; False if it is there already. `shown` is the task as it was shown.

        A changed answer is a further attempt, and the latest attempt counts.
        """
        key = text_key(text)
        attempts = self._answers.get(key, {})
        if any(answer.id is not None and one is not None and one.id == answer.id for one in attempts.values()):
            return False
        latest = self.latest(key)
        if latest is not None and latest.says_the_same(answer):
            return False
        number = max(attempts, default=-1) + 1
        request = Request(
            GradeKey(*key, self.grader, 0, number), PERSON, (Message("user", shown),), UNKNOWN_DECODING, None
        )
        with self._writer.transaction():
            self._writer.add_combinations([text.combination])
            self._writer.record(request, Reply(document_of(answer)), origin="imported")
        self._answers[key] = {**attempts, number: answer}
        return True

    def _read(self) -> dict[TextKey, dict[int, HumanAnswer | None]]:
        """The answers by text and attempt; None for one that is damaged."""
        answers: dict[TextKey, dict[int, HumanAnswer | None]] = {}
        for call in self._writer.gradings():
            key = call.key
            if isinstance(key, GradeKey) and key.grader == self.grader and key.round == 0:
                text = (key.student, key.combination, key.generation, key.text)
                document = call.outcome.text if isinstance(call.outcome, Reply) else ""
                answers.setdefault(text, {})[key.attempt] = answer_of_document(document)
        return answers


def _make_file(folder: Path, file: str) -> None:
    """Make an empty journal file at once: a reader must not meet it before it has its tables."""
    if (folder / file).exists():
        return
    new = f"{file}.new"
    JournalWriter(folder, file=new).close()
    (folder / new).replace(folder / file)
    (folder / f"{new}.lock").unlink(missing_ok=True)
