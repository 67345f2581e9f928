"""Read graders' replies; while a run is being written, keep the readings, which its scores and report need again."""

from hashlib import blake2b
from typing import Final

from skillmix.grading.ballots import StudentText, read_reply
from skillmix.grading.reader import Reading
from skillmix.prompts.rubric import Phrases

_MOST_KEPT: Final = 100_000


class ReplyReader:
    """Reads the replies of one run. Kept readings go by the content of text and reply, so they never grow stale."""

    def __init__(self, phrases: Phrases) -> None:
        self.phrases = phrases
        self.keeps_readings = False
        self._kept: dict[bytes, Reading] = {}

    def read(self, text: StudentText, reply: str) -> Reading:
        """What a reply says about a text."""
        if not self.keeps_readings and not self._kept:
            return read_reply(text, reply, phrases=self.phrases)
        key = _key(text, reply)
        reading = self._kept.get(key)
        if reading is None:
            reading = read_reply(text, reply, phrases=self.phrases)
            if self.keeps_readings and len(self._kept) < _MOST_KEPT:
                self._kept[key] = reading
        return reading


def _key(text: StudentText, reply: str) -> bytes:
    content = blake2b(f"{text.combination.id}{text.id}".encode(), digest_size=16)
    content.update(reply.encode("utf-8", "surrogatepass"))
    return content.digest()
