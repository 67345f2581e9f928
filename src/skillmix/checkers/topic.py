"""Decide whether a text is on its topic, by the words of the topic's name and vocabulary."""

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from skillmix.checkers.passage import Passage, Span, Word, Words
from skillmix.checkers.verbs import VERBS
from skillmix.render import shortened

ENOUGH: Final = 2
"""The number of different topic words that put a text on its topic."""

_SMALL: Final = frozenset(["a", "an", "and", "at", "by", "for", "from", "in", "of", "on", "or", "the", "to", "with"])
_VOWELS: Final = "aeiou"


_MENTIONS: Final = re.compile(
    r"\b(?:mention(?:s|ed|ing)?|speaking of|aside|on the subject of|nothing to do with|by the way|incidentally"
    r"|(?:said|(?:never|not) (?:think|thought|heard|speak|spoke|care|cared)) (?:of|about)"
    r"|lecture on|another (?:story|matter|topic)|some other time|not part of|listed|headline|agenda|invoice|memo)\b"
)
"""Words of a text that names its topic only in passing."""


@dataclass(frozen=True, slots=True)
class TopicWords:
    """The words of a topic, in all their forms."""

    name: frozenset[str]
    """The words of its name, without function words."""
    alone: frozenset[str]
    """Words of which one is enough."""
    forms: dict[str, str]
    """Each inflected form of a word of the name or of the vocabulary, and that word."""


def topic_words(name: str, alone: Iterable[str], together: Iterable[str]) -> TopicWords:
    """Collect the words of a topic with their forms.

    >>> words = topic_words("Old buses", ["bus"], ["ride"])
    >>> sorted(words.name), words.forms["buses"], words.forms["riding"]
    (['bus', 'old'], 'bus', 'ride')
    """
    of_name = [word for word in name.lower().replace("-", " ").split() if word not in _SMALL]
    forms: dict[str, str] = {}
    for word in (*alone, *together):
        for form in _forms(word):
            forms.setdefault(form, word)
    roots = [next((forms[root] for root in _roots(word) if root in forms), word) for word in of_name]
    for word, base in zip(of_name, roots, strict=True):
        for root in _roots(word):
            for form in _forms(root, is_verb=root != word and word.endswith("ing")):
                forms.setdefault(form, base)
    return TopicWords(frozenset(roots), frozenset(alone), forms)


def on_topic(passage: Passage, topic: TopicWords) -> Span | None:
    """Find the words that put a text on its topic: one that is enough alone, the whole name, or two different ones.

    In a text that only mentions something, two different words are needed, and the name is one of them.
    """
    seen: dict[str, Word] = {}
    is_mention = _MENTIONS.search(passage.lower) is not None
    for word in passage.words:
        lower = word.lower
        for form in (lower,) if lower.isalpha() else _parts(lower):
            base = topic.forms.get(form)
            if base is None or base in seen:
                continue
            if base in topic.alone and not is_mention:
                return Span(word.start, word.end)
            seen[base] = word
            different = len({"" if one in topic.name else one for one in seen})
            if different >= ENOUGH or (not is_mention and (len(seen) >= ENOUGH or topic.name <= seen.keys())):
                return Span(min(word.start for word in seen.values()), word.end)
    return None


class OtherTopics:
    """Finds words that put a text on another topic than the requested one."""

    def __init__(self, topics: Mapping[str, TopicWords]) -> None:
        self._topics: dict[str, list[str]] = {}
        for topic, words in topics.items():
            for form, base in words.forms.items():
                if base in words.alone or words.name == {base}:
                    self._topics.setdefault(form, []).append(topic)

    def word_in(self, passage: Passage, topic: str) -> tuple[Word, str] | None:
        """The first word of another topic, and that topic; a word of the requested topic is none."""
        for word in passage.words:
            for form in (word.lower,) if word.lower.isalpha() else _parts(word.lower):
                topics = self._topics.get(form)
                if topics is not None and topic not in topics:
                    return word, topics[0]
        return None


