"""Check by code whether a text keeps to an output format, and count its units."""

import re
from collections.abc import Callable, Mapping
from typing import Final, NamedTuple

from skillmix.grading.sentences import count_sentences
from skillmix.prompts.output_formats import OUTPUT_FORMATS, FormatName
from skillmix.render import plural

_ITEM: Final = re.compile(r"[ \t]*+(?:[-*•–—+]|\(?(?:\d{1,2}|[a-zA-Z])[.)])[ \t]++(?P<words>.*\w.*)")
_TURN: Final = re.compile(
    r"[ \t]*+(?P<name>[^\W\d_][\w .'’-]{0,39}?)[ \t]*+(?:\([^()\n]{0,60}\))?[ \t]*+:(?P<words>.*\w.*)"
)
_DIRECTION: Final = re.compile(r"[ \t]*+[(\[*_][^\n]*[)\]*_][ \t]*+")
_HAS_WORD: Final = re.compile(r"\w")
_MARKUP: Final = re.compile(r"\*\*|__")
_WORDS_IN_LINE: Final = 12
"""A longer line is prose."""


class FormatVerdict(NamedTuple):
    """How many units a text has, and why it is not in the format; None if it is."""

    units: int
    fault: str | None


def check_format(text: str, name: FormatName) -> FormatVerdict:
    r"""Check a text against an output format.

    >>> check_format("- Warm bread.\n- Cold milk.", "list")
    FormatVerdict(units=2, fault=None)
    >>> check_format("Warm bread and cold milk.", "list").fault
    'it is not a list: it has 0 items where 2 are the least'
    """
    lines = [line for line in _MARKUP.sub("", text).splitlines() if _HAS_WORD.search(line)]
    found = _CHECKS[name](lines)
    form = OUTPUT_FORMATS[name]
    fault = found.fault
    if fault is None and len(found.units) < form.fewest:
        fault = f"it has {plural(len(found.units), form.unit)} where {form.fewest} are the least"
    units = len(found.units) if form.unit == "line" else _with_sentences(found.units)
    return FormatVerdict(units, None if fault is None else f"it is not a {name}: {fault}")


class _Found(NamedTuple):
    units: list[str]
    fault: str | None


def _list(lines: list[str]) -> _Found:
    """Marked items, each with its indented lines; one line may stand above the first item."""
    items: list[str] = []
    others = 0
    for number, line in enumerate(lines):
        item = _ITEM.fullmatch(line)
        if item is not None:
            items.append(item["words"])
        elif items and line[:1].isspace():
            items[-1] += f" {line.strip()}"
        elif number > 0:
            others += 1
    fault = f"{plural(others, 'line')} outside its items" if items and others else None
    return _Found(items, fault)


def _dialogue(lines: list[str]) -> _Found:
    """Turns that begin with a speaker and a colon; directions in brackets do not count."""
    turns: list[str] = []
    speakers: set[str] = set()
    others = 0
    for line in lines:
        turn = _TURN.fullmatch(line)
        if turn is not None:
            turns.append(turn["words"])
            speakers.add(turn["name"].strip().casefold())
        elif _DIRECTION.fullmatch(line) is None:
            others += 1
    fault = None
    if others:
        fault = f"{plural(others, 'line')} without a speaker"
    elif len(turns) >= OUTPUT_FORMATS["dialogue"].fewest and len(speakers) < _FEWEST_SPEAKERS:
        fault = "it has one speaker"
    return _Found(turns, fault)


_FEWEST_SPEAKERS: Final = 2


def _poem(lines: list[str]) -> _Found:
    """Short lines, whatever their sentences."""
    longest = max((len(line.split()) for line in lines), default=0)
    fault = f"a line has {longest} words where {_WORDS_IN_LINE} are the most" if longest > _WORDS_IN_LINE else None
    return _Found(lines, fault)


def _with_sentences(units: list[str]) -> int:
    """The number of units; every further sentence in a unit counts as one more, as prose in items is no shorter."""
    return sum(max(1, count_sentences(unit)) for unit in units)


_CHECKS: Final[Mapping[FormatName, Callable[[list[str]], _Found]]] = {
    "list": _list,
    "dialogue": _dialogue,
    "poem": _poem,
}
