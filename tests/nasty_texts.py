"""Strings that make careless code slow, and a stopwatch that tells linear time from worse."""

import re
import re._constants as codes  # type: ignore[import-not-found]  # the parser of the standard library has no types
import re._parser as parser  # type: ignore[import-not-found]
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from random import Random
from typing import Any, Final

TOLERATED: Final = 8.0
"""Growth of the time from n to 4 n: four times if it is linear, sixteen times if it is quadratic."""
FLOOR_S: Final = 0.04
"""Less CPU time than this for 4 n says nothing about growth, and harms nobody."""


@dataclass(frozen=True, slots=True)
class Repeated:
    """A text of any length: a unit over and over, between two ends."""

    unit: str
    before: str = ""
    after: str = ""

    def __call__(self, length: int) -> str:
        """The text with so many characters between its ends."""
        return self.before + (self.unit * (length // len(self.unit) + 1))[:length] + self.after


def superlinear(work: Callable[[str], object], text: Repeated, *, length: int) -> str | None:
    """How the CPU time grows from n to 4 n characters, if it grows faster than the length; else None."""
    if _seconds(partial(work, text(length))) < FLOOR_S / 8:
        return None
    times: list[float] = []
    for _ in range(3):  # another process can only slow a measurement down: one fair measurement is enough
        times = [_seconds(partial(work, text(factor * length))) for factor in (1, 2, 4)]
        if times[2] < FLOOR_S or times[2] < TOLERATED * times[0] or times[2] < TOLERATED**0.5 * times[1]:
            return None
    shown = ", ".join(f"{factor * length}: {seconds:.3f} s" for factor, seconds in zip((1, 2, 4), times, strict=True))
    return f"{text} takes {shown}"


def takes_longer(work: Callable[[], object], seconds: float) -> bool:
    """Return whether work takes more CPU time than this in each of three tries.

    One try says little: it may have to collect the garbage of all earlier tests, or share its core.
    """
    return all(_seconds(work) > seconds for _ in range(3))


def _seconds(work: Callable[[], object]) -> float:
    start = time.thread_time()
    work()
    return time.thread_time() - start


def texts_against(pattern: "re.Pattern[str]") -> Iterator[Repeated]:
    """Runs and alternations of what a pattern looks for, and each of its repetitions just before it fails to go on."""
    signs = _signs(pattern)
    words = re.findall(r"[A-Za-z]{3,}", pattern.pattern)[:_MOST_WORDS]
    few = signs[:_MOST_SIGNS]
    pairs = (a + b for a in few for b in few if a != b)
    units = [*signs[:_MOST_RUNS], *words, *pairs, *(w + s for w in words for s in few[:4])]
    for unit in dict.fromkeys(units):
        yield Repeated(unit, after="\x00")
    attacks: list[tuple[str, str]] = []
    _attack(parser.parse(pattern.pattern, pattern.flags), "", attacks)
    for before, unit in dict.fromkeys(attacks):
        yield Repeated(unit, before=before, after="\x00")


def _attack(items: Any, before: str, found: list[tuple[str, str]]) -> str:
    """Collect what leads to each repetition and what it repeats; what leads past all of them."""
    for code, value in items:
        starts = [_attack(part, before, found) for part, _ in _parts(code, value)]
        if code in _REPEATS and value[1] > _MANY:
            body: list[tuple[bool, str]] = []
            _collect(value[2], body, True)
            found += [(before, sign) for sign in dict.fromkeys(sign for _, sign in body)]
        before = starts[0] if starts and code not in _LOOKING else before + _example(code, value)
    return before


def _example(code: Any, value: Any) -> str:
    if code is codes.LITERAL:
        return chr(value)
    if code is codes.IN:
        return "x" if value[0][0] is codes.NEGATE else _of_class(*value[0])[:1]
    return "x" if code in (codes.ANY, codes.NOT_LITERAL) else ""


_REPEATS: Final = (codes.MAX_REPEAT, codes.MIN_REPEAT, codes.POSSESSIVE_REPEAT)
_LOOKING: Final = (codes.ASSERT, codes.ASSERT_NOT)
_MANY: Final = 1_000
_MOST_RUNS: Final = 40
_MOST_SIGNS: Final = 8
_MOST_WORDS: Final = 4
_OF_CATEGORY: Final = {
    codes.CATEGORY_SPACE: " \n",
    codes.CATEGORY_DIGIT: "1",
    codes.CATEGORY_WORD: "a",
    codes.CATEGORY_NOT_WORD: "!",
    codes.CATEGORY_NOT_SPACE: "a",
    codes.CATEGORY_NOT_DIGIT: "a",
}


def _signs(pattern: "re.Pattern[str]") -> list[str]:
    """A character of each kind that a pattern names, those of its repeated parts first."""
    found: list[tuple[bool, str]] = []
    _collect(parser.parse(pattern.pattern, pattern.flags), found, False)
    repeated = [sign for is_repeated, sign in found if is_repeated]
    return list(dict.fromkeys([*repeated, *(sign for _, sign in found)]))


def _collect(items: Any, found: list[tuple[bool, str]], is_repeated: bool) -> None:
    for code, value in items:
        if code in (codes.LITERAL, codes.NOT_LITERAL):
            found.append((is_repeated, chr(value)))
        elif code is codes.ANY:
            found.append((is_repeated, "x"))
        elif code is codes.IN:
            found += [(is_repeated, sign) for entry in value for sign in _of_class(*entry)]
        for part, repeats in _parts(code, value):
            _collect(part, found, is_repeated or repeats)


def _of_class(code: Any, value: Any) -> str:
    if code is codes.LITERAL:
        return chr(value)
    if code is codes.RANGE:
        return chr(value[0])
    return _OF_CATEGORY[value] if code is codes.CATEGORY else "x"


def _parts(code: Any, value: Any) -> Iterator[tuple[Any, bool]]:
    if code is codes.BRANCH:
        yield from ((part, False) for part in value[1])
    elif code in _REPEATS:
        yield value[2], value[1] > 1
    elif code is codes.SUBPATTERN:
        yield value[3], False
    elif code in (codes.ASSERT, codes.ASSERT_NOT):
        yield value[1], False
    elif code is codes.ATOMIC_GROUP:
        yield value, False


# fmt: off
SCRAPS: Final = (
    *"abzAZ019!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~", " ", "  ", "\t", "\n", "\r\n", "\x0b", "\x1c", "\u2028", "\x00",
    "\u200b", "\ufe0f", "é", "e\u0301", "…", "—", "–", "“", "”", "‘", "’", "«", "»", "。", "！", "｜", "│", "½", "✓",
    "✗", "→", "•", "−", "１", "İ", "ß", "\ud800", "Answer", "Answer:", "**Answer:**", "# Answer", "Explanation",
    "**Explanation", "Brief Explanation:", "Point earned", "Point earned:", "Points awarded for ",
    "Point earned for metaphor: 1", "metaphor", "metaphor: 1", "metaphor (1)", "On topic", "Makes sense", "Total",
    "| ", "| metaphor | 1 |", "|---|", "\\|", "> ", "```\n", "~~~", "- ", "--", "1. ", "1)", "(1 point)", "out of 1",
    "yes", "not met", "1/1", "0.5", "0,5", "[1]", "<b>", "</b>", "<b ", "cannot ", "cannot really grade", "e.g.",
    "Mr. ", "A.", "p.m. ", "J. K. ", "etc.", "no, wait", "I mean", "isn't it?", "as a", "like a", "if ", "then ",
    "because ", "and ", "twice ", "one, two, ", "She said", "\"Go,\" he said, \"now", "the dog, ",
    "the baker sleeps. ", "The baker sleeps, ", "half past five ", "$5 ", "10,000 ", "1.5.", "it's ", "x-",
    "sentences ", "at most one ", "of the of ", "<think>", "</think>", "https:", "n't ", " - ", "...", "?!", "!\"",
    "the ", "tick tock ", "buy my ",
)
# fmt: on


def hostile_texts(count: int, *, seed: int = 1) -> Iterator[Repeated]:
    """Each scrap over and over, then so many mixtures of a few scraps, some of them between other scraps."""
    for scrap in SCRAPS:
        yield Repeated(scrap)
    draw = Random(seed)
    for _ in range(count):
        unit = "".join(draw.choices(SCRAPS, k=draw.randint(2, 4)))
        before, after = ("".join(draw.choices(SCRAPS, k=draw.randint(0, 2))) for _ in range(2))
        yield Repeated(unit, before=before, after=after)
