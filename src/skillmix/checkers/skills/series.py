"""Checkers of series and pairs, by how members are joined and whether their forms match."""

from collections.abc import Iterator
from itertools import pairwise
from typing import Final

from skillmix.checkers.passage import Passage, Span, Words, has_mark, only_comma, shows, span_between
from skillmix.checkers.verbs import is_finite
from skillmix.checkers.words import (
    ARTICLES,
    CONJUNCTIONS,
    DETERMINERS,
    OPENS_AN_ASIDE,
    PREPOSITIONS,
    SUBJECTS,
    bare,
    is_number,
    lists_of,
    word_set,
)

_LISTS: Final = lists_of("series")

_THREE: Final = 3
_FAR: Final = 6
"""The maximum distance from one conjunction to the next: five words in between."""


@shows("polysyndeton")
def polysyndeton(passage: Passage) -> Iterator[Span]:
    """Find the same conjunction three times in a sentence, with one to five words in between."""
    for conjunction in ("and", "or", "nor"):
        for sentence in passage.sentences:
            indices = [index for index, word in enumerate(sentence.words) if word.lower == conjunction]
            for first, second, third in zip(indices, indices[1:], indices[2:], strict=False):
                if third + 1 >= len(sentence.words) or not (1 < second - first <= _FAR and 1 < third - second <= _FAR):
                    continue
                heads = {one: sentence.words[one + 1].lower in DETERMINERS for one in (first, second, third)}
                # In "he and his wife moved and bought and let" the first "and" joins nouns, not verbs.
                if not (any(heads.values()) and any(is_finite(sentence.words, index + 1) for index in heads)):
                    yield span_between(sentence.words[max(first - 1, 0)], sentence.words[third + 1])


_JOINS: Final = CONJUNCTIONS | {"nor"}
_LONGEST_MEMBER: Final = 5


@shows("asyndeton")
def asyndeton(passage: Passage) -> Iterator[Span]:
    """Find three short members of nearly equal length at the end of a clause, separated only by commas."""
    for sentence in passage.sentences:
        pieces = sentence.pieces
        for index in range(2, len(pieces)):
            first, second, third = pieces[index - 2 : index + 1]
            closes = index + 1 == len(pieces) or not only_comma(passage.text, third, pieces[index + 1])
            if closes and _is_bare_series(first, second, third) and _commas(passage.text, first, second, third):
                yield span_between(first[-min(len(first), len(second))], third[-1])


def _is_bare_series(first: Words, second: Words, third: Words) -> bool:
    if len(second) > _LONGEST_MEMBER or len(third) > _LONGEST_MEMBER or abs(len(second) - len(third)) > 1:
        return False
    longest = max(len(second), len(third))
    if len(first) < longest - 1:
        return False
    members = (*first[-longest:], *second, *third)
    if any(word.lower in _JOINS or word.lower[0].isdigit() for word in members) or _are_names(members):
        return False
    # "by bus, by boat, by bike" is a series; "he came, by then, by bike" is not.
    heads = {second[0].lower, third[0].lower}
    if len(heads) == 1 or heads <= PREPOSITIONS:
        like = heads if len(heads) == 1 else PREPOSITIONS
        if any(word.lower in like for word in first[-longest - 1 :]):
            return True
    if third[0].lower in _LISTS["steps"]:  # "My aunt, then a widow, ..." is not a step
        second, third = _without_step(second), _without_step(third)
    openers = {second[0].lower, third[0].lower} | ({first[0].lower} if len(first) == 1 else set())
    if openers & OPENS_AN_ASIDE:
        return False
    # The second part may be an insertion in a clause: "My brother, a baker, sings".
    if len(second) == 1:
        return third[0].lower not in SUBJECTS and third[0].lower != "you"
    is_name = len(first) == 1 or (first[0].lower in _DETERMINERS and len(first) <= _THREE)
    return not (is_name and second[0].lower in _DETERMINERS and third[0].lower not in _DETERMINERS)


def _are_names(members: Words) -> bool:
    return all(word.text[0].isupper() for word in members)


def _without_step(member: Words) -> Words:
    """Drop a first word such as "then" from a member: "then the anvil" is a member, "then" alone is an aside."""
    return member[1:] if len(member) > 1 and member[0].lower in _LISTS["steps"] else member


_DETERMINERS: Final = ARTICLES | word_set("my your his her its our their")


def _commas(text: str, first: Words, second: Words, third: Words) -> bool:
    return only_comma(text, first, second) and only_comma(text, second, third)


_LONGEST_OF_THREE: Final = 10


