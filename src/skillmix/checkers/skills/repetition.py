"""Checkers of figures of repetition and sound, by the words that return and by how words begin and end."""

import re
from collections.abc import Iterator
from itertools import combinations, pairwise, takewhile
from typing import Final

from skillmix.checkers.passage import Passage, Sentence, Span, Word, Words, shows, span_between, span_of
from skillmix.checkers.verbs import is_finite
from skillmix.checkers.words import (
    ARTICLES,
    CONJUNCTIONS,
    GRAMMAR,
    LITTLE,
    PREPOSITIONS,
    bare,
    can_echo,
    is_number,
    lists_of,
    word_set,
)

_SHORTEST: Final = 3
"""The minimum number of words in a part, so that a part with a shared first or last word still says something new."""


@shows("anaphora", repeats=True)
def anaphora(passage: Passage) -> Iterator[Span]:
    """Find three neighboring parts of two or more words with the same first word, which must not be an article."""
    for parts in passage.divisions:
        run = 1
        before = ""
        for index, part in enumerate(parts):
            core = bare(part)
            word = core[0].lower if len(core) > 1 else ""
            run = run + 1 if word and word == before and not _is_numbered(core) else 1
            before = "" if word in ARTICLES else word
            if run == _SHORTEST:
                yield span_between(parts[index - 2][0], part[-1])


@shows("epistrophe", repeats=True)
def epistrophe(passage: Passage) -> Iterator[Span]:
    """Find two neighboring parts of three to twelve words with the same last word."""
    for parts in passage.divisions:
        for first, second in pairwise(parts):
            if (
                first[-1].lower == second[-1].lower
                and max(len(first), len(second)) <= _WITHIN_EARSHOT
                and _alike_but_not_same(first, second)
            ):
                yield span_between(first[0], second[-1])


_WITHIN_EARSHOT: Final = 12
"""The maximum number of words in a part, because a reader does not notice the shared ending of longer parts."""


@shows("symploce", repeats=True)
def symploce(passage: Passage) -> Iterator[Span]:
    """Find two neighboring parts with the same first and last word and different words in between."""
    for parts in passage.divisions:
        for first, second in pairwise(parts):
            if first[-1].lower == second[-1].lower:
                one, two = bare(first), bare(second)
                if one[0].lower == two[0].lower and _alike_but_not_same(one, two) and not _is_numbered(two):
                    yield span_between(first[0], second[-1])


def _is_numbered(part: Words) -> bool:
    """Return whether a part is an item of a numbered list: "press two for repairs"."""
    return len(part) > 1 and is_number(part[1].lower)


def _alike_but_not_same(first: Words, second: Words) -> bool:
    if len(first) < _SHORTEST or len(second) < _SHORTEST:
        return False
    return len(first) != len(second) or any(
        one.lower != two.lower for one, two in zip(bare(first), bare(second), strict=False)
    )


@shows("epizeuxis", repeats=True)
def epizeuxis(passage: Passage) -> Iterator[Span]:
    """Find the same word three times in a row, with at most one "and" in between."""
    words = passage.words
    start = index = 0
    run = 1
    while index < len(words) - 1:
        step = 2 if words[index + 1].lower == "and" and index + 2 < len(words) else 1
        word = words[index].lower
        if (
            word == words[index + step].lower
            and word[0].isalpha()
            and word not in (_NOT_STRESSED if step == 1 else _NOT_JOINED)
        ):
            run += 1
            index += step
            if run == _SHORTEST:
                yield span_between(words[start], words[index])
        else:
            index += 1
            start, run = index, 1


_NOT_JOINED: Final = ARTICLES | CONJUNCTIONS | frozenset(("that", "had", "is", "it"))
_NOT_STRESSED: Final = _NOT_JOINED | PREPOSITIONS
"""Words that do not count if repeated directly; a preposition counts with "and": "over and over and over"."""
_BEFORE_THE_ECHO: Final = frozenset(("and", "but", "a", "an", "the", "this", "that"))
_LONGEST_ECHO: Final = 4


@shows("anadiplosis", repeats=True)
def anadiplosis(passage: Passage) -> Iterator[Span]:
    """Find a piece that begins with the last words of the previous piece, if both have three or more words."""
    for first, second in pairwise(passage.pieces):
        if len(first) >= _SHORTEST and len(second) >= _SHORTEST and can_echo(first[-1].lower):
            end = _echo(first, second)
            if end:
                yield span_between(first[0], second[end - 1])


