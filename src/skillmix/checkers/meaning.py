"""Find combinations of words that make no sense, such as an action on something that cannot undergo it.

`english/meaning.json` sorts common nouns into kinds such as persons, food and units. For verbs, adjectives and
prepositions, it lists the kinds that do not go with them. For example, nobody boils an idea, and no hour is married.
Each row lists kinds that clash with the words (weight 2) and kinds that rarely go with the words (weight 1). A text
makes no sense if the weights of its clashes add up to `ENOUGH`. A noun of several kinds clashes only if all its kinds
do, and an unknown word never clashes.
"""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from functools import lru_cache
from itertools import chain
from typing import Any, Final, NamedTuple

from skillmix.checkers.passage import Passage, Sentence, Words
from skillmix.checkers.topics import TopicWords
from skillmix.checkers.verbs import ADJECTIVES, is_finite
from skillmix.checkers.words import CONJUNCTIONS, DETERMINERS, LITTLE, PREPOSITIONS, english, is_number, lists_of, stem, word_set

_LISTS: Final = lists_of("meaning")

ENOUGH: Final = 2
"""The smallest sum of weights with which a text makes no sense."""

Kinds = frozenset[str]
Rules = Sequence[tuple[Kinds, Kinds]]
"""Two sets: the kinds that clash with a word, and the kinds that clash or rarely go with the word."""
Pairs = Iterator[tuple[Rules, int | None]]
"""The rules of a word, and the index of the noun that they apply to, if there is one."""


class Clash(NamedTuple):
    """Two words that make no sense together, or a technical word that does not belong to the topic."""

    weight: int
    word: str
    other: str = ""
    is_subject: bool = False


_TABLE: Final[dict[str, Any]] = english("meaning")
_KINDS: Final = {
    noun: frozenset(kind for kind, words in nouns.items() if noun in words)
    for nouns in [{kind: word_set(words) for kind, words in _TABLE["kinds"].items()}]
    for noun in frozenset().union(*nouns.values())
}
_RULES: Final[dict[str, dict[str, list[tuple[Kinds, Kinds]]]]] = {name: defaultdict(list) for name in _TABLE["rules"]}
for _name, (_words, _clashing, _rare) in ((name, row) for name, rows in _TABLE["rules"].items() for row in rows):
    for _word in _words.split():
        _RULES[_name][stem(_word)].append((word_set(_clashing), word_set(_clashing) | word_set(_rare)))
"""Rules of verbs, adjectives and prepositions by stem. Verbs in "no objects", such as "sneeze", take no object."""
_PHRASES: Final[dict[str, Rules]] = {
    name: [(word_set(clashing), word_set(clashing) | word_set(rare))] for name, (clashing, rare) in _TABLE["phrases"].items()
}
"""Rules for nouns that are owned, filled, sensed, compared or defined."""
_ADJECTIVES: Final = ADJECTIVES | word_set(_TABLE["short adjectives"])
_RELATIVES: Final = frozenset(map(stem, _TABLE["relatives"].split()))
"""Words for relatives, servants and organs, which things do not have."""
_POSSESSIONS: Final = frozenset(map(stem, _TABLE["possessions"].split()))
_UNITS: Final = [(frozenset(map(stem, units.split())), word_set(measured)) for units, measured in _TABLE["units"]]

_FAR: Final = word_set("form grammar office far")
"""Technical fields such as mathematics, grammar and law, of which a text on another topic may contain only one word."""
_THINGS: Final = _LISTS["unreal"] | _LISTS["things"]
_NONE: Final[Kinds] = frozenset()
_IDEA: Final = frozenset({"idea"})
_FAR_ONLY: Final = frozenset({"far"})
_LIFELESS: Final = _LISTS["bodily"] - {"person", "kin", "animal"} | word_set("nature weather text sound event")
_CONTROL: Final = frozenset(map(stem, "begin began start refuse want try learn like love forget promise need agree".split()))
_ASKING: Final = frozenset(map(stem, "ask teach taught tell told beg persuade force order allow help convince invite".split()))
_NO_UNITS: Final = word_set("food drink garment plant animal person kin stuff")
_PARTS: Final = word_set("food drink garment stuff")
_SYMBOL: Final = frozenset({"grammar"})
_IT: Final = _LISTS["bodily"] - {"person", "kin"}
_NAMED: Final = word_set("number letter color word")
_COLORS: Final = word_set("black white red green blue yellow orange purple brown pink gray grey")

