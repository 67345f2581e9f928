"""Read graders' replies; while a run is being written, keep the readings, which its scores and report need again.

The grader's name decides how a reply is read: a model writes words, and the answer of a person is a document of ours.
"""

from hashlib import blake2b
from typing import Final

from skillmix.calls import is_human
from skillmix.grading.points import StudentText
from skillmix.grading.reader import Reading, read_grades
from skillmix.prompts.rubric import Phrases, Rubric, rubric_of
from skillmix.runs.graders.human_votes import read_human_answer

_MOST_KEPT: Final = 100_000


class ReplyReader:
    """Reads the replies of one run. Kept readings go by the content of text and reply, so they never grow stale."""

    def __init__(self, phrases: Phrases) -> None:
        self.phrases = phrases
        self.keeps_readings = False
        self._kept: dict[bytes, Reading] = {}

    def read(self, text: StudentText, reply: str, *, grader: str) -> Reading:
        """What a grader's reply says about a text."""
        if not self.keeps_readings and not self._kept:
            return self._read(text, reply, grader)
        key = _key(text, reply, grader)
        reading = self._kept.get(key)
        if reading is None:
            reading = self._read(text, reply, grader)
            if self.keeps_readings and len(self._kept) < _MOST_KEPT:
                self._kept[key] = reading
        return reading

    def _read(self, text: StudentText, reply: str, grader: str) -> Reading:
        rubric = rubric_of(text.combination.skills, text.combination.topic, phrases=self.phrases)
        return reading_by(grader, rubric, reply, text=text.answer.text)


def reading_by(grader: str, rubric: Rubric, reply: str, *, text: str) -> Reading:
    """The reading of a reply, by the grader's kind."""
    return read_human_answer(rubric, reply) if is_human(grader) else read_grades(rubric, reply, text=text)


def _key(text: StudentText, reply: str, grader: str) -> bytes:
    content = blake2b(f"{text.combination.id}{text.id}{is_human(grader)}".encode(), digest_size=16)
    content.update(reply.encode("utf-8", "surrogatepass"))
    return content.digest()
