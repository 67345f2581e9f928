"""A text with known labels, and a calibration set of such texts."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Final

from skillmix.catalog.combinations import Combination, combination_of
from skillmix.grading.points import Points
from skillmix.hashing import digest, short_id

LONGEST_TEXT: Final = 4_000
"""Characters; a longer text would not fit the prompts of small graders."""

NO_TOPIC: Final = "everyday life"
"""The topic that graders read where a text has none; such a text has a label for the skill alone."""


@dataclass(frozen=True)
class KnownText:
    """A text about one skill and one topic whose points are known; None is a point that nobody has labelled."""

    skill: str
    topic: str
    text: str
    shows: bool | None
    """Whether the text shows the skill."""
    on_topic: bool | None = True
    makes_sense: bool | None = True
    why: str = ""
    """The author's reason for the label, for readers."""
    is_disputed: bool = False
    """Whether a second reader, who did not see the label, decided otherwise."""

    @cached_property
    def combination(self) -> Combination:
        """The combination that a grader is asked about."""
        return combination_of([self.skill], self.topic)

    @property
    def id(self) -> str:
        """A hash of the skill, the topic and the text; labels may change without it."""
        return short_id("known text", self.skill, self.topic, self.text)

    @property
    def labels(self) -> tuple[bool | None, bool | None, bool | None]:
        """The known points: skill, topic, sense."""
        return self.shows, self.on_topic, self.makes_sense

    @property
    def points(self) -> Points:
        """The known points as a rubric orders them; a calibration leaves the length aside, so that it counts as met."""
        return (*self.labels, True)


@dataclass(frozen=True)
class CalibrationSet:
    """Texts with known labels, each with its skill and topic."""

    name: str
    texts: tuple[KnownText, ...]

    def content_hash(self) -> str:
        """A hash of the texts and their labels."""
        return short_id("calibration set", [[text.id, text.labels, text.is_disputed] for text in self.texts])

    def subset(self, size: int) -> "CalibrationSet":
        """So many texts, chosen by their hashes and kept in order; a smaller subset is part of a larger one."""
        chosen = {text.id for text in sorted(self.texts, key=_drawn)[:size]}
        return CalibrationSet(self.name, tuple(text for text in self.texts if text.id in chosen))

    def undisputed(self) -> "CalibrationSet":
        """The texts on which the author and the second reader agree."""
        return CalibrationSet(self.name, tuple(text for text in self.texts if not text.is_disputed))


def _drawn(text: KnownText) -> bytes:
    return digest("calibration subset", text.id)


def repeated(texts: Sequence[KnownText]) -> list[int]:
    """The positions of texts that stand in a list before, with the same skill and topic."""
    seen: set[str] = set()
    positions = []
    for index, text in enumerate(texts):
        if text.id in seen:
            positions.append(index)
        seen.add(text.id)
    return positions
