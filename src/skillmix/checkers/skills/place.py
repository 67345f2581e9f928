"""Checkers of places: routes, positions, directions."""

from collections.abc import Iterator
from itertools import pairwise
from typing import Final

from skillmix.checkers.passage import Passage, Sentence, Span, Words, shows
from skillmix.checkers.words import DETERMINERS, is_minor, is_number, lists_of, numbers_in

_LISTS: Final = lists_of("place")

_LONGEST_LEG: Final = 12


@shows("route with a stop", "from ")
def route_with_a_stop(passage: Passage) -> Iterator[Span]:
    """Find "from A through B to C"."""
    for sentence in passage.sentences:
        words = sentence.words
        for index, word in enumerate(words[:-5]):
            end = _route_end(words, index) if word.lower == "from" and _is_place(words, index + 1) else None
            if end:
                yield Span(word.start, words[end].end)


def _route_end(words: Words, start: int) -> int | None:
    for way in range(start + 2, min(start + 2 + _LONGEST_LEG, len(words) - 3)):
        if _is_way(words, way):
            first = way + (3 if words[way].lower == "by" else 1)
            for goal in range(first + 1, min(first + _LONGEST_LEG, len(words) - 1)):
                if words[goal].lower in _LISTS["goals"] and (words[goal].lower != "to" or _is_place(words, goal + 1)):
                    return goal + 1
    return None


def _is_way(words: Words, index: int) -> bool:
    if words[index].lower == "by":
        return [word.lower for word in words[index + 1 : index + 3]] == ["way", "of"]
    if words[index].lower not in _LISTS["on the way"]:
        return False
    after = words[index + 1].lower
    return _is_place(words, index + 1) or not (is_minor(after) or after in _LISTS["no places"] or is_number(after))


def _is_place(words: Words, index: int) -> bool:
    """Return whether a place may start at an index: with an article, a capital letter, or a word like "home"."""
    if index >= len(words):
        return False
    lower = words[index].lower
    if lower in DETERMINERS:
        following = next((word.lower for word in words[index + 1 : index + 2]), "")
        return following not in _LISTS["no places"]
    if lower in _LISTS["places without article"]:
        return True
    return words[index].text[0].isupper() and lower not in _LISTS["no places"]


_POSITIONS: Final = {phrase.split("_")[0]: phrase.split("_") for phrase in _LISTS["positions"]}
_NO_POSITION_BEFORE: Final = {
    "opposite": DETERMINERS,  # an adjective: "the opposite house"
    "left": frozenset({"is", "was", "are", "were", "what's", "be", "little", "nothing"}),  # "what is left of it"
}


@shows("double placement")
def double_placement(passage: Passage) -> Iterator[Span]:
    """Find two positions, as in "behind the sofa and next to the window"."""
    if sum(passage.lower.count(" ".join(phrase[-2:])) for phrase in _POSITIONS.values()) < 2:
        return
    for sentence in passage.sentences:
        positions: dict[str, int] = {}
        for piece in sentence.pieces:
            positions |= _positions(piece)
        if len(positions) >= 2:
            yield Span(min(positions.values()), sentence.words[-1].end)


def _positions(piece: Words) -> dict[str, int]:
    """Return the position words that have an object in the same piece, and their start in the text."""
    positions = {}
    for index, word in enumerate(piece):
        phrase = _POSITIONS.get(word.lower)
        if phrase is None or [part.lower for part in piece[index : index + len(phrase)]] != phrase:
            continue
        after = piece[index + len(phrase)].lower if index + len(phrase) < len(piece) else ""
        before = piece[index - 1].lower if index else ""
        if not after or after in _LISTS["no objects"] or before in _NO_POSITION_BEFORE.get(phrase[0], ()):
            continue
        if after in DETERMINERS or after in _LISTS["object pronouns"] or not is_minor(after):
            positions[word.lower] = word.start
    return positions


_COMPASS: Final = frozenset(
    f"{first}{joint}{second}{ending}"
    for first in ("north", "south", "east", "west")
    for joint, second in (("", ""), ("", "east"), ("", "west"), ("-", "east"), ("-", "west"))
    for ending in ("", "ward", "wards")
)


@shows("measured direction", "north", "south", "east", "west")
def measured_direction(passage: Passage) -> Iterator[Span]:
    """Find a distance and a direction, as in "two miles north of the bridge"."""
    for sentence in passage.sentences:
        words = sentence.words
        for index, word in enumerate(words[:-2]):
            if word.lower in _COMPASS and words[index + 1].lower in ("of", "from"):
                first = _distance_before(words, index)
                if first is not None:
                    yield Span(words[first].start, words[index + 2].end)


def _distance_before(words: Words, index: int) -> int | None:
    unit = index - 1
    while (
        unit > max(index - 5, 0)
        and words[unit].lower not in _LISTS["distances"]
        and words[unit].lower in _LISTS["before direction"]
    ):
        unit -= 1
    number, _, joined = words[max(unit, 0)].lower.rpartition("-")
    if unit >= 0 and joined in _LISTS["distances"] and number and is_number(number):  # such as "two-hour"
        return unit
    if unit < 1 or words[unit].lower not in _LISTS["distances"]:
        return None
    if words[unit - 1].lower in ("a", "an", "half"):
        return unit - 1
    before = max(unit - 6, 0)
    numbers = numbers_in(words[before:unit])
    return next((before + number.first for number in numbers if unit - before - number.after <= 1), None)


_LONGEST_TURN: Final = 4


@shows("turn-by-turn directions", "left", "right")
def turn_by_turn_directions(passage: Passage) -> Iterator[Span]:
    """Find two turns and a landmark, as in "turn left at A, then right at B"."""
    for sentence in passage.sentences:
        turns = _turns(sentence)
        if len(turns) < 2:
            continue
        near = [(one.lower, after.lower) for one, after in pairwise(sentence.words[max(turns[0] - 5, 0) :])]
        if any(one in _LISTS["landmarks"] and after not in ("left", "right") for one, after in near):
            yield Span(sentence.words[turns[0]].start, sentence.words[turns[-1]].end)


def _turns(sentence: Sentence) -> list[int]:
    words = sentence.words
    starts = {piece[0].start for piece in sentence.pieces}
    turns: list[int] = []
    for index, word in enumerate(words):
        following = [later.lower for later in words[index + 1 : index + 3]]
        if following[:1] in (["after"], ["before"]) and following[1:] and following[1] in _LISTS["meals"]:
            continue  # a time, not a turn: "go right after lunch"
        if word.lower not in ("left", "right") or (following and following[0] in _LISTS["no turn after"]):
            continue
        before = [earlier.lower for earlier in words[max(index - _LONGEST_TURN, 0) : index]]
        again = bool(turns) and (word.start in starts or before[-1] in _LISTS["next turn"])
        if again or not _LISTS["turning"].isdisjoint(before):
            turns.append(index)
    return turns
