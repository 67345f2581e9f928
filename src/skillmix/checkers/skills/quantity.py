"""Checkers of quantities: comparisons with numbers, parts of a whole, sums, counts."""

import re
from collections.abc import Iterator
from itertools import pairwise
from typing import Final

from skillmix.checkers.passage import Passage, Sentence, Span, Words, shows
from skillmix.checkers.words import (
    DETERMINERS,
    SUBJECT_PRONOUNS,
    Number,
    is_minor,
    lists_of,
    numbers_in,
)

_LISTS: Final = lists_of("quantity")

_NEAR: Final = 5
_REACH: Final = 9  # the maximum number of words between the two halves of a comparison


@shows("multiplied comparison", "times", *_LISTS["multiples"])
def multiplied_comparison(passage: Passage) -> Iterator[Span]:
    """Find a comparison such as "twice as much as" or "three times the size of"."""
    for sentence in passage.sentences:
        words = sentence.words
        starts = {piece[0].start for piece in sentence.pieces}
        for first, after in _multiples(words):
            if words[after].start in starts:
                continue
            end = _compared(words, after, part=words[first].lower == "half")
            if end:
                yield Span(words[first].start, words[end].end)


def _multiples(words: Words) -> Iterator[tuple[int, int]]:
    for index, word in enumerate(words[:-2]):
        if word.lower in _LISTS["multiples"]:
            yield index, index + 1
    if any(word.lower == "times" for word in words):
        for number in numbers_in(words):
            if number.after + 1 < len(words) and words[number.after].lower == "times":
                yield number.first, number.after + 1


def _compared(words: Words, index: int, part: bool) -> int | None:
    """Find the end of a comparison after a multiple: "as many as any", "bigger than it", "the size of it"."""
    following = [word.lower for word in words[index : index + _REACH + 3]]
    if len(following) < 3:
        return None
    closing = ""
    if following[0] == "as" and following[1] not in DETERMINERS | SUBJECT_PRONOUNS:
        closing = "as"
    elif following[0] == "the" and (
        following[1] not in _LISTS["time units"] if not part else following[1] in _LISTS["measures"]
    ):
        closing = "of"
    elif not part and (_is_comparative(following[0]) or _is_comparative(following[1])):
        closing = "than"
    if not closing or closing not in following[1:-1]:
        return None
    end = following.index(closing, 1)
    if closing == "than" and ("ago" in following[end:] or following[end + 1] in ("once", "usual", "before")):
        return None  # a time, not an amount: "called three times more than a week ago"
    return index + end + 1 if end > 1 or closing == "than" else None


def _is_comparative(lower: str) -> bool:
    return lower in ("more", "less", "worse") or (lower.endswith("er") and lower not in _LISTS["no comparatives"])


@shows("counted difference", " than ")
def counted_difference(passage: Passage) -> Iterator[Span]:
    """Find a difference such as "two inches taller than" or "three more than"."""
    for sentence in passage.sentences:
        words = sentence.words
        thans = [index for index, word in enumerate(words[:-1]) if word.lower == "than"]
        ends = _amounts(words) if thans else {}
        for than in thans:
            first = _difference_before(words, than, ends)
            if first is not None:
                yield Span(words[first].start, words[than + 1].end)


_FIRST_YEAR: Final = 1000
_LAST_YEAR: Final = 2200


def _amounts(words: Words) -> dict[int, int]:
    """Return the first index of each amount (unlike "no one" and "the one"), keyed by the index after the amount."""
    ends = {}
    for number in numbers_in(words):
        is_year = words[number.first].text.isdigit() and _FIRST_YEAR < number.value < _LAST_YEAR  # "in 2019 fewer than"
        before = words[number.first - 1].lower if number.first else ""
        if not is_year and (words[number.first].lower != "one" or before not in _LISTS["before no amount"]):
            ends[number.after] = number.first
    return ends


def _difference_before(words: Words, than: int, ends: dict[int, int]) -> int | None:
    """Find the index at which the amount of the difference before this "than" starts."""
    for index in range(than - 1, max(than - _REACH, 0), -1):
        lower = words[index].lower
        amount = lower in ("more", "fewer", "less")
        if not amount and (than - index > _NEAR or not _is_comparative(lower)):
            continue
        if index in ends and (amount or (index + 1 == than and words[index - 1].lower != "one")):
            return ends[index]
        unit = words[index - 1].lower
        if index - 1 in ends and (
            unit in _LISTS["units"]
            or unit.removesuffix("s") in _LISTS["units"]
            or (amount and (not is_minor(unit) and unit != "times" and not unit.endswith("ed")))
        ):
            return ends[index - 1]
    return None


