"""Skills with two parts, a figure and a word, and the slot grammar that a teacher writes them with."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

PIECE: Final = re.compile(r"(?:\{word\}|\{a word\}|\*|\.\.\.|[,?!:;\"]|[a-z']+(?:\|[a-z']+)*)")
PATTERN: Final = rf"^{PIECE.pattern}(?: {PIECE.pattern})*$"
"""What a pattern of a figure may be: words, marks and slots with one blank between them, nothing of which is slow."""
_SLOT: Final = re.compile(r"\{([^{}]*)\}")
SLOTS: Final = frozenset(
    ["who", "thing", "a thing", "things", "others", "tool", "place", "at", "base", "past", "Clause", "word", "a word"]
)
"""The slots of a frame."""


@dataclass(frozen=True, slots=True)
class Figure:
    """A figure, and its skills by word; code finds them in a text by the patterns (`checkers/figures.py`)."""

    name: str
    patterns: tuple[str, ...]
    skills: tuple[tuple[str, str], ...]
    """Each word of the figure, and the name of the skill that it makes."""


@dataclass(frozen=True, slots=True)
class Frames:
    """How a teacher words one figure: whole clauses, and parts that go before or after a clause of another figure."""

    own: tuple[str, ...]
    """All clauses."""
    hosts: tuple[str, ...]
    """The clauses that take a part, if the part fits everywhere."""
    events: tuple[str, ...]
    """The clauses that take any part."""
    before: tuple[str, ...]
    after: tuple[str, ...]
    fits_everywhere: bool
    """Whether these parts fit clauses that are no events."""


@dataclass(frozen=True)
class Grammar:
    """The slot grammar of a catalogue."""

    plain: tuple[str, ...]
    """Clauses without a figure."""
    joints: tuple[str, ...]
    adjectives: tuple[str, ...]
    figures: Mapping[str, Frames]
    topics: Mapping[str, tuple[Mapping[str, str], ...]]
    """For each topic, one or more sets of words for the slots of frames."""


def with_article(word: str) -> str:
    """A word behind its indefinite article.

    >>> with_article("owl"), with_article("bear")
    ('an owl', 'a bear')
    """
    return f"an {word}" if word[0].lower() in "aeiou" else f"a {word}"


def filled(template: str, word: str) -> str:
    """A name, definition, example or frame with the word of a skill in its slots.

    >>> filled("a simile with {a word}", "owl"), filled("{Word} days", "three")
    ('a simile with an owl', 'Three days')
    """
    for slot, value in (("{word}", word), ("{Word}", word.capitalize()), ("{a word}", with_article(word))):
        template = template.replace(slot, value)
    return template


def frame_faults(frame: str, *, has_word: bool) -> Iterator[str]:
    """What is wrong with the slots of a frame; each frame of a figure has the word, and a plain clause has none."""
    slots = _SLOT.findall(frame)
    unknown = sorted(set(slots) - SLOTS)
    if unknown or frame.count("{") != len(slots):
        yield f"{frame!r} has an unknown slot: {', '.join(unknown) or 'a brace without its other'}"
    if ("word" in slots or "a word" in slots) != has_word:
        yield f"{frame!r} has {'no' if has_word else 'a'} {{word}}"


_remembered: Final[dict[str, tuple[Figure, ...]]] = {}


def remember_figures(catalog: str, figures: tuple[Figure, ...]) -> None:
    """Make the figures of a loaded catalogue known to `checker_of`; a worker process gets them with its catalogue."""
    if figures:
        _remembered[catalog] = figures


def remembered_figures() -> tuple[Figure, ...]:
    """The figures of the catalogues that this process has loaded."""
    return tuple(figure for figures in _remembered.values() for figure in figures)
