"""Find combinations of words that make no sense, such as an action on something that cannot undergo it.

`english/meaning.json` sorts common nouns into kinds such as persons, food and units. For verbs, adjectives and
prepositions, it lists the kinds that do not go with them. For example, nobody boils an idea, and no hour is married.
Each row lists kinds that clash with the words (weight 2) and kinds that rarely go with the words (weight 1), as in a
metaphor. A text makes no sense if the weights of its clashes add up to `ENOUGH`. A noun of several kinds clashes only
if all its kinds do, and an unknown word never clashes.
"""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Any, Final, NamedTuple

from skillmix.checkers.passage import Passage, Sentence, Words
from skillmix.checkers.topics import TopicWords
from skillmix.checkers.verbs import ADJECTIVES, is_finite
from skillmix.checkers.words import (
    CONJUNCTIONS,
    DETERMINERS,
    LITTLE,
    PREPOSITIONS,
    english,
    is_number,
    lists_of,
    stem,
    word_set,
)

_LISTS: Final = lists_of("meaning")

ENOUGH: Final = 2
"""The smallest sum of weights at which a text makes no sense."""

Kinds = frozenset[str]
Rules = Sequence[tuple[Kinds, Kinds]]
"""Pairs of sets: the kinds that clash with a word, and the kinds that clash or rarely go with the word."""
Pairs = Iterator[tuple[Rules, int | None]]
"""The rules of a word, and the index of the noun that they apply to, if there is one."""


class Clash(NamedTuple):
    """Two words that make no sense together, or a technical word that does not belong to the topic."""

    weight: int
    word: str
    other: str = ""
    is_subject: bool = False
    """Whether the other word is the subject of the first."""


_TABLE: Final[dict[str, Any]] = english("meaning")
_KINDS: Final = {
    noun: frozenset(kind for kind, words in nouns.items() if noun in words)
    for nouns in [{kind: word_set(words) for kind, words in _TABLE["kinds"].items()}]
    for noun in frozenset().union(*nouns.values())
}


def _rule(clashing: str, rare: str) -> tuple[Kinds, Kinds]:
    return word_set(clashing), word_set(clashing) | word_set(rare)


_RULES: Final[dict[str, dict[str, list[tuple[Kinds, Kinds]]]]] = {name: defaultdict(list) for name in _TABLE["rules"]}
for _name, (_words, _clashing, _rare) in ((name, row) for name, rows in _TABLE["rules"].items() for row in rows):
    for _head, _, _second in (word.partition("_") for word in _words.split()):
        _RULES[_name][f"{stem(_head)} {_second}".strip()].append(_rule(_clashing, _rare))
"""Rules of verbs, adjectives and prepositions, by stem, or by stem and second word: "giv birth"."""
_PHRASES: Final[dict[str, Rules]] = {name: [_rule(*row)] for name, row in _TABLE["phrases"].items()}
"""Rules for nouns that fill, measure or define something, and for standards of comparison."""
_ADJECTIVES: Final = ADJECTIVES | word_set(_TABLE["short adjectives"])
_RELATIVES: Final = frozenset(map(stem, _TABLE["relatives"].split()))
"""Words for relatives, servants and organs, which things do not have."""
_POSSESSIONS: Final = frozenset(map(stem, _TABLE["possessions"].split()))
_UNITS: Final = [(frozenset(map(stem, units.split())), word_set(measured)) for units, measured in _TABLE["units"]]

_FAR: Final = word_set("form grammar office far")
"""Technical fields such as mathematics, grammar and law, of which a text on another topic may contain only one word."""
_NONE: Final[Kinds] = frozenset()
_SYMBOL: Final = frozenset({"grammar"})
_WHEN: Final = frozenset({"time", "date"})
_PERSON: Final = frozenset({"person", "kin"})

