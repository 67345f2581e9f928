"""English words for checkers: lists of words, stems, and spelled-out numbers.

Checkers of form (sound, repetition, series) use `LITTLE` and `GRAMMAR`. Checkers of meaning use `_MINOR`, because they
compare clauses by the stems of their main words.
"""

import json
import re
from collections.abc import Iterable, Mapping
from functools import lru_cache
from importlib.resources import files
from typing import Any, Final, NamedTuple

from skillmix.checkers.passage import Word, Words


def word_set(text: str) -> frozenset[str]:
    """Return the set of words in a text."""
    return frozenset(text.split())


def english(name: str) -> Any:
    """Load a JSON file of English word data by name."""
    return json.loads((files("skillmix.checkers") / "english" / f"{name}.json").read_text(encoding="utf-8"))


_ALL_LISTS: Final[dict[str, dict[str, str]]] = english("word_lists")


def lists_of(module: str) -> Mapping[str, frozenset[str]]:
    """Return the word sets for a module from `word_lists.json`, by name."""
    return {name: word_set(words) for name, words in _ALL_LISTS[module].items()}


_LISTS: Final = lists_of("words")
CONJUNCTIONS: Final = frozenset(("and", "or", "but"))
ARTICLES: Final = frozenset(("a", "an", "the"))
PERSONS: Final = _LISTS["persons"]
PREPOSITIONS: Final = _LISTS["prepositions"]
SUBJECTS: Final = word_set("i he she we they")
LITTLE: Final = CONJUNCTIONS | ARTICLES | PERSONS | _LISTS["little"]
"""Words with a grammatical function rather than content."""
GRAMMAR: Final = LITTLE - word_set("all none never once more most much many few same other another again still")
"""The words of `LITTLE` that writers do not repeat for effect."""
OPENS_AN_ASIDE: Final = _LISTS["opens an aside"]
"""First words of insertions between commas that are not list members."""

DETERMINERS: Final = _LISTS["determiners"]
SUBJECT_PRONOUNS: Final = word_set("i you he she it we they there one nobody everyone somebody someone")
LEADS: Final = _LISTS["leads"]
"""Words that may come before the first word of a clause."""

_MINOR: Final = DETERMINERS | SUBJECT_PRONOUNS | _LISTS["minor"]
_DENIALS: Final = _LISTS["denials"]
_FORMS: Final = {
    form: verb for verb, forms in (entry.split(":") for entry in _LISTS["irregular forms"]) for form in forms.split(",")
}
_VOWELS: Final = frozenset("aeiouy")


@lru_cache(maxsize=4096)
def stem(lower: str) -> str:
    """Reduce a word to a stem that all its forms share.

    >>> [stem(word) for word in ("cries", "crying", "stopped", "bakes", "ran", "dog's")]
    ['cri', 'cri', 'stop', 'bak', 'run', 'dog']
    """
    base = lower.partition("'")[0]
    base = _FORMS.get(base, base)
    for ending in ("ing", "ied", "ies", "ed", "es", "s", "ly"):
        if base.endswith(ending) and _may_lose(base, ending):
            base = base[: -len(ending)] + ("i" if ending[0] == "i" and ending != "ing" else "")
            break
    if base.endswith("e") and len(base) > 2:
        base = base[:-1]
    if len(base) > 2 and base[-1] == base[-2]:
        base = base[:-1]
    return base[:-1] + "i" if base.endswith("y") else base


def _may_lose(base: str, ending: str) -> bool:
    rest = base[: -len(ending)]
    if ending in ("s", "es") and rest.endswith(("s", "u", "i")):
        return ending == "es"
    if ending == "ed" and rest.endswith("e"):
        return False
    return len(rest) >= (2 if ending == "ing" else 3 if ending != "s" else 2) and not _VOWELS.isdisjoint(rest)


def main_words(words: Iterable[Word]) -> frozenset[str]:
    """Return the stems of the content words, without pronouns, articles, auxiliary verbs and other function words."""
    return frozenset([meaning(word.lower[:_LONGEST]) for word in words]) - _NO_MEANING


_NO_MEANING: Final = frozenset({""})
_LONGEST: Final = 64
"""The number of letters to which words are truncated, which keeps the cache of stems small."""


@lru_cache(maxsize=4096)
def meaning(lower: str) -> str:
    """Return the stem of a content word in lower case; empty for a function word."""
    return "" if is_minor(lower) or lower.partition("'")[0] in _MINOR else stem(lower)


def is_minor(lower: str) -> bool:
    """Return whether a lower-case word is a function word."""
    return lower in _MINOR or lower.endswith("n't")


def denies(words: Words) -> bool:
    """Return whether a clause is negative, that is, contains an odd number of negations."""
    return sum(word.lower in _DENIALS or word.lower.endswith("n't") for word in words) % 2 == 1