def topic_bases(words: Words, topic: TopicWords) -> frozenset[str]:
    """The base forms of the topic words among some words."""
    forms = topic.forms
    bases = set()
    for word in words:
        lower = word.lower
        for form in (lower,) if lower.isalpha() else _parts(lower):
            if form in forms:
                bases.add(forms[form])
    return frozenset(bases)


def masked(words: Words, topic: TopicWords) -> str:
    """Words in lower case, with a mask for each word of the topic.

    >>> from skillmix.checkers.passage import passage_of
    >>> masked(passage_of("As slow as a Bus!").words, topic_words("Old buses", ["bus"], []))
    'as slow as a _'
    """
    return " ".join(["_" if topic_bases((word,), topic) else word.lower for word in words])


def topic_problem(passage: Passage, topic: TopicWords) -> str:
    """Say why a text is not on its topic.

    >>> from skillmix.checkers.passage import passage_of
    >>> topic_problem(passage_of("The oven is hot."), topic_words("Sourdough bread", ["sourdough"], ["oven", "dough"]))
    'it has one word of the topic, "oven", where two are needed'
    """
    for word in passage.words:
        if any(form in topic.forms for form in _parts(word.lower)):
            return f'it has one word of the topic, "{shortened(word.text)}", where two are needed'
    return "it has no word of the topic"


def _parts(word: str) -> Iterator[str]:
    """A word without its possessive ending, and the parts of a hyphenated compound."""
    word = word.removesuffix("'s").removesuffix("'")
    yield word
    if "-" in word:
        yield from word.split("-")


def _roots(word: str) -> tuple[str, ...]:
    """A word and the base forms of which it may be an inflection; the first one that is known decides.

    >>> _roots("spelling")
    ('spelling', 'spell', 'spel')
    """
    if word.endswith("ies"):
        return word, word[:-3] + "y"
    if word.endswith(("ches", "shes", "ses", "xes")):
        return word, word[:-1], word[:-2]
    if word.endswith("s") and not word.endswith("ss"):
        return word, word[:-1]
    if word.endswith("ing") and len(word) > 5:
        stem = word[:-3]
        return (word, stem, stem + "e") if stem[-1] != stem[-2] else (word, stem, stem[:-1])
    return (word,)


def _forms(root: str, *, is_verb: bool = False) -> Iterator[str]:
    """The base form, its plurals, and the regular forms of a verb in -ed, -ing and -er."""
    yield root
    yield root + "s"
    yield from _PLURALS.get(root, ())
    if root.endswith(("s", "x", "z", "ch", "sh", "o")):
        yield root + "es"
    elif root.endswith("y"):
        yield root[:-1] + "ies"
    elif root.endswith(("f", "fe")):
        yield root.removesuffix("e")[:-1] + "ves"
    elif root.endswith("man"):
        yield root[:-3] + "men"
    for stem in _stems(root) if is_verb or root in VERBS else ():
        yield stem + "ed"
        yield (root if root.endswith("y") else stem) + "ing"
        if len(root) > 3 and stem + "er" not in _NOT_DOERS:
            yield from (stem + "er", stem + "ers")


_PLURALS: Final = {"mouse": ("mice",), "goose": ("geese",), "calf": ("calves",)}
_NOT_DOERS: Final = frozenset(["banker", "boarder", "brother", "corner", "flower", "shower", "tower"])


def _stems(root: str) -> Iterator[str]:
    """The stems before -ed, -ing and -er: without a final e, with i for y, or with the last letter doubled."""
    if root.endswith("e"):
        if not root.endswith("ee"):
            yield root[:-1]
        return
    doubles = len(root) > 2 and root[-1] not in "aeiouwxy" and root[-2] in _VOWELS and root[-3] not in _VOWELS
    if doubles:
        yield root + root[-1]
    # "star" has only "starring": "staring" is a form of "stare".
    if not doubles or sum(letter in _VOWELS for letter in root) > 1:
        yield root[:-1] + "i" if root.endswith("y") and root[-2] not in _VOWELS else root
