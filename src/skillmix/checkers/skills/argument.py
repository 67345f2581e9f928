"""Checkers of arguments: rules with conclusions, and pairs of conditions."""

import re
from bisect import bisect_left
from collections.abc import Iterator
from itertools import pairwise
from operator import attrgetter
from typing import Final, NamedTuple

from skillmix.checkers.passage import Passage, Span, Word, Words, shows
from skillmix.checkers.words import (
    DETERMINERS,
    SUBJECT_PRONOUNS,
    denies,
    is_number,
    lists_of,
    main_words,
    opens_clause,
)

_LISTS: Final = lists_of("argument")

_CLAUSE_OPENERS: Final = SUBJECT_PRONOUNS | DETERMINERS
_REACH: Final = 60  # the maximum number of words from a rule to its conclusion
_MOST_CUTS: Final = 8
_MOST_INSERTED: Final = 2
"""The maximum number of pieces between "so" and the conclusion."""
_MOST_RULES: Final = 6


class _Premises(NamedTuple):
    """An argument: the words from the cue to the conclusion, the ways to divide them, and the conclusion."""

    before: Words
    """The words before the cue in its piece."""
    words: Words
    cuts: list[int]
    guesses: list[int]
    """Indices at which the first piece may be divided, in case it contains both a condition and its result."""
    conclusion: Words


@shows("modus ponens", "if", repeats=True)
def modus_ponens(passage: Passage) -> Iterator[Span]:
    """Find "if A, B; A; so B"."""
    yield from _conditional_arguments(passage, denial=False)


@shows("modus tollens", "if", repeats=True)
def modus_tollens(passage: Passage) -> Iterator[Span]:
    """Find "if A, B; not B; so not A"."""
    yield from _conditional_arguments(passage, denial=True)


def _conditional_arguments(passage: Passage, *, denial: bool) -> Iterator[Span]:
    for premises in _premises(passage, "if"):
        # Most conclusions share no word with an earlier rule, however the rule is divided.
        mains = main_words(premises.conclusion)
        if mains and mains.isdisjoint(main_words((*premises.before, *premises.words))):
            continue
        for condition, result, fact in _divisions(premises):
            first, second = (result, condition) if denial else (condition, result)
            if (
                _repeats(fact, first, second)
                and _repeats(premises.conclusion, second, first)
                and (denies(fact) != denies(first)) == denial
                and (denies(premises.conclusion) != denies(second)) == denial
            ):
                yield Span(min(condition[0].start, result[0].start), premises.conclusion[-1].end)


def _repeats(words: Words, part: Words, other: Words) -> bool:
    # The word must distinguish the two parts, because a shared subject proves nothing.
    mains = main_words(part)
    own = mains - main_words(other)
    found = main_words(words)
    if not found and words:  # no content words to compare: "so he is not here"
        return words[-1].lower == part[-1].lower
    return not (own or mains).isdisjoint(found)


def _premises(passage: Passage, cue: str) -> Iterator[_Premises]:
    words = passage.words
    starts = {piece[0].start for piece in passage.pieces}
    cues = [index for index, word in enumerate(words) if word.lower == cue]
    for index in cues[:_MOST_RULES]:
        for mark in range(index + 4, min(index + _REACH, len(words) - 1)):
            if words[mark].lower in _LISTS["therefore"]:
                yield from _readings(words, index, mark, starts)


def _readings(words: Words, index: int, mark: int, starts: set[int]) -> Iterator[_Premises]:
    opening = index
    while opening > max(index - _REACH, 0) and words[opening].start not in starts:
        opening -= 1
    inside = words[index + 1 : mark]
    cuts = [
        cut
        for cut in range(1, len(inside))
        if inside[cut].start in starts or (inside[cut].lower in _LISTS["connectives"] and cut + 1 < len(inside))
    ][:_MOST_CUTS]
    unmarked = range(2, cuts[0] - 1) if cuts else ()
    guesses = [cut for cut in unmarked if inside[cut].lower in _CLAUSE_OPENERS]
    after = _until_mark(words, mark + 1, starts)
    yield _Premises(words[opening:index], inside, cuts, guesses[:_MOST_CUTS], after)
    first = mark + 1
    for _ in range(_MOST_INSERTED):  # skip asides: "so, not out of fear but out of habit, we wait"
        first += len(after)
        if first >= len(words) or words[first].lower in _LISTS["connectives"]:
            break
        later = _until_mark(words, first, starts)
        yield _Premises(words[opening:index], inside, cuts, guesses[:_MOST_CUTS], later)
        after = later
    if words[mark].start not in starts and cuts:  # "therefore" inside the conclusion: "the match is therefore off"
        head = words[index + 1 + cuts[-1] : mark]
        yield _Premises(words[opening:index], inside[: cuts[-1]], cuts[:-1], [], head + after)


def _until_mark(words: Words, first: int, starts: set[int]) -> Words:
    end = first + 1
    while end < len(words) and (words[end].start not in starts or not main_words(words[first:end])):
        end += 1
        if end - first > _REACH:
            break
    return words[first:end]


def _divisions(premises: _Premises) -> Iterator[tuple[Words, Words, Words]]:
    """Yield every way to divide the words into condition, result and fact."""
    words, cuts = premises.words, premises.cuts
    for first in (*cuts, *premises.guesses):
        for second in cuts:
            if second > first:
                yield words[:first], words[first:second], words[second:]
                if "if" in (
                    words[second].lower,
                    words[min(second + 1, len(words) - 1)].lower,
                ):  # allow a second rule between the first rule and the fact
                    yield from ((words[:first], words[first:second], words[cut:]) for cut in cuts if cut > second + 2)
    if premises.before and not opens_clause((*premises.before, words[0]), len(premises.before)):
        for first in cuts:  # the result may come first: "the match is off if it rains"
            yield words[:first], premises.before, words[first:]


