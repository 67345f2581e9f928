"""Sets of English function words, and the questions that checkers ask about single words.

`LITTLE` and `GRAMMAR` serve the skills of form: sound, repetition, series. `_MINOR` serves the skills of meaning, which
compare clauses by the stems of their main words.
"""

import json
from collections.abc import Iterable
from functools import lru_cache
from importlib.resources import files
from typing import Final

from skillmix.checkers.passage import Word, Words


def word_set(text: str) -> frozenset[str]:
    """The set of words in a text."""
    return frozenset(text.split())


_LISTS: Final[dict[str, str]] = json.loads(
    (files("skillmix.checkers.english") / "word_lists.json").read_text(encoding="utf-8")
)


def listed(name: str) -> frozenset[str]:
    """A longer set of words, by its name in `word_lists.json`: the module and what it is there."""
    return word_set(_LISTS[name])


CONJUNCTIONS: Final = frozenset(("and", "or", "but"))
ARTICLES: Final = frozenset(("a", "an", "the"))
PERSONS: Final = word_set(
    "i you he she it we they me him her us them my your his its our their mine yours hers ours theirs myself"
    " yourself himself herself itself ourselves themselves thou thee thy"
)
PREPOSITIONS: Final = word_set(
    "to of in on at by for from with into onto over under through across along behind beside beneath between beyond"
    " above below near around after before during without within upon against among inside outside past toward"
)
SUBJECTS: Final = word_set("i he she we they")
LITTLE: Final = CONJUNCTIONS | ARTICLES | PERSONS | listed("words: little")
"""Words that carry grammar rather than content."""
GRAMMAR: Final = LITTLE - word_set("all none never once more most much many few same other another again still")
"""The words of `LITTLE` that writers do not repeat for effect."""
OPENS_AN_ASIDE: Final = listed("words: opens an aside")
"""First words of insertions between commas that are not list members."""

DETERMINERS: Final = word_set(
    """
    a an the this that these those my your his her its our their every each some any no another both all
    """
)
SUBJECT_PRONOUNS: Final = word_set("i you he she it we they there one nobody everyone somebody someone")
LEADS: Final = listed("words: leads")
"""Words that may come before the first word of a clause."""

_MINOR: Final = DETERMINERS | SUBJECT_PRONOUNS | listed("words: minor")
_DENIALS: Final = word_set(
    """
    not no never none nobody nothing neither nor cannot nowhere without ain't no-one hardly
    """
)
_FORMS: Final = {
    form: verb
    for verb, forms in {
        "begin": "began begun", "bite": "bit bitten", "break": "broke broken", "bring": "brought", "build": "built",
        "burn": "burnt", "buy": "bought", "catch": "caught", "choose": "chose chosen", "come": "came", "dig": "dug",
        "draw": "drew drawn", "drink": "drank drunk", "drive": "drove driven", "eat": "ate eaten",
        "fall": "fell fallen",
        "feed": "fed", "feel": "felt", "fight": "fought", "find": "found", "fly": "flew flown flies",
        "forget": "forgot forgotten", "freeze": "froze frozen", "give": "gave given", "go": "went gone goes",
        "grow": "grew grown", "hear": "heard", "hide": "hid hidden", "hold": "held", "keep": "kept",
        "know": "knew known",
        "leave": "left", "lose": "lost", "make": "made", "meet": "met", "pay": "paid", "ride": "rode ridden",
        "ring": "rang rung", "rise": "rose risen", "run": "ran", "say": "said", "see": "saw seen", "sell": "sold",
        "send": "sent", "shake": "shook shaken", "shine": "shone", "sing": "sang sung", "sink": "sank sunk",
        "sit": "sat",
        "sleep": "slept", "speak": "spoke spoken", "spend": "spent", "stand": "stood", "steal": "stole stolen",
        "swim": "swam swum", "take": "took taken", "teach": "taught", "tell": "told", "think": "thought",
        "throw": "threw thrown", "understand": "understood", "wake": "woke woken", "wear": "wore worn", "win": "won",
        "write": "wrote written", "child": "children", "man": "men", "woman": "women", "foot": "feet",
    }.items()
    for form in forms.split()
}  # fmt: skip
_VOWELS: Final = frozenset("aeiouy")


@lru_cache(maxsize=4096)
def stem(lower: str) -> str:
    """Cut the ending of a word, so that its forms become equal.

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
    """Stems of the content words: no pronouns, articles, auxiliary verbs or other function words."""
    return frozenset([meaning(word.lower[:_LONGEST]) for word in words]) - _NO_MEANING


_NO_MEANING: Final = frozenset({""})
_LONGEST: Final = 64
"""Only this many letters count, which keeps the cache of stems small."""


@lru_cache(maxsize=4096)
def meaning(lower: str) -> str:
    """The stem of a content word in lower case; empty for a function word."""
    return "" if is_minor(lower) or lower.partition("'")[0] in _MINOR else stem(lower)


def is_minor(lower: str) -> bool:
    """Whether a lower-case word is a function word."""
    return lower in _MINOR or lower.endswith("n't")


def denies(words: Words) -> bool:
    """Whether a clause is negative: it has an odd number of negations."""
    return sum(word.lower in _DENIALS or word.lower.endswith("n't") for word in words) % 2 == 1


def opens_clause(piece: Words, index: int) -> bool:
    """Whether the word at an index starts its piece, or follows a word that may lead a clause."""
    return index == 0 or piece[index - 1].lower in LEADS


def can_echo(word: str) -> bool:
    """Whether repeating a lower-case word can have an effect: it is neither grammar nor a number."""
    return word not in GRAMMAR and not word[0].isdigit()


def bare(part: Words) -> Words:
    """A part without its first conjunction, unless the part is only a conjunction."""
    return part[1:] if len(part) > 1 and part[0].lower in CONJUNCTIONS else part