def _echo(first: Words, second: Words) -> int:
    """Find the index in the second part after the repeated end of the first; 0 if nothing is repeated."""
    start = 0
    while start < _SHORTEST:
        for length in range(1, min(_LONGEST_ECHO, len(first), len(second) - start) + 1):
            if second[start + length - 1].lower == first[-1].lower and all(
                one.lower == two.lower for one, two in zip(first[-length:], second[start : start + length], strict=True)
            ):
                return start + length
        if second[start].lower not in _BEFORE_THE_ECHO:
            return 0
        start += 1
    return 0


_CROSS_BY_CHANCE: Final = GRAMMAR - {"you", "me", "we", "us"}
_NATURAL_LENGTH: Final = 100


@shows("antimetabole", repeats=True)
def antimetabole(passage: Passage) -> Iterator[Span]:
    """Find two content words that return in reverse order within a sentence."""
    for sentence in passage.sentences:
        words = sentence.words[:_NATURAL_LENGTH]
        indices: dict[str, list[int]] = {}
        for index, word in enumerate(words):
            if word.lower not in _CROSS_BY_CHANCE and not word.lower[0].isdigit():
                indices.setdefault(word.lower, []).append(index)
        repeated = [times for times in indices.values() if len(times) > 1]
        inner = [pair for times in repeated for pair in pairwise(times)] if len(repeated) > 1 else []
        for first, last in (pair for times in repeated for pair in combinations(times[:_ARM], 2)):
            if any(0 < start - first <= _ARM and 0 < last - end <= _ARM for start, end in inner):
                yield span_between(words[first], words[last])


_ARM: Final = 5
"""The maximum distance between crossed words: four words in between, because readers would not notice more."""


_PAUSE = re.compile(r"[,;:!?…—–]|--| - ")


@shows("diacope", repeats=True)
def diacope(passage: Passage) -> Iterator[Span]:
    """Find a content word that returns after one or two words and a mark."""
    for sentence in passage.sentences:
        last: dict[str, tuple[int, Word]] = {}
        for index, word in enumerate(sentence.words):
            before = last.get(word.lower)
            if (
                before
                and not (before[0] and before[1].text[0].isupper() and word.text[0].isupper())  # unlike names
                and 1 < index - before[0] <= _INTERRUPTION
                and _PAUSE.search(passage.text, before[1].end, word.start)
            ):
                yield span_between(before[1], word)
            if len(word.lower) > 1 and can_echo(word.lower):
                last[word.lower] = index, word


_INTERRUPTION: Final = 3
"""The maximum distance between the two uses of a word: two words in between."""

_ENDINGS: Final = frozenset({""}) | lists_of("repetition")["endings"]


@shows("polyptoton", repeats=True)
def polyptoton(passage: Passage) -> Iterator[Span]:
    """Find three different words of one sentence that share their first three or more letters."""
    for sentence in passage.sentences:
        families: dict[str, dict[str, Word]] = {}
        for word in sentence.words:
            lower = word.lower.removesuffix("'s")
            if len(lower) >= _SHORTEST and lower not in LITTLE:
                families.setdefault(lower[:3], {}).setdefault(lower, word)
        for family in families.values():
            span = len(family) >= _SHORTEST and _kin(family)
            if span:
                yield span


def _kin(family: dict[str, Word]) -> Span | None:
    forms = sorted(family)
    triples = combinations(forms[:_FEW], 3)
    for triple in triples:
        # The common prefix of the first and last word in alphabetical order is shared by all words between.
        pairs = zip(triple[0], triple[-1], strict=False)
        root = "".join(one for one, _ in takewhile(lambda pair: pair[0] == pair[1], pairs))
        rests = [form[len(root) :] for form in triple]
        # A regular ending may also follow a doubled last letter, an e, or an i for y.
        regular = [
            root[-1] in "ew"
            if rest in ("d", "r", "rs", "n")
            else rest in _ENDINGS or (rest[0] in (root[-1], "e", "i") and rest[1:] in _ENDINGS)
            for rest in rests
        ]
        # "care" is not a form of "car": a final e is an ending only if the root alone is not a word.
        if all(regular) and not ("" in rests and "e" in rests):
            words = sorted((family[form] for form in triple), key=lambda word: word.start)
            return span_between(words[0], words[-1])
    return None


_FEW: Final = 8


_LONGEST_ROUND: Final = 16
_OVERLOOKED: Final = ARTICLES | {"and", "but"}
_SENTENCE: Final = 4


@shows("epanalepsis", repeats=True)
def epanalepsis(passage: Passage) -> Iterator[Span]:
    """Find a sentence or part of four or more words that begins and ends with the same word."""
    for parts in passage.divisions:
        for part in parts:
            if _comes_round(part):
                yield span_of(part)
    words = passage.words
    is_short = len(words) <= _LONGEST_ROUND or is_finite(words, 1)  # unlike "Home games", as in "Iron answers"
    if len(passage.sentences) == 1 and is_short and _comes_round(words):
        yield span_of(words)