def opens_clause(piece: Words, index: int) -> bool:
    """Return whether the word at an index starts its piece, or follows a word that may lead a clause."""
    return index == 0 or piece[index - 1].lower in LEADS


def can_echo(word: str) -> bool:
    """Return whether a lower-case word can be repeated for effect: it is neither a function word nor a number."""
    return word not in GRAMMAR and not word[0].isdigit()


def bare(part: Words) -> Words:
    """Drop the first conjunction of a part, unless the part is only a conjunction."""
    return part[1:] if len(part) > 1 and part[0].lower in CONJUNCTIONS else part


_SMALL: Final = """
    zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen seventeen
    eighteen nineteen
"""
_TENS: Final = "twenty thirty forty fifty sixty seventy eighty ninety"
_ATOMS: Final = {
    **{word: value for value, word in enumerate(_SMALL.split())},
    **{word: 10 * tens for tens, word in enumerate(_TENS.split(), start=2)},
}
_SCALES: Final = {"dozen": 12, "hundred": 100, "thousand": 1000, "million": 10**6, "billion": 10**9}
_ONE_AMOUNT: Final = re.compile(r"(?:\d+|\d{1,3}(?:,\d{3})+)(?:\.\d+)?")
_MAXIMUM_DIGITS: Final = 15  # a longer number is not an amount, and a float could not represent it exactly


class Number(NamedTuple):
    """A number and the range of its words, from index `first` up to but not including `after`."""

    value: float
    first: int
    after: int


def numbers_in(words: Words) -> list[Number]:
    """Find every number, where "two hundred and five" is one number and "three-two-one" is three numbers.

    >>> from skillmix.checkers.passage import passage_of
    >>> [number.value for number in numbers_in(passage_of("Ten, two hundred and five, twenty-one and 1,000.").words)]
    [10.0, 205.0, 21.0, 1000.0]
    """
    numbers: list[Number] = []
    for index, word in enumerate(words):
        if numbers and numbers[-1].after > index:
            continue
        if word.lower[0].isdigit():
            numbers += _digits_at(words, index)
        elif _parts(word.lower):
            numbers += _spelled_at(words, index)
    return numbers


def is_number(lower: str) -> bool:
    """Return whether a lower-case word is a number."""
    return lower.isdigit() or bool(_parts(lower))


def _spelled_at(words: Words, first: int) -> list[Number]:
    """Read the longest spelled-out number from an index; a word such as "three-two-one" may contain several numbers."""
    spelled: list[str] = []
    value, index = None, first
    while index < len(words) and (index == first or words[index].start == words[index - 1].end + 1):
        is_joint = words[index].lower == "and" and spelled[-1:] and spelled[-1] in _SCALES and index + 1 < len(words)
        last = index + 1 if is_joint else index
        parts = _parts(words[last].lower)
        longer = _value_of([*spelled, *parts]) if parts else None
        if longer is None:
            break
        spelled += parts
        value, index = longer, last + 1
    if value is not None:
        return [Number(float(value), first, index)]
    return [Number(float(_ATOMS[part]), first, first + 1) for part in _parts(words[first].lower) if part in _ATOMS]


def _digits_at(words: Words, first: int) -> list[Number]:
    text = words[first].lower
    if len(text) > _MAXIMUM_DIGITS or not text.isascii():
        return []
    if not _ONE_AMOUNT.fullmatch(text):
        listed = text.split(",")  # as in "3,2,1"
        return [Number(float(part), first, first + 1) for part in listed] if all(map(str.isdigit, listed)) else []
    value = float(text.replace(",", ""))
    following = words[first + 1] if first + 1 < len(words) else None
    if following and following.lower in _SCALES and following.start == words[first].end + 1:
        return [Number(value * _SCALES[following.lower], first, first + 2)]
    return [Number(value, first, first + 1)]


def _parts(lower: str) -> list[str]:
    if lower in _ATOMS or lower in _SCALES:
        return [lower]
    parts = lower.split("-") if "-" in lower else []
    return parts if all(part in _ATOMS or part in _SCALES for part in parts) else []


def _value_of(parts: list[str]) -> int | None:
    """Return the value of number words such as "twenty", "one"; None if they do not form a single number."""
    whole = chunk = 0
    limit = 10**12  # the next plain number must be smaller
    after_scale = False
    for part in parts:
        scale = _SCALES.get(part)
        if scale is None:
            if _ATOMS[part] >= limit:
                return None
            chunk += _ATOMS[part]
            limit = 10 if _ATOMS[part] >= 20 else 0
        else:
            if (after_scale and chunk == 0) or chunk >= scale:
                return None
            amount = max(chunk, 1) * scale
            whole, chunk = (whole + amount, 0) if scale >= 1000 else (whole, amount)
            limit = scale if scale != 12 else 0
        after_scale = scale is not None
    return whole + chunk