@shows("disjunctive syllogism", "either", repeats=True)
def disjunctive_syllogism(passage: Passage) -> Iterator[Span]:
    """Find "either A or B; not A; so B"."""
    for premises in _premises(passage, "either"):
        words = premises.words
        choice = next((index for index, word in enumerate(words) if word.lower == "or"), 0)
        for cut in premises.cuts:
            if not 0 < choice < cut - 1:
                continue
            one, other, ruled_out = words[:choice], words[choice + 1 : cut], words[cut:]
            if denies(premises.conclusion) or not denies(ruled_out):
                continue
            if _lean(ruled_out, one, other) * _lean(premises.conclusion, one, other) < 0:
                yield Span(words[0].start, premises.conclusion[-1].end)


def _lean(words: Words, one: Words, other: Words) -> float:
    """Measure which of two sides the words refer to: positive for the first, negative for the second."""
    mains, left, right = main_words(words), main_words(one), main_words(other)
    return _share(mains, left - right) - _share(mains, right - left)


def _share(mains: frozenset[str], own: frozenset[str]) -> float:
    return len(mains & own) / len(own) if own else 0.0


class _Condition(NamedTuple):
    """One "if": the words before it in its piece, its if-part, and the words up to the next "if"."""

    before: Words
    part: Words
    result: Words


def _conditions(passage: Passage) -> list[_Condition]:
    """Find all conditions in order, if the text contains two or more."""
    words, starts = _without_asides(passage)
    indices = [index for index, word in enumerate(words) if word.lower == "if"][: 2 * _MOST_RULES]
    if len(indices) < 2:
        return []
    ends = {sentence.start for sentence in passage.sentences}
    conditions = []
    for index, following in pairwise([*indices, min(indices[-1] + _REACH, len(words))]):
        opening = index
        while opening > 0 and words[opening].start not in starts and index - opening < _REACH:
            opening -= 1
        last = index + 1
        while last < min(following, index + _REACH) and words[last].start not in ends:
            last += 1
        inside = words[index + 1 : last]
        cut = _end_of_condition(inside, starts)
        conditions.append(_Condition(words[opening:index], inside[:cut], inside[cut:]))
    return conditions


_DASH: Final = r"(?:(?<!-)--++|[–—]| - )"
_ASIDE: Final = re.compile(rf"\([^()]{{1,200}}\)|{_DASH}(?:[^-–—.;!?()]|(?<=\w)-(?=\w)){{1,200}}{_DASH}")


def _without_asides(passage: Passage) -> tuple[Words, set[int]]:
    """Return the words outside brackets and pairs of dashes, and the character positions at which pieces start."""
    words, text = passage.words, passage.text
    starts = {piece[0].start for piece in passage.pieces}
    kept: list[Word] = []
    index = 0
    for aside in _ASIDE.finditer(text):
        before, resumes = (max(index, bisect_left(words, end, key=attrgetter("start"))) for end in aside.span())
        kept += words[index:before]
        index = before
        if kept and resumes < len(words):
            after = words[resumes]
            if not (text[kept[-1].end : aside.start()] + text[aside.end() : after.start]).strip():
                starts.discard(after.start)
                index = resumes
    return (*kept, *words[index:]), starts


def _end_of_condition(words: Words, starts: set[int]) -> int:
    """Find the end of an if-clause: a mark, "then", "and", or a new subject without a mark."""
    cut = 1
    while cut < len(words) and not (words[cut].start in starts or words[cut].lower in _LISTS["ending a condition"]):
        cut += 1
    is_unmarked = not main_words(words[cut:])
    if not is_unmarked and words[cut].lower not in ("and", "but", "because"):
        return cut
    last = len(words) - 1 if is_unmarked else cut - 1
    kinds = (SUBJECT_PRONOUNS, DETERMINERS) if is_unmarked else (SUBJECT_PRONOUNS,)
    least = 1 if words[:1] and words[0].lower == "not" else 2
    subjects = (index for openers in kinds for index in range(least, last) if words[index].lower in openers)
    return next(subjects, len(words) if is_unmarked else cut)


@shows("hypothetical chain", "if", repeats=True)
def hypothetical_chain(passage: Passage) -> Iterator[Span]:
    """Find "if A, B, and if B, C"."""
    for first, second in pairwise(_conditions(passage)):
        if not first.part or not first.result or not second.part or len(second.result) < 2:
            continue
        new = {word for word in main_words(first.result) - main_words(first.part) if not is_number(word)}
        turned = denies(second.part) and not denies(first.result)  # not a chain: "she cries, and if she does not cry"
        if not turned and not new.isdisjoint(main_words(second.part)):
            yield Span(first.part[0].start, second.result[-1].end)


@shows("two-way condition", "if", repeats=True)
def two_way_condition(passage: Passage) -> Iterator[Span]:
    """Find "if A, B, and if not A, C"."""
    for first, second in pairwise(_conditions(passage)):
        if not first.part or not second.part or denies(first.part) == denies(second.part):
            continue
        mains = main_words(second.part)
        # In "you lose if you go and you lose if you don't", the result of the second condition comes before it.
        if (
            len(first.result) >= 2
            and max(len(second.result), len(first.before)) >= 2
            and (not mains or not mains.isdisjoint(main_words(first.part)))
        ):
            yield Span(first.part[0].start, (second.result or second.part)[-1].end)