_FUNCTION: Final = PREPOSITIONS | (LITTLE - DETERMINERS)
_LONGEST_PHRASE: Final = 6
"""The most words of a noun phrase that are examined, which bounds the time for a long text."""
_PLURALS: Final = (("", ""), ("s", ""), ("ies", "y"), ("ves", "f"), ("es", ""), ("men", "man"))
_ADJECTIVE_ENDINGS: Final = tuple(_TABLE["adjective endings"].split())


@lru_cache(maxsize=4096)
def kinds_of(lower: str) -> Kinds:
    """Return the kinds of a noun in lower case; none for an unknown word.

    >>> sorted(kinds_of("onions")), sorted(kinds_of("married"))
    (['food'], [])
    """
    base = lower.removesuffix("'s").removesuffix("'")
    if base in _FUNCTION:
        return _NONE
    base = _TABLE["singulars"].get(base, base)
    for plural, singular in _PLURALS:
        noun = base.removesuffix(plural) + singular
        if base.endswith(plural) and noun in _KINDS:
            return _KINDS[noun]
    return _IDEA if base.endswith(("ness", "hood")) else _NONE


def clash(passage: Passage, topic: TopicWords) -> str | None:
    """Say which words of a text clash; None if no known words clash.

    >>> from skillmix.checkers.passage import passage_of
    >>> from skillmix.checkers.topics import topic_words
    >>> clash(passage_of("The lobby arrested a comma."), topic_words("Hotel lobbies", ["lobby"], ["desk"]))
    'its words do not go together: arrested, comma'
    """
    clashes = {(stem(found.word), found.is_subject): found for found in sorted(all_clashes(passage, topic))}.values()
    if sum(found.weight for found in clashes) >= ENOUGH:
        words = dict.fromkeys(word for found in clashes for word in found[1:3] if word)
        return f"its words do not go together: {', '.join(words)}"
    last = next((word for sentence in passage.sentences if (word := _unfinished_end(sentence))), None)
    return None if last is None else f'a sentence ends in "{last}"'


def all_clashes(passage: Passage, topic: TopicWords) -> Iterator[Clash]:
    """Find all clashes of a text."""
    own = frozenset(map(stem, topic.forms))
    is_far = any(kinds_of(form) & _LISTS["farthest"] for form in topic.forms)
    has_animal = any(not kinds_of(word.lower).isdisjoint(("animal",)) for word in passage.words)
    it = _IT if has_animal else _IT - {"animal"}
    for sentence in passage.sentences:
        subject: Words = ()
        for words in sentence.pieces:
            first = words[0].lower in ("and", "then", "but") and len(words) > 1
            follows_quote = passage.text[max(words[0].start - 2, 0) : words[0].start].strip()[-1:] in ('"', "”")
            if stem(words[first].lower) in _RULES["subjects"] and not follows_quote:
                words = (*subject, *words[first:])  # "The map sneezed, married, and retired"
            piece = _Piece(words, own, it, follows_quote=follows_quote)
            yield from piece.clashes(is_far=is_far)
            noun = piece.first_subject(len(words))
            subject = subject if noun is None else words[: noun + 1]


def _unfinished_end(sentence: Sentence) -> str | None:
    """Return a last word with which no sentence can end, such as "the", if a full stop follows the word."""
    words = sentence.words
    end = sentence.text.rstrip("\"'”’)")
    last = [word.lower for word in words[-2:]]
    if len(last) < 2 or last[1] not in _LISTS["no end"] or not end.endswith(".") or end.endswith(".."):
        return None
    allowed = {"of": _LISTS["before of"], "since": _LISTS["since"]}.get(last[1], _NONE)
    # "It has not seen a Sunday since"
    is_adverb = last[1] == "since" and last[0] not in _FUNCTION and {"has", "have", "had"} & {w.lower for w in words}
    return None if last[0] in allowed or is_adverb else last[1]


