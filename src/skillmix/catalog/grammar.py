"""The grammar of a catalog of figures: clauses with slots from which the teacher `composer:` builds texts."""

import re
from collections.abc import Iterator
from functools import cached_property
from typing import Annotated, Final, Literal

from pydantic import BaseModel, ConfigDict, Field, StringConstraints

from skillmix.files import accepted_if

_NAME: Final = re.compile(r"[^\s;|\x00-\x1f\x7f]([^;|\x00-\x1f\x7f]*[^\s;|\x00-\x1f\x7f])?")


Name = Annotated[
    str,
    StringConstraints(max_length=500),
    accepted_if(_NAME.fullmatch, "must be one non-empty line without leading or trailing blanks, ';' or '|'"),
]
"""A name on one line, without leading or trailing blanks, '|' or ';', which separates names on the command line."""
FigureWord = Annotated[str, accepted_if(re.compile(r"[A-Za-z]+").fullmatch, "must be a word of plain letters")]
Pair = Annotated[list[Name], Field(min_length=2, max_length=2)]
Prose = Annotated[str, accepted_if(re.compile(r"\S").search, "must not be empty")]

_SLOT: Final = re.compile(r"\{([^{}]*)\}")
SLOTS: Final = frozenset(
    ["who", "thing", "a thing", "things", "others", "tool", "place", "at", "base", "past", "Clause", "word", "a word"]
)
"""The slots that a frame may contain."""


class Strict(BaseModel):
    """An immutable section of a file that rejects unknown keys."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class Frames(Strict):
    """The phrasings of one figure: clauses, and parts to put before or after the clause of another figure."""

    events: list[Prose] = []
    """Clauses that accept all parts."""
    clauses: list[Prose] = []
    """Clauses that accept only parts that fit everywhere."""
    closed: list[Prose] = []
    before: list[Prose] = []
    after: list[Prose] = []
    fits: Literal["events", "any"] = "events"
    """Whether the parts fit all clauses, or only events."""

    @cached_property
    def hosts(self) -> list[str]:
        """Return the clauses that accept parts."""
        return [*self.events, *self.clauses]

    @cached_property
    def own(self) -> list[str]:
        """Return all clauses."""
        return [*self.hosts, *self.closed]


class TopicWordsEntry(Strict):
    """The words of one topic for the slots of frames."""

    who: Name
    verb: Pair
    """The base form and the past tense."""
    things: Annotated[list[Pair], Field(min_length=2)]
    """The singular and the plural of each thing."""
    tool: Name
    place: Name
    at: Name

    @cached_property
    def slots(self) -> list[dict[str, str]]:
        """Return one dict per thing, which maps each slot to its word."""
        own = {"who": self.who, "base": self.verb[0], "past": self.verb[1], "tool": self.tool, "place": self.place}
        return [
            {**own, "at": self.at, "thing": thing, "a thing": with_article(thing), "things": things, "others": others}
            for (_, others), (thing, things) in zip([self.things[-1], *self.things], self.things, strict=False)
        ]


class Grammar(Strict):
    """The content of grammar.yaml."""

    plain: Annotated[list[Prose], Field(min_length=1)]
    """Clauses without a figure."""
    joints: Annotated[list[Prose], Field(min_length=1)]
    adjectives: list[FigureWord] = []
    figures: dict[str, Frames]
    topics: dict[str, TopicWordsEntry]


def with_article(word: str) -> str:
    """Put the indefinite article in front of a word.

    >>> with_article("owl"), with_article("bear")
    ('an owl', 'a bear')
    """
    return f"an {word}" if word[0].lower() in "aeiou" else f"a {word}"


def filled(template: str, word: str) -> str:
    """Fill the slots of a name, definition, example or frame with the word of a skill.

    >>> filled("a simile with {a word}", "owl"), filled("{Word} days", "three")
    ('a simile with an owl', 'Three days')
    """
    for slot, value in (("{word}", word), ("{Word}", word.capitalize()), ("{a word}", with_article(word))):
        template = template.replace(slot, value)
    return template


def frame_faults(frame: str, *, has_word: bool) -> Iterator[str]:
    """Yield the faults of a frame's slots. Frames of a figure must contain {word}, and plain clauses must not."""
    slots = _SLOT.findall(frame)
    unknown = sorted(set(slots) - SLOTS)
    if unknown or frame.count("{") != len(slots):
        yield f"{frame!r} has an unknown slot: {', '.join(unknown) or 'an unmatched brace'}"
    if ("word" in slots or "a word" in slots) != has_word:
        yield f"{frame!r} {'needs' if has_word else 'must not have'} {{word}}"