@shows("part of a whole", " of ", " in ")
def part_of_a_whole(passage: Passage) -> Iterator[Span]:
    """Find a part of a whole, as in "two out of five"."""
    for sentence in passage.sentences:
        words = sentence.words
        for part, whole in pairwise(numbers_in(words)):
            if 0 < part.value < whole.value and _is_within(words, part, whole):
                yield Span(words[part.first].start, words[whole.after - 1].end)


def _is_within(words: Words, part: Number, whole: Number) -> bool:
    if part.first and words[part.first - 1].lower in _LISTS["places in order"]:
        return False
    between = [word.lower for word in words[part.after : whole.first]]
    while between and between[-1] in _LISTS["in the whole"] and between[0] != "in":
        between.pop()
    if between[-2:] == ["out", "of"]:
        return len(between) <= 5
    if between in (["in"], ["in", "a"], ["in", "every"]):
        following = words[whole.after].lower if whole.after < len(words) else ""
        return following.removesuffix("s") not in _LISTS["time units"] and not 1000 < whole.value < 2200
    return between == ["of"] and not 1000 < whole.value < 2200


_TOTAL_PAIRS: Final = frozenset({("in", "all"), ("all", "told"), ("comes", "to"), ("come", "to"), ("came", "to")})
_TOTAL_OPENERS: Final = frozenset(first for first, _ in _TOTAL_PAIRS)
_MOST_PARTS: Final = 8
_MOST_TOTALS: Final = 8


@shows("sum that adds up", repeats=True)
def sum_that_adds_up(passage: Passage) -> Iterator[Span]:
    """Find a correct sum, as in "three and two make five"."""
    for sentence in passage.sentences:
        words = sentence.words
        totals = _total_words(sentence)
        numbers = numbers_in(words) if totals else []
        for index, total in enumerate(numbers):
            if total.first and words[total.first - 1].lower in _LISTS["no total before"]:
                continue
            near = {word.lower for word in words[max(0, total.first - 2) : total.first]}
            if "and" in near or not near.isdisjoint(_LISTS["owning"]):
                continue  # not a total: "two clerks and three guards together had five umbrellas"
            before, after = numbers[max(index - _MOST_PARTS, 0) : index], numbers[index + 1 : index + 1 + _MOST_PARTS]
            used = _adding_up(total, before[::-1]) or _adding_up(total, after)
            first = min((number.first for number in used), default=0)
            last = max((number.after for number in (total, *used)), default=0)
            if used and any(min(first, total.first) - _NEAR <= one < last + _NEAR for one in totals):
                last += words[last].lower in {word.lower for word in words[first:last]} if last < len(words) else 0
                yield Span(words[min(first, total.first)].start, words[last - 1].end)


def _total_words(sentence: Sentence) -> list[int]:
    """Find the words that announce a total: "make", "in all"."""
    words = sentence.words
    indices = [index for index, word in enumerate(words) if word.lower in _LISTS["total words"]]
    for index, (word, after) in enumerate(pairwise(words)):
        if word.lower in _TOTAL_OPENERS and (word.lower, after.lower) in _TOTAL_PAIRS:
            indices.append(index)
    sign = sentence.text.find("=")
    if sign >= 0:
        indices.append(sum(word.start - sentence.start < sign for word in words))
    return indices[:_MOST_TOTALS]


def _adding_up(total: Number, parts: list[Number]) -> list[Number]:
    """Find the nearest two or more numbers on one side that add up to the total."""
    amount = 0.0
    for count, part in enumerate(parts, start=1):
        amount += part.value
        if count >= 2 and abs(amount - total.value) < 1e-9:
            return parts[:count]
    return []


_BETWEEN_COUNTS: Final = re.compile(r"[\s,;:.…!\"“”'‘’–—-]*(?:\b(?:and then|and|then)\b[\s,;:.…–—-]*)?", re.IGNORECASE)
_LONGEST_GAP: Final = 20
_NUMBERED: Final = _LISTS["numbered"]
"""Nouns whose numbers are labels: "lines 3, 4, 5"."""


@shows("steady count")
def steady_count(passage: Passage) -> Iterator[Span]:
    """Find three numbers with a steady step, as in "one, two, three"."""
    words = passage.words
    row: list[Number] = []
    for number in numbers_in(words):
        if row and row[-1].after <= number.first:  # otherwise both numbers are in one word: "three-two-one"
            start, end = words[row[-1].after - 1].end, words[number.first].start
            if end - start > _LONGEST_GAP or not _BETWEEN_COUNTS.fullmatch(passage.text, start, end):
                row = []
        if len(row) >= 2 and number.value - row[-1].value != row[-1].value - row[-2].value:
            row = row[-1:]
        if row and number.value == row[-1].value:
            row = []
        row.append(number)
        before = words[row[0].first - 1].lower if row[0].first else ""
        if len(row) == 3 and not (before in _NUMBERED and words[row[0].first].text.isdigit()):
            yield Span(words[row[0].first].start, words[number.after - 1].end)