def _comes_round(part: Words) -> bool:
    if len(part) < _SENTENCE:
        return False
    last = part[-1].lower
    start = 0
    while part[start].lower in _OVERLOOKED and start < 2:
        start += 1
    return part[start].lower == last and len(part) - start >= _SHORTEST and can_echo(last)


_CONSONANTS: Final = frozenset("bcdfghjklmnpqrstvwxyz")
_VOWEL = re.compile(r"[aeiouy]")
_SUFFIXES: Final = re.compile(
    r"(?:ically|ations|ation|ising|izing|ments?|ness|ings?|ions?|able|ible|less|[ai]bly|[ae]nce|ingly|fully|ers|ie[sd]|ity"
    r"|ous|ful|est|(?<=[^aeiou])e[dr]|ly)$"
)


@shows("alliteration")
def alliteration(passage: Passage) -> Iterator[Span]:
    """Find three different content words with the same first consonant, with at most one word in between."""
    for sentence in passage.sentences:
        # The initials of a name of several words are equal only by chance.
        capital = [index for index, word in enumerate(sentence.words) if word.text[0].isupper()]
        of_names = {index for index in capital if index > 1 and not {index - 1, index + 1}.isdisjoint(capital)}
        initials = [
            (index, word.lower[0])
            for index, word in enumerate(sentence.words)
            if word.lower[0] in _CONSONANTS and word.lower not in GRAMMAR and index not in of_names
        ]
        span = _chain(sentence, initials, 2)
        if span:
            yield span


@shows("homoioteleuton")
def homoioteleuton(passage: Passage) -> Iterator[Span]:
    """Find three different words of five or more letters with the same last three, and at most two words between."""
    for sentence in passage.sentences:
        endings = [
            (index, word.lower[-3:])
            for index, word in enumerate(sentence.words)
            if word.end - word.start >= _LONG and word.lower not in _NO_ENDING and word.lower[-3:].isalpha()
        ]
        span = _chain(sentence, endings, 3)
        if span:
            yield span


_LONG: Final = 5
_NO_ENDING: Final = LITTLE | word_set("morning evening during ceiling")
"""Words whose last letters do not form an ending."""


def _chain(sentence: Sentence, keyed: list[tuple[int, str]], step: int) -> Span | None:
    """Find three different words with the same key, each at most `step` words after the previous one."""
    chains: dict[str, list[Word]] = {}
    last: dict[str, int] = {}
    for index, key in keyed:
        word = sentence.words[index]
        if key in chains and index - last[key] <= step:
            if all(word.lower != other.lower for other in chains[key]):
                chains[key].append(word)
            if len(chains[key]) == _ENOUGH:
                return span_between(chains[key][0], word)
        else:
            chains[key] = [word]
        last[key] = index
    return None


_ENOUGH: Final = 3


@shows("end rhyme")
def end_rhyme(passage: Passage) -> Iterator[Span]:
    """Find two neighboring pieces of three or more words whose last words share their last three letters."""
    for first, second in pairwise(passage.pieces):
        if len(first) >= _ENOUGH and len(second) >= _ENOUGH and _rhymes(first[-1].lower, second[-1].lower):
            yield span_between(first[0], second[-1])


def _rhymes(first: str, second: str) -> bool:
    if first[-3:] != second[-3:] or first == second or min(len(first), len(second)) < _ENOUGH:
        return False
    if not first[-3:].isalpha():
        return False
    suffix = _SUFFIXES.search(first)
    rests = (first[: suffix.start()], second[: suffix.start() - len(first)]) if suffix else ("", "")
    if suffix and second.endswith(suffix[0]) and all(_VOWEL.search(rest) for rest in rests):
        return rests[0][-2:] == rests[1][-2:]
    return True


@shows("abecedarian run")
def abecedarian_run(passage: Passage) -> Iterator[Span]:
    """Find four consecutive words whose first letters follow each other in the alphabet."""
    for sentence in passage.sentences:
        words = sentence.words
        run = 1
        before = 0
        for index, word in enumerate(words):
            initial = ord(word.lower[0])
            run = run + 1 if initial == before + 1 and word.lower[0] in _LETTERS else 1
            before = initial
            if run == _RUN:
                yield span_between(words[index - _RUN + 1], word)


_RUN: Final = 4
_LETTERS: Final = frozenset("bcdefghijklmnopqrstuvwxyz")
"""Letters that may follow another letter of the alphabet; "a" cannot."""