def _form(word: str, base: str) -> tuple[bool, bool]:
    """Return whether a verb is in its base form, and whether it is a past form."""
    is_base = word in (base, base + "e", base[:-1] + "y")
    return is_base, word.endswith("ed") or not (is_base or word.endswith(("s", "ing")))


class _Piece:
    """The words between two marks, identified by their index, and the clashes among these words."""

    def __init__(self, words: Words, own: frozenset[str], it: Kinds, *, follows_quote: bool) -> None:
        self.words = words
        self.it = it
        self.follows_quote = follows_quote
        self.lower = [word.lower for word in words]
        self.own = own

    def clashes(self, *, is_far: bool) -> Iterator[Clash]:
        """Find all clashes, except that a text on a technical topic may contain words of technical fields."""
        for index, word in enumerate(self.words):
            kinds = self.kinds(index)
            if kinds and kinds is not _SYMBOL and not is_far and not is_number(self.before(index)):
                if kinds <= _FAR or "far" in kinds:
                    yield Clash(2 if kinds <= _LISTS["farthest"] else 1, stem(word.lower))
            base = stem(word.lower)
            found = (self.objects(index, base), self.traits(index, base), self.relations(index), self.owned(index))
            pairs = [(*pair, False) for pair in chain(*found)] + [(*pair, True) for pair in self.subjects(index, base)]
            for rules, noun, is_subject in pairs:
                weight = self.weight(rules, noun)
                if weight and noun is not None:
                    yield Clash(weight, word.lower, self.lower[noun], is_subject)
            other = self.mismeasured(index, base)
            if other is not None:
                yield Clash(2, word.lower, self.lower[other])

    def objects(self, index: int, base: str) -> Pairs:
        """Check the objects of a verb against its rules."""
        word, before, after = self.lower[index], self.before(index), self.after(index)
        is_base, is_participle = _form(word, base)
        be = self.be_before(index)
        if base in _RULES["objects"] and (word.endswith("ing") or before == "to" or before not in PREPOSITIONS):
            yield _RULES["objects"][base], self.object_of(index, is_base=is_base, is_participle=is_participle)
            if is_participle and be is not None:
                yield _RULES["objects"][base], self.noun_before(be)
        if base in _RULES["no objects"] and after in DETERMINERS and before not in DETERMINERS | PREPOSITIONS:
            noun = self.noun_from(index + 1)
            # "When I cough the parrot laughs": the noun may be the subject of the next clause.
            is_subject = noun is not None and noun + 1 < len(self.lower) and is_finite(self.words, noun + 1)
            yield _RULES["no objects"][base], None if is_subject else noun

    def subjects(self, index: int, base: str) -> Pairs:
        """Check the subject of a verb against its rules."""
        if base not in _RULES["subjects"]:
            return
        word, before, after = self.lower[index], self.before(index), self.after(index)
        is_base, is_participle = _form(word, base)
        be = self.be_before(index)
        noun: int | None = None
        if is_participle and after == "by":
            noun = self.noun_from(index + 2)
        elif index == 0 and self.follows_quote and after in DETERMINERS and not is_base:
            noun = self.noun_from(1)  # "...," whispered the tooth
        elif word.endswith("ing"):
            noun = None if be is None else self.noun_before(be)
        elif be is None and before not in DETERMINERS and not before.endswith(("'", "'s")):
            is_verb = not kinds_of(word) or is_finite(self.words, index)
            if is_participle or (word.endswith("s") and is_verb):
                noun = self.noun_before(index)
            elif is_base and (before in _LISTS["auxiliaries"] or before.endswith("s")):
                noun = self.noun_before(index)
            elif is_base and before == "to" and index > 1:
                is_asked = not _ASKING.isdisjoint(map(stem, self.lower[max(index - 7, 0) : index - 2]))
                controls = stem(self.lower[index - 2]) in _CONTROL
                noun = self.noun_before(index - 2) if controls else self.noun_before(index - 1) if is_asked else None
        yield _RULES["subjects"][base], noun

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

    def traits(self, index: int, base: str) -> Pairs:
        """Check the nouns that an adjective describes."""
        after = self.after(index)
        if base not in _RULES["traits"] or self.lower[index].endswith("ing"):
            return
        if after and after not in _FUNCTION and after not in DETERMINERS:
            yield _RULES["traits"][base], self.noun_from(index + 1)
        be = self.be_before(index)
        if be is not None and not kinds_of(after):
            yield _RULES["traits"][base], self.noun_before(be)

    def relations(self, index: int) -> Pairs:
        """Check the nouns in places, contents, comparisons and definitions."""
        word, after = self.lower[index], self.after(index)
        has_article = after in DETERMINERS
        if stem(word) in _RULES["places"] and (has_article or after in ("last", "next") or "time" in kinds_of(after)):
            yield _RULES["places"][stem(word)], self.noun_from(index + 1 + (after in ("last", "next")))
        if word in ("north", "south", "east", "west") and after == "of":
            yield _PHRASES["directions"], self.noun_from(index + 2)
        if word in _LISTS["filled"] and after in ("of", "with", "in", "out"):
            yield _PHRASES["contents"], self.noun_from(index + 2 + (after == "out"))
        if word in _LISTS["sensed"] and after == "of":
            yield _PHRASES["sensations"], self.noun_from(index + 2)
        if word == "than" and has_article:
            yield _PHRASES["standards"], self.noun_from(index + 1)
        if word in ("as", "like") and after in ("a", "an"):
            yield _PHRASES["likenesses"], self.noun_from(index + 1)
        if word in _LISTS["be"] or (word == "into" and self.before(index) in ("turned", "turns")):
            subject = self.noun_before(index - (word == "into"))
            kinds = _NONE if subject is None or self.lower[subject] == "it" else self.kinds(subject)
            skips = after in ("either", "neither", "not")
            has_article = self.lower[index + 1 + skips : index + 2 + skips] in (["a"], ["an"], ["my"], ["the"])
            if has_article and kinds:
                name = "things" if kinds <= _LIFELESS | {"animal"} else "beings" if kinds.isdisjoint(_LIFELESS) else ""
                if name:
                    yield _PHRASES[f"identities of {name}"], self.noun_from(index + 1 + skips)
        if after == "of" and word.removesuffix("s") in _LISTS["portions"]:
            yield _PHRASES["portions"], self.noun_from(index + 2)
        elif after == "of" and self.kinds(index) and self.kinds(index) <= _PARTS:
            yield _PHRASES["abstract parts"], self.noun_from(index + 2)

    def owned(self, index: int) -> Pairs:
        """Check the nouns that a thing seems to own: "the corridor's sister", "its lawyer", "the liver of a hinge"."""
        word, owner = self.lower[index], self.kinds(index)
        is_thing = bool(owner) and owner <= _THINGS
        if word == "its" or (word.endswith("'s") and owner):
            noun = self.noun_from(index + 1)
            head = "" if noun is None else stem(self.lower[noun])
            if ((word == "its" and "animal" not in self.it) or is_thing) and (head in _RELATIVES or (head in _POSSESSIONS and head not in self.own)):
                yield [(self.kinds(noun or 0) or _NONE, _NONE)], noun
            if owner and owner <= _LISTS["unreal"]:
                yield _PHRASES["owned by unreal"], noun
            elif (is_thing or (word == "its" and "animal" not in self.it)) and "vehicle" not in owner:
                yield _PHRASES["owned by things"], noun
        if self.after(index) == "of" and stem(word) in _RELATIVES:
            yield [(_THINGS - {"event"}, _NONE)], self.noun_from(index + 2)

    def mismeasured(self, index: int, base: str) -> int | None:
        """Find a word, by index, that a unit cannot measure: "four liters more married", "three pounds tall"."""
        if not is_number(self.before(index)) or index + 2 >= len(self.lower):
            return None
        measured = next((measured for units, measured in _UNITS if base in units), None)
        if measured is None:
            has_be = index > 1 and self.lower[index - 2] in _LISTS["be"]
            is_compared = has_be and self.after(index).endswith("er") and "than" in self.lower[index + 2 : index + 4]
            return index + 1 if is_compared and self.kinds(index) and self.kinds(index) <= _NO_UNITS else None
        other, lower = index + 1, self.lower
        word = lower[other]
        if word in ("more", "less"):
            quality = self.kinds(other + 1)
            is_wrong = "than" in lower[other + 2 : other + 4] and quality <= _LISTS["no more"]
            return other + 1 if is_wrong else None
        if word.endswith("er") and "than" in lower[other + 1 : other + 3]:
            base = word.removesuffix("er")
            return None if measured & {base, base + "e", base[:-1], base[:-1] + "y"} else other
        return other if word in _LISTS["dimensions"] and word not in measured else None

    def weight(self, rules: Rules, noun: int | None) -> int:
        """Compute how much a word with these rules clashes with a noun."""
        own = _NONE if noun is None else self.kinds(noun)
        own = own - _FAR_ONLY or own
        most = 1 if noun is not None and self.lower[noun] == "it" else 2
        weights = (most if own <= clashing else 1 if own <= rare else 0 for clashing, rare in rules)
        return max(weights) if own else 0

    def kinds(self, index: int) -> Kinds:
        """Return the kinds of a noun, without technical kinds for a word of the topic."""
        if index >= len(self.lower):
            return _NONE
        lower = self.lower[index]
        if lower == "it":
            return self.it
        if lower in _NAMED and self.is_symbol(index + 1):
            return _SYMBOL
        kinds = kinds_of(lower)
        return kinds - _FAR - {"idea"} if kinds and stem(lower.removesuffix("'s")) in self.own else kinds

    def is_symbol(self, index: int) -> bool:
        """Return whether a word is a number, a letter or a color, as in "the number four"."""
        word = self.lower[index] if index < len(self.lower) else ""
        return len(word) == 1 or word in _COLORS or is_number(word)

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
        if index > first:
            while index < len(lower) and not kinds_of(lower[index]) and lower[index] not in _FUNCTION:
                if lower[index] not in _ADJECTIVES and not lower[index].endswith(_ADJECTIVE_ENDINGS):
                    break
                index += 1
        if index < len(lower) and lower[index] in _NAMED and self.is_symbol(index + 1):
            return index
        if index >= len(lower) or not kinds_of(lower[index]):
            return None
        for following in range(index + 1, len(lower)):
            kinds = kinds_of(lower[following])
            is_verb = self.after(following) in DETERMINERS or is_finite(self.words, following)
            if kinds and is_verb and "time" in kinds_of(lower[index]):
                return None  # the noun phrase may continue, as in "the autumn leaves"
            if not kinds or "time" in kinds or is_verb:
                break
            index = following
        return self.noun_from(index + 1) if lower[index].endswith("'s") else index

    def noun_before(self, index: int) -> int | None:
        """Find the subject directly before an index; None if a preposition governs that noun."""
        lower = self.lower
        index -= 1
        while index > 0 and (lower[index] in _LISTS["auxiliaries"] or lower[index].endswith("ly")):
            index -= 1
        if index > 0 and lower[index - 1] in _NAMED and self.is_symbol(index):
            index -= 1
        if index >= 0 and lower[index] == "it":
            return index
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
        has_noun = governor > 0 and lower[governor] != "of" and kinds_of(lower[governor - 1])
        return self.noun_before(governor) if has_noun else None

    def first_subject(self, end: int) -> int | None:
        """Find the subject of the first verb of the piece, which a later verb shares: "the map sneezed and married"."""
        first = 1 if self.lower[0] not in DETERMINERS else 0
        noun = self.noun_from(first)
        has_verb = noun is not None and any(is_finite(self.words, index) for index in range(noun + 1, end))
        return noun if has_verb else None

    def be_before(self, index: int) -> int | None:
        """Find a form of "be" before an index, with only adverbs in between."""
        for before in range(index - 1, max(0, index - _LONGEST_PHRASE), -1):
            lower = self.lower[before]
            is_degree = lower in _LISTS["degrees"] or is_number(lower)
            if lower in _LISTS["be"] and (before == index - 1 or not is_degree or lower in ("been", "being")):
                return before
            if not is_degree and not lower.endswith("ly"):
                return None
        return None