_FUNCTION: Final = PREPOSITIONS | (LITTLE - DETERMINERS)
_LONGEST_PHRASE: Final = 6
"""The maximum number of words examined in a noun phrase, which bounds the time for a long text."""
_PLURALS: Final = (("", ""), ("s", ""), ("ies", "y"), ("ves", "f"), ("es", ""), ("men", "man"))
_ADJECTIVE_ENDINGS: Final = tuple(_TABLE["adjective endings"].split())


@lru_cache(maxsize=4096)
def kinds_of(lower: str) -> Kinds:
    """Return the kinds of a lower-case noun; empty for an unknown word.

    >>> sorted(kinds_of("onions")), sorted(kinds_of("married")), sorted(kinds_of("sadness"))
    (['food'], [], ['idea'])
    """
    base = lower.removesuffix("'s").removesuffix("'")
    if base in _FUNCTION:
        return _NONE
    base = _TABLE["singulars"].get(base, base)
    for plural, singular in _PLURALS:
        noun = base.removesuffix(plural) + singular
        if base.endswith(plural) and noun in _KINDS:
            return _KINDS[noun]
    return frozenset({"idea"}) if base.endswith(("ness", "hood")) else _NONE


def clash(passage: Passage, topic: TopicWords) -> str | None:
    """Describe words of a text that clash, or a last word that cannot end a sentence; None if it has neither.

    >>> from skillmix.checkers.passage import passage_of
    >>> from skillmix.checkers.topics import topic_words
    >>> clash(passage_of("The lobby arrested a comma."), topic_words("Hotel lobbies", ["lobby"], ["desk"]))
    'its words do not go together: arrested, lobby, comma'
    """
    # A word counts once with a subject and once with other nouns; the largest weight comes last and is kept.
    clashes = {
        (found.other if found.word in _LISTS["be"] else stem(found.word), found.is_subject): found
        for found in sorted(_clashes(passage, topic))
    }.values()
    if sum(found.weight for found in clashes) >= ENOUGH:
        words = dict.fromkeys(word for found in clashes for word in (found.word, found.other) if word)
        return f"its words do not go together: {', '.join(words)}"
    last = next((word for sentence in passage.sentences if (word := _unfinished_end(sentence))), None)
    return None if last is None else f'a sentence ends in "{last}"'


def _clashes(passage: Passage, topic: TopicWords) -> Iterator[Clash]:
    own = frozenset(map(stem, topic.forms))
    is_far = any(kinds_of(form) & _LISTS["farthest"] for form in topic.forms)
    has_animal = any("animal" in kinds_of(word.lower) or word.lower in _LISTS["it too"] for word in passage.words)
    for sentence in passage.sentences:
        subject: Words = ()
        for words in sentence.pieces:
            follows_quote = passage.text[max(words[0].start - 2, 0) : words[0].start].strip()[-1:] in ('"', "”")
            first = words[0].lower in ("and", "then", "but") and len(words) > 1
            if stem(words[first].lower) in _RULES["subjects"] and not follows_quote:
                words = (*subject, *words[first:])  # "The map sneezed, married, and retired"
            piece = _Piece(words, own, has_animal=has_animal, follows_quote=follows_quote)
            yield from piece.clashes(is_far=is_far)
            noun = piece.first_subject(len(words))
            subject = subject if noun is None else words[: noun + 1]


def _unfinished_end(sentence: Sentence) -> str | None:
    """Return the last word before a full stop if no sentence can end in it, such as "the"; otherwise None."""
    lower = [word.lower for word in sentence.words]
    end = sentence.text.rstrip("\"'”’)")
    if len(lower) < 2 or lower[-1] not in _LISTS["no end"] or not end.endswith(".") or end.endswith(".."):
        return None
    before, last = lower[-2:]
    # "He has not seen her since", but not "it has to since"
    is_adverb = last == "since" and before not in _FUNCTION and not {"has", "have", "had"}.isdisjoint(lower)
    allowed = {"of": _LISTS["before of"], "since": _LISTS["since"]}.get(last, _NONE)
    return None if before in allowed or is_adverb else last


