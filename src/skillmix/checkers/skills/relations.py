"""Checkers of relations between statements: concessions, exceptions, analogies."""

from collections.abc import Iterator
from itertools import pairwise
from typing import Final

from skillmix.checkers.passage import Passage, Sentence, Span, Words, shows
from skillmix.checkers.words import DETERMINERS, lists_of, main_words, opens_clause

_LISTS: Final = lists_of("relations")

_AGAINST_PAIRS: Final = frozenset({("even", "so"), ("the", "same")})


@shows("marked concession", "though", "even if", "granted")
def marked_concession(passage: Passage) -> Iterator[Span]:
    """Find "although A, still B"."""
    for sentence in passage.sentences:
        pieces = sentence.pieces
        for number, piece in enumerate(pieces[:-1]):
            # "Granted, the car is old, but it still runs": the comma comes right after the first word
            later = pieces[number + 2 : number + 10] if len(piece) <= 2 and piece[-1].lower == "granted" else ()
            concessive = (at for at, word in enumerate(piece[:-2]) if word.lower in _LISTS["conceding"])
            at = next((at for at in concessive if opens_clause(piece, at)), None)
            if at is not None and (piece[at].lower != "even" or piece[at + 1].lower in ("though", "if")):
                later = pieces[number + 1 : number + 9]
            if any(_goes_against(one) for one in later):
                yield Span(piece[0].start, pieces[-1][-1].end)


def _goes_against(piece: Words) -> bool:
    for index, word in enumerate(piece):
        before = piece[index - 1].lower if index else ""
        if word.lower == "yet":
            if before in ("", "and", "but"):
                return True
        elif word.lower in _LISTS["against"]:
            # "Stood still" and "the lake was still" mean "without motion".
            is_last = index == len(piece) - 1 and before in _LISTS["before still"]
            if word.lower != "still" or not (before in _LISTS["motionless"] or before in DETERMINERS or is_last):
                return True
        elif (before, word.lower) in _AGAINST_PAIRS:
            return before == "even" or (index > 1 and piece[index - 2].lower in ("all", "just"))
    return False


_NO_WHOLE_BEFORE: Final = frozenset({"after", "at", "above", "of"})  # not a rule: "after all"
_NO_EXCEPTION_BEFORE: Final = _LISTS["no exception before"]  # verbs: "stood apart from", "we save for"
_LEAVING_OUT: Final = {("apart", "from"), ("other", "than"), ("save", "for"), ("aside", "from")}


@shows("exception to a rule", "except", "apart from", "aside from", "other than", "save for")
def exception_to_a_rule(passage: Passage) -> Iterator[Span]:
    """Find "all X except Y"."""
    for sentence in passage.sentences:
        left_out = _left_out(sentence)
        whole = _whole_groups(sentence) if left_out else []
        for start, end in left_out[:8]:
            if any(index < start or index >= end for index in whole):
                yield Span(sentence.words[0].start, sentence.words[-1].end)


def _left_out(sentence: Sentence) -> list[tuple[int, int]]:
    """Find each phrase with an exception: the word indices of its start and of the end of its piece."""
    exceptions = []
    first = 0
    for piece in sentence.pieces:
        for index, word in enumerate(piece[:-1]):
            pair = (word.lower, piece[index + 1].lower)
            # After some words, "apart from" or "save for" introduces no exception: "they stood apart from us", "we save
            # for a bike".
            named = (
                pair in _LEAVING_OUT
                and index + 2 < len(piece)
                and not (any(word.lower in _NO_EXCEPTION_BEFORE for word in piece[max(index - 2, 0) : index]))
            )
            if named or word.lower in ("except", "excepting"):
                exceptions.append((first + index, first + len(piece)))
        first += len(piece)
    return exceptions


def _whole_groups(sentence: Sentence) -> list[int]:
    words = sentence.words
    starts = {piece[0].start for piece in sentence.pieces}
    return [
        index
        for index, word in enumerate(words)
        if word.lower in _LISTS["whole"]
        and not (word.lower == "all" and index and words[index - 1].lower in _NO_WHOLE_BEFORE)
        and not (word.lower == "no" and index + 1 < len(words) and words[index + 1].start in starts)
    ]


_LONGEST_TERM: Final = 9


@shows("proportional analogy")
def proportional_analogy(passage: Passage) -> Iterator[Span]:
    """Find "A is to B as C is to D"."""
    for sentence in passage.sentences:
        words = sentence.words
        starts = {piece[0].start for piece in sentence.pieces}
        indices = [index for index in range(1, len(words)) if words[index].lower == "to"]
        for first, second in pairwise(indices):
            terms = _terms(words, first, second, starts) if words[first - 1].lower in _LISTS["be"] else None
            if not terms or any(not 0 < len(term) <= _LONGEST_TERM for term in terms):
                continue
            mains = {main_words(term) for term in terms}
            has_deed = _is_deed(terms[1]) or _is_deed(terms[3])
            if not has_deed and len(mains) == 4 and frozenset() not in mains:
                yield Span(terms[0][0].start, terms[3][-1].end)


def _terms(words: Words, first: int, second: int, starts: set[int]) -> list[Words] | None:
    """Find the four terms around two occurrences of "to"; None if the text does not compare these terms."""
    last = second + 1
    while last < len(words) and words[last].start not in starts and last - second < _LONGEST_TERM:
        last += 1
    opening = first - 1
    limit = max(first - _LONGEST_TERM - 2, 0)
    while opening > limit and words[opening].start not in starts and words[opening].lower not in ("as", "what", "that"):
        opening -= 1
    front = words[opening].lower in ("as", "what")
    middle = words[first + 1 : second - 1 if words[second - 1].lower in _LISTS["be"] else second]
    for index, word in enumerate(middle):
        if word.lower in ("as", "what", "like") or (front and word.start in starts and index):
            skip = 1 if word.lower in ("as", "what", "like", "so") else 0
            left, right = words[opening + front : first - 1], words[second + 1 : last]
            return [left, middle[:index], middle[index + skip :], right]
    return None


def _is_deed(term: Words) -> bool:
    """Return whether a term is an action for someone to do: "leave at noon"."""
    first = term[0].lower
    thing = first in DETERMINERS or first.endswith("s") or term[0].text[0].isupper()
    return not thing and any(word.lower in _LISTS["verb phrase"] for word in term[1:])