@shows("tricolon", repeats=True)
def tricolon(passage: Passage) -> Iterator[Span]:
    """Find three members of equal length, separated by commas, with "and" or "or" before the third."""
    for sentence in passage.sentences:
        for first, second, third in zip(sentence.pieces, sentence.pieces[1:], sentence.pieces[2:], strict=False):
            size = len(second)
            if third[0].lower not in ("and", "or") or not 2 <= size <= _LONGEST_OF_THREE:
                continue
            if (
                len(first) >= size == len(third) - 1
                and _commas(passage.text, first, second, third)
                and not _are_names((*second, *third[1:]))
                and _could_match(first[-size:], second, third[1:])
            ):
                yield span_between(first[-size], third[-1])


def _could_match(first: Words, second: Words, third: Words) -> bool:
    """Return whether the last words of a clause can be a member like the two members after it."""
    heads = first[0].lower, second[0].lower, third[0].lower
    if heads[1] == heads[2]:
        return heads[0] == heads[1]
    if heads[1] in OPENS_AN_ASIDE:
        return PREPOSITIONS.issuperset(heads)
    # "she bought eggs" does not match "fresh warm bread".
    return not SUBJECTS & _lower(first) or bool(SUBJECTS & (_lower(second) | _lower(third)))


def _lower(words: Words) -> frozenset[str]:
    return frozenset(word.lower for word in words)


_PAIRS: Final = {"either": "or", "neither": "nor", "only": "but"}
_REACH: Final = 20


@shows("correlative pair")
def correlative_pair(passage: Passage) -> Iterator[Span]:
    """Find a pair such as "either ... or", each word directly before its member."""
    for sentence in passage.sentences:
        words = sentence.words
        for index, word in enumerate(words[:-1]):
            closing, after = _PAIRS.get(word.lower), words[index + 1]
            if closing is None or (word.lower == "only" and (index == 0 or words[index - 1].lower != "not")):
                continue
            if after.lower in _LISTS["no member"] or has_mark(passage.text, word, after):
                continue
            for end in range(index + 2, min(index + 2 + _REACH, len(words) - 1)):
                if words[end].lower == closing and words[end - 1].lower not in _LISTS["all but"]:
                    yield span_between(word, words[end + 1])


_LONGEST_DENIED: Final = 10


@shows("antithesis (not this but that)")
def antithesis(passage: Passage) -> Iterator[Span]:
    """Find "not A but B" where A and B begin alike or have the same number of words."""
    for sentence in passage.sentences:
        words = sentence.words
        buts = [index for index, word in enumerate(words) if word.lower == "but"]
        for but in buts:
            near = range(but - 2, max(-1, but - 2 - _LONGEST_DENIED), -1)
            denials = (one for one in near if words[one].lower == "not" or words[one].lower.endswith("n't"))
            denial = next(denials, None)
            if denial is None or words[denial + 1].lower in _LISTS["not a denial"]:
                continue
            end = _matching_end(passage.text, words, denial, but)
            if end:
                yield span_between(words[denial], words[end])


def _matching_end(text: str, words: Words, denial: int, but: int) -> int:
    """Find the end of the member after "but" if it matches the member after "not"; 0 if it does not."""
    start = but + 2 if but + 1 < len(words) and words[but + 1].lower in _LISTS["instead"] else but + 1
    if start >= len(words):
        return 0
    end = start
    while end + 1 < len(words) and end - start < _REACH and not has_mark(text, words[end], words[end + 1]):
        end += 1
    denied, instead = words[denial + 1], words[start]
    # If only the part after "but" has a subject, it is a separate clause, and nothing is replaced.
    has_subject = [
        not _NEW_SUBJECTS.isdisjoint(word.lower for word in part)
        for part in (words[denial:but], words[but + 2 : end + 1])
    ]
    if has_subject == [False, True]:
        return 0
    same_size = end - start + 1 == but - denial - 1
    same_start = denied.lower == instead.lower or PREPOSITIONS.issuperset((denied.lower, instead.lower))
    return end if same_size or same_start else 0


_NEW_SUBJECTS: Final = SUBJECTS | {"nobody", "everyone", "someone"}
_LONG_MEMBER: Final = 4
_SHARED: Final = 2


@shows("isocolon", repeats=True)
def isocolon(passage: Passage) -> Iterator[Span]:
    """Find two neighboring pieces with the same number of words, four or more, that share two words by position."""
    for first, second in pairwise(passage.pieces):
        two = bare(second)
        one = bare(first) if len(first) > len(two) else first
        if not len(one) == len(two) >= _LONG_MEMBER or (is_number(one[1].lower) and is_number(two[1].lower)):
            continue
        if sum(left.lower == right.lower for left, right in zip(one, two, strict=True)) >= _SHARED:
            yield span_between(first[0], second[-1])