def _form(word: str, base: str) -> tuple[bool, bool]:
    """Return whether a verb is in its base form, and whether it is a past form or a participle."""
    is_base = word in (base, base + "e", base[:-1] + "y")
    return is_base, word.endswith("ed") or not (is_base or word.endswith(("s", "ing")))


class _Piece:
    """The words between two marks, identified by their index, and the clashes among these words."""

    def __init__(self, words: Words, own: frozenset[str], *, has_animal: bool, follows_quote: bool) -> None:
        self.words = words
        self.own = own
        self.has_animal = has_animal
        self.follows_quote = follows_quote
        self.lower = [word.lower for word in words]
        self.known = [_SYMBOL if self.names_symbol(index) else kinds_of(word) for index, word in enumerate(self.lower)]

    def names_symbol(self, index: int) -> bool:
        """Return whether a word names a symbol or a color, as in "the number four" or "the color blue"."""
        after = self.after(index)
        is_symbol = len(after) == 1 or after in _LISTS["colors"] or is_number(after)
        return self.lower[index] in ("number", "letter", "color", "word") and is_symbol

    def clashes(self, *, is_far: bool) -> Iterator[Clash]:
        """Yield all clashes; a technical word clashes by itself, unless the topic is technical (`is_far`)."""
        for index, word in enumerate(self.lower):
            kinds, base = self.kinds(index), stem(word)
            is_technical = kinds is not _SYMBOL and bool(kinds) and (kinds <= _FAR or "far" in kinds)
            if is_technical and not is_far and not is_number(self.before(index)):
                yield Clash(2 if kinds <= _LISTS["farthest"] else 1, base)
            for rules, noun in (
                *self.objects(index, base),
                *self.traits(index, base),
                *self.relations(index),
                *self.identities(index),
            ):
                yield from self.clash(rules, index, noun)
            acts = _RULES["subjects"]
            verbs = acts.get(f"{base} {self.after(index)}") or acts.get(base)  # such as "gave birth"
            if verbs:
                yield from self.clash(verbs, index, self.subject_of(index, base), is_subject=True)
            for other in (self.misowned(index), self.mismeasured(index, base)):
                if other is not None:
                    yield Clash(2, word, self.lower[other])

    def clash(self, rules: Rules, index: int, noun: int | None, *, is_subject: bool = False) -> Iterator[Clash]:
        """Yield a clash if a noun breaks the rules of a word."""
        kinds = _NONE if noun is None else self.kinds(noun)
        kinds = kinds - {"far"} or kinds
        if noun is None or not kinds:
            return
        # "It" may refer to something that the text does not name.
        most = 1 if self.lower[noun] == "it" else 2
        weight = max((most if kinds <= clashing else 1 if kinds <= rare else 0 for clashing, rare in rules), default=0)
        if weight:
            yield Clash(weight, self.lower[index], self.lower[noun], is_subject)

    def objects(self, index: int, base: str) -> Pairs:
        """Yield the rules of a verb with each of its objects."""
        word, before = self.lower[index], self.before(index)
        if base not in _RULES["objects"] or (before in PREPOSITIONS and before != "to" and not word.endswith("ing")):
            return
        is_base, is_participle = _form(word, base)
        for noun in self.joined(self.object_of(index, is_base=is_base, is_participle=is_participle)):
            after = self.after(index)
            lasts = is_number(after) and "date" not in self.kinds(noun)  # "weighs three times as much"
            is_adverb = noun == index + 1 or lasts or after in _LISTS["points to time"]  # "baked this morning"
            if self.kinds(noun).isdisjoint(_WHEN) or not is_adverb:
                yield _RULES["objects"][base], noun
        be = self.be_before(index)
        if is_participle and be is not None:
            yield _RULES["objects"][base], self.noun_before(be)

    def object_of(self, index: int, *, is_base: bool, is_participle: bool) -> int | None:
        """Find the noun that a verb, or a participle before a noun, acts on."""
        word, before, after = self.lower[index], self.before(index), self.after(index)
        if after in DETERMINERS:
            return None if is_base and before in DETERMINERS else self.noun_from(index + 1)
        if after == "to" and word in ("married", "engaged"):
            return self.noun_from(index + 2)
        if after in ("up", "down", "out", "off"):
            return self.noun_from(index + 2) if self.after(index + 1) in DETERMINERS else None
        if after in _FUNCTION:
            return None
        acts = word.endswith("s") and before not in DETERMINERS and before not in _ADJECTIVES
        return self.noun_from(index + 1) if is_participle or acts or before in _LISTS["before base"] else None

    def joined(self, noun: int | None) -> Iterator[int]:
        """Yield a noun and the nouns joined to it by "and" or "or": "a river and a cough"."""
        while noun is not None:
            yield noun
            joins = self.after(noun) in CONJUNCTIONS and self.after(noun + 1) in DETERMINERS
            noun = self.noun_from(noun + 2) if joins else None
            if noun is not None and self.after(noun) not in PREPOSITIONS | CONJUNCTIONS | {""}:
                return  # "She ate the cake and the dog barked"

    def subject_of(self, index: int, base: str) -> int | None:
        """Find the subject of a verb."""
        word, before, after = self.lower[index], self.before(index), self.after(index)
        is_base, is_participle = _form(word, base)
        be = self.be_before(index)
        if is_participle and after == "by":
            noun = self.noun_from(index + 2)
            is_beside = be is None and noun is not None and not self.kinds(noun).isdisjoint(_LISTS["beside"])
            return None if is_beside else noun  # "slept by the stove"
        if index == 0 and self.follows_quote and after in DETERMINERS and not is_base:
            return self.noun_from(1)  # "...," whispered the tooth
        if word.endswith("ing"):
            return None if be is None else self.noun_before(be)
        if be is not None or before in DETERMINERS or before.endswith(("'", "'s")):
            return None
        if is_base:
            agrees = before in _LISTS["auxiliaries"] or before.endswith("s")
        else:
            agrees = is_participle or not self.known[index] or is_finite(self.words, index)
        return self.noun_before(index) if agrees else None

    def traits(self, index: int, base: str) -> Pairs:
        """Yield the rules of an adjective with each noun that it describes."""
        word, after = self.lower[index], self.after(index)
        base = base if base in _RULES["traits"] else stem(word.removesuffix("er" if after == "than" else "est"))
        if base not in _RULES["traits"] or word.endswith("ing"):
            return
        if after and after not in _FUNCTION | DETERMINERS | _LISTS["points to time"]:
            yield _RULES["traits"][base], self.noun_from(index + 1)
        be = self.be_before(index)
        if be is not None and not kinds_of(after):
            yield _RULES["traits"][base], self.noun_before(be)

    def relations(self, index: int) -> Pairs:
        """Yield the rules for places, contents, comparisons and definitions, each with the noun to check."""
        word, after = self.lower[index], self.after(index)
        has_article = after in DETERMINERS
        is_last = after in ("last", "next")
        if stem(word) in _RULES["places"] and (has_article or is_last or kinds_of(after) & _WHEN):
            yield _RULES["places"][stem(word)], self.noun_from(index + 1 + is_last)
        if after == "of" and stem(word) not in self.own:  # "the opinion of a spoon"
            yield _RULES["attributes"].get(stem(word), ()), self.noun_from(index + 2)
        if word.endswith(("'s", "s'")) and (head := self.noun_from(index + 1)) is not None:
            yield _RULES["attributes"].get(stem(self.lower[head]), ()), index
        if word in _LISTS["filled"] and after in ("of", "with", "in", "out"):
            yield _PHRASES["contents"], self.noun_from(index + 2 + (after == "out"))
        if word.removesuffix("s") in _LISTS["portions"] and after == "of":
            yield _PHRASES["portions"], self.noun_from(index + 2)
        if word == "than" and has_article:
            yield _PHRASES["standards"], self.noun_from(index + 1)
        if word in ("as", "like") and after in ("a", "an"):
            yield _PHRASES["likenesses"], self.noun_from(index + 1)
        if word == "than" or (word == "as" and index > 1 and self.lower[index - 2] == "as"):
            noun = self.noun_from(index + 1)  # "as wet as its opinion", but "as bald as an egg"
            if noun is not None and self.kinds(noun).isdisjoint(_LISTS["it"]):
                base = stem(self.before(index))
                bare = stem(self.before(index).removesuffix("er"))
                yield _RULES["traits"].get(base) or _RULES["traits"].get(bare) or (), noun

    def identities(self, index: int) -> Pairs:
        """Yield the rules for saying what a thing or person is, with the noun after "is": "the map is a widow"."""
        subject = self.noun_before(index) if self.lower[index] in _LISTS["be"] else None
        kinds = _NONE if subject is None or self.lower[subject] == "it" else self.kinds(subject)
        start = index + 1
        while self.lower[start : start + 1] and self.lower[start] in _LISTS["before a name"]:
            start += 1
        first, sort, of = (*self.lower[start : start + 3], "", "", "")[:3]
        start += 3 * (sort in _LISTS["sorts"] and of == "of")
        if not (kinds <= _PERSON or kinds <= _LISTS["not human"]) or not kinds:
            return
        rules = _PHRASES["persons" if kinds <= _PERSON else "identities"]
        nouns = self.joined(self.noun_from(start)) if first in _LISTS["defines"] or "date" in kinds_of(first) else ()
        noun = max(nouns, key=lambda noun: _NONE < self.kinds(noun) <= rules[0][0], default=None)
        if noun is not None and kinds.isdisjoint(self.kinds(noun)):
            is_relative = "kin" in self.kinds(noun) and first in ("a", "an")
            yield _PHRASES["relatives"] if is_relative else rules, noun

    def misowned(self, index: int) -> int | None:
        """Find a noun for something that a thing cannot own or have: "its lawyer", "the spoon has two uncles"."""
        word = self.lower[index]
        is_its = word == "its" and not self.has_animal
        if word in _LISTS["have"] or word == "their" or (word == "its" and self.has_animal):
            owner = self.noun_before(index) if word in _LISTS["have"] else self.first_subject(index)
            kinds = _NONE if owner is None else self.kinds(owner)
            is_its = _NONE < kinds <= _LISTS["no owners"] and not any("animal" in known for known in self.known)
        noun = self.noun_from(index + 1) if is_its else None
        head = "" if noun is None else stem(self.lower[noun])
        return noun if head in _RELATIVES or (head in _POSSESSIONS and head not in self.own) else None

    def mismeasured(self, index: int, base: str) -> int | None:
        """Find the word that does not fit a measurement: "four liters more married", "three cakes younger"."""
        lower, other = self.lower, index + 1
        if not is_number(self.before(index)) or "than" not in lower[index + 2 : index + 5]:
            return None
        measured = next((measured for units, measured in _UNITS if base in units), None)
        is_comparative = self.after(index).endswith("er") and "than" in lower[index + 2 : index + 4]
        if measured is None:
            is_wrong = is_comparative and index > 1 and lower[index - 2] in _LISTS["be"]
            return other if is_wrong and self.kinds(index) and self.kinds(index) <= _LISTS["no units"] else None
        if self.after(index) in ("more", "less"):
            has_quality = "than" in lower[index + 3 : index + 5]
            return other + 1 if has_quality and self.kinds(other + 1) <= _LISTS["no more"] else None
        bare = self.after(index).removesuffix("er")
        is_wrong = is_comparative and measured.isdisjoint((bare, bare + "e", bare[:-1], bare[:-1] + "y"))
        return other if is_wrong else None

    def kinds(self, index: int) -> Kinds:
        """Return the kinds of a noun, without technical kinds for a word of the topic."""
        if index >= len(self.lower):
            return _NONE
        if self.lower[index] == "it":
            return _LISTS["it"] if self.has_animal else _LISTS["it"] - {"animal"}
        kinds = self.known[index]
        return kinds - _FAR - {"idea"} if kinds and stem(self.lower[index].removesuffix("'s")) in self.own else kinds

    def before(self, index: int) -> str:
        """Return the word before an index; empty at the start."""
        return self.lower[index - 1] if index else ""

    def after(self, index: int) -> str:
        """Return the word after an index; empty at the end."""
        return self.lower[index + 1] if index + 1 < len(self.lower) else ""

    def noun_from(self, first: int) -> int | None:
        """Find the index of the noun that heads the phrase starting here; None if an unknown noun may come first."""
        lower = self.lower[: first + _LONGEST_PHRASE]
        index = first
        while index < len(lower) and (lower[index] in DETERMINERS | {"own", "few", "many"} or is_number(lower[index])):
            index += 1
        if index > first or (lower[index : index + 1] and lower[index] in _ADJECTIVES):
            while index < len(lower) and not kinds_of(lower[index]) and lower[index] not in _FUNCTION:
                if lower[index] not in _ADJECTIVES and not lower[index].endswith(_ADJECTIVE_ENDINGS):
                    break
                index += 1
        if index >= len(lower) or not self.known[index]:
            return None
        if self.known[index] is _SYMBOL:
            return index
        for following in range(index + 1, len(lower)):
            kinds = kinds_of(lower[following])
            is_verb = self.after(following) in DETERMINERS or is_finite(self.words, following)
            if kinds and is_verb and kinds_of(lower[index]) & _WHEN:
                return None  # the noun phrase may continue, as in "the autumn leaves"
            if not kinds or kinds & _WHEN or is_verb:
                break
            index = following
        return self.noun_from(index + 1) if lower[index].endswith("'s") else index

    def noun_before(self, index: int, *, can_skip: bool = True) -> int | None:
        """Find the subject before an index, skipping at most one phrase with a preposition; None if there is none."""
        lower = self.lower
        index -= 1
        while index > 0 and (lower[index] in _LISTS["auxiliaries"] or lower[index].endswith("ly")):
            index -= 1
        if index > 0 and self.known[index - 1] is _SYMBOL:
            index -= 1
        if index >= 0 and lower[index] == "it":
            return index
        if index > 0 and lower[index] in ("that", "which", "who"):
            return self.noun_before(index, can_skip=False)
        if index > 0 and lower[index] in CONJUNCTIONS | {"then"}:
            return self.first_subject(index)
        if index < 0 or not self.kinds(index):
            return None
        first = index
        least = max(0, index - _LONGEST_PHRASE)
        while first > least and lower[first] not in DETERMINERS and lower[first - 1] not in _FUNCTION:
            first -= 1
        governor = first if lower[first] in PREPOSITIONS else first - 1
        if governor < 0 or lower[governor] not in PREPOSITIONS:
            return index
        # "The snail in the garden is a piano"
        has_noun = can_skip and governor > 0 and lower[governor] != "of" and kinds_of(lower[governor - 1])
        return self.noun_before(governor, can_skip=False) if has_noun else None

    def first_subject(self, end: int) -> int | None:
        """Find the subject of the first verb of the piece, which a later verb shares: "the map sneezed and married"."""
        first = 1 if self.lower[0] not in DETERMINERS else 0
        noun = self.noun_from(first)
        if noun is None:
            return None
        end = min(end, noun + 2 * _LONGEST_PHRASE)
        return noun if any(is_finite(self.words, index) for index in range(noun + 1, end)) else None

    def be_before(self, index: int) -> int | None:
        """Find a form of "be" before an index, with only adverbs in between."""
        for before in range(index - 1, max(0, index - _LONGEST_PHRASE), -1):
            lower = self.lower[before]
            is_degree = lower in _LISTS["degrees"] or is_number(lower)
            if lower in _LISTS["be"] and (before == index - 1 or not is_degree or lower in ("been", "being")):
                return before
            if not is_degree and not lower.endswith(("ly", "ed")) and lower != "and":
                return None
        return None
