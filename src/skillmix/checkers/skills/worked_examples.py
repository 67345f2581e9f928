"""Checkers of the five skills that occur only in few-shot examples."""

import re
from collections.abc import Iterator
from typing import Final

from skillmix.checkers.passage import Passage, Span, Words, has_mark, only_comma, shows, span_between
from skillmix.checkers.words import PERSONS, lists_of, word_set

_LISTS: Final = lists_of("worked_examples")

_AS_AS = re.compile(
    r"\bas (?!(?:soon|long|well|far|much|many|early|late|often|little|few|recently|high|low) )"
    r"(?:[a-z'-]{2,20} ){1,3}?as (?:an?|the) (?!(?:dozen|hundred|thousand|dollar|week|month|year|mile|third|quarter)\b)"
    r"[a-z][a-z'-]*+"
)
_LIKE_A = re.compile(r"\b(?P<before>[a-z']{1,20}),? (?:just |almost |exactly |much )?like an? (?!lot\b)[a-z][a-z'-]*+")
_NOT_LIKENED: Final = PERSONS - {"it", "him", "her", "me", "us", "them"} | _LISTS["not likened"]


@shows("simile", "as ", "like a")
def simile(passage: Passage) -> Iterator[Span]:
    """Find a comparison such as "as cold as a stone" or "ran like a deer"."""
    text = passage.lower
    yield from (Span(*match.span()) for match in _AS_AS.finditer(text))
    for like in _LIKE_A.finditer(text):
        if like["before"] not in _NOT_LIKENED:
            yield Span(*like.span())


@shows("list after a colon")
def list_after_a_colon(passage: Passage) -> Iterator[Span]:
    """Find three or more words, a colon, and three members with a conjunction before the last."""
    for sentence in passage.sentences:
        colon = sentence.text.find(": ")
        if colon < 0:
            continue
        index = sentence.start + colon
        before = [word for word in sentence.words if word.end <= index]
        after = tuple(piece for piece in sentence.pieces if piece[0].start > index)
        if len(before) >= 3 and _is_list(passage.text, after):
            yield span_between(before[0], after[-1][-1])


def _is_list(text: str, pieces: tuple[Words, ...]) -> bool:
    for index in range(1, len(pieces)):
        if not only_comma(text, pieces[index - 1], pieces[index]):
            return False
        members = index + 1
        last = [word.lower for word in pieces[index]]
        if last[0] in ("and", "or"):
            return members >= 3 and len(last) > 1
        if ("and" in last[1:-1] or "or" in last[1:-1]) and members >= 2:
            return True
    return False


_REACH: Final = 6


@shows("superlative claim")
def superlative_claim(passage: Passage) -> Iterator[Span]:
    """Find "the" with a superlative, and the field of comparison within six words."""
    for sentence in passage.sentences:
        words = sentence.words
        for index in range(len(words) - 2):
            if words[index].lower == "the" and _is_superlative(words[index + 1].lower):
                end = _field_of_comparison(passage.text, words, index + 2)
                if end:
                    yield span_between(words[index], words[end])


def _field_of_comparison(text: str, words: Words, start: int) -> int:
    """Find the field of comparison, before any mark except one between two superlatives; 0 if none is near."""
    for index in range(start, min(start + _REACH + 1, len(words))):
        if has_mark(text, words[index - 1], words[index]) and not _is_superlative(words[index].lower):
            return 0
        if words[index].lower in _LISTS["field"]:
            return index
    return 0


def _is_superlative(word: str) -> bool:
    if word in ("most", "least", "best", "worst"):
        return True
    return word.endswith("est") and len(word) > 4 and word not in _LISTS["no superlative"]


@shows("plain definition")
def plain_definition(passage: Passage) -> Iterator[Span]:
    """Find a thing with its article, "is a", its kind, and what distinguishes it."""
    for sentence in passage.sentences:
        words = sentence.words
        for index in range(2, len(words) - 3):
            if words[index].lower == "is" and words[index + 1].lower in ("a", "an"):
                start = _subject_start(passage.text, words, index)
                near = range(index + 3, min(index + 3 + _REACH, len(words) - 1))
                mark_off = next((one for one in near if words[one].lower in _LISTS["marks off"]), None)
                if start >= 0 and mark_off is not None:
                    yield span_between(words[start], words[mark_off + 1])


_OF_ONE: Final = PERSONS | word_set("of at in on from")
"""Words that show that a subject is not a kind of thing: "a cousin of mine"."""


def _subject_start(text: str, words: Words, verb: int) -> int:
    """Find an article that opens a clause one to three words before the verb; -1 if there is none."""
    for start in range(verb - 2, max(-1, verb - 5), -1):
        if words[start].lower in ("a", "an"):
            before = words[start - 1]
            opens = start == 0 or before.lower in _LISTS["leads on"] or has_mark(text, before, words[start])
            is_kind = _OF_ONE.isdisjoint(word.lower for word in words[start:verb])
            return start if opens and is_kind else -1
    return -1


_WISH = re.compile(
    r"(?:^|[.!?,;:—–(\"]|\b(?:and|but|oh|o)) ?(?P<only>if only) "
    r"|\b(?P<wish>(?:i|we) (?:do |just |only |really )?wish) (?!to\b)",
    re.MULTILINE,
)


@shows("if-only wish", "if only", "wish")
def if_only_wish(passage: Passage) -> Iterator[Span]:
    """Find "if only" or "I wish", and within a few words a verb form for something unreal, such as "were"."""
    text = passage.lower
    for match in _WISH.finditer(text):
        after = [word.strip('.,;:!?"()') for word in text[match.end() : match.end() + 80].split()[: _REACH + 1]]
        # The first word is the subject, unless it is one with its verb: "I'd".
        verbs = after if after and "'d" in after[0] else after[1:]
        if any(word in _LISTS["unreal"] or (word.endswith("ed") and len(word) > 4) for word in verbs):
            yield Span(max(match.start("only"), match.start("wish")), match.end() - 1)
