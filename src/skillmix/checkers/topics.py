"""Decide by the words of topics whether a text is on its topic or names the topic only in passing."""

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from skillmix.checkers.passage import Passage, Span, Word, Words, span_of
from skillmix.checkers.verbs import ADJECTIVES, VERBS, is_finite
from skillmix.checkers.words import DETERMINERS, LITTLE, PREPOSITIONS, is_number, lists_of, main_words, stem, word_set
from skillmix.render import shortened

_LISTS: Final = lists_of("topics")

ENOUGH: Final = 2
NEAR_ENOUGH: Final = 3
"""The sum that puts a text on its topic: 2 for each topic word, and 1 for each near word."""

_VOWELS: Final = "aeiou"


_MENTIONS: Final = re.compile(
    r"\b(?:mention(?:s|ed|ing)?|speaking of|aside|on the subject of|nothing to do with|by the way|incidentally"
    r"|(?:said|(?:never|not) (?:think|thought|heard|speak|spoke|care|cared)) (?:of|about)"
    r"|lecture on|another (?:story|matter|topic)|some other time|not part of|listed|headline|agenda|invoice|memo)\b"
)
"""Words by which a text names its topic only in passing."""


@dataclass(frozen=True, slots=True)
class TopicWords:
    """The words of a topic, in all their forms."""

    name: frozenset[str]
    """The words of the topic's name, without function words."""
    alone: frozenset[str]
    """Words any one of which puts a text on the topic."""
    forms: dict[str, str]
    """The base word for each inflected form of a word from the name or the vocabulary."""
    near: dict[str, str] = field(default_factory=dict)
    """The base word for each form of a near word, which puts a text on the topic only beside another topic word."""

    @property
    def broad(self) -> "TopicWords":
        """Return the topic with its near words counted as ordinary topic words."""
        return TopicWords(self.name, self.alone, {**self.near, **self.forms})


def topic_words(name: str, alone: Iterable[str], together: Iterable[str], near: Iterable[str] = ()) -> TopicWords:
    """Collect the words of a topic with their forms.

    >>> words = topic_words("Old buses", ["bus"], ["ride"])
    >>> sorted(words.name), words.forms["buses"], words.forms["riding"]
    (['bus', 'old'], 'bus', 'ride')
    """
    of_name = [word for word in name.lower().replace("-", " ").split() if word not in _LISTS["small"]]
    forms: dict[str, str] = {}
    for word in (*alone, *together):
        for form in _forms(word):
            forms.setdefault(form, word)
    roots = [next((forms[root] for root in _roots(word) if root in forms), word) for word in of_name]
    for word, base in zip(of_name, roots, strict=True):
        for root in _roots(word):
            for form in _forms(root, is_verb=root != word and word.endswith("ing")):
                forms.setdefault(form, base)
    near_forms = {form: word for word in near for form in _forms(word) if form not in forms}
    return TopicWords(frozenset(roots), frozenset(alone), forms, near_forms)


def on_topic(passage: Passage, topic: TopicWords) -> Span | None:
    """Find the words that put a text on its topic: one word that is enough alone, the whole name, or two words.

    A near word is enough beside another topic word. A text with a phrase such as "speaking of" needs two topic words
    that are not near words; all words of the name then count as one.
    """
    seen: dict[str, Word] = {}
    is_mention = _MENTIONS.search(passage.lower) is not None
    for word in passage.words:
        for form in _parts(word.lower):
            base = topic.forms.get(form)
            if base is None or base in seen:
                continue
            if base in topic.alone and not is_mention:
                return Span(word.start, word.end)
            seen[base] = word
            different = len({"" if one in topic.name else one for one in seen})
            if different >= ENOUGH or (not is_mention and (len(seen) >= ENOUGH or topic.name <= seen.keys())):
                return Span(min(word.start for word in seen.values()), word.end)
    near = {topic.near[word.lower]: word for word in passage.words if word.lower in topic.near}
    if is_mention or 2 * len(seen) + len(near) < NEAR_ENOUGH:
        return None
    return span_of((*seen.values(), *near.values()))


def one_word(passage: Passage, topic: TopicWords, shared: frozenset[str]) -> Span | None:
    """Find a word that belongs to the vocabulary of this topic alone."""
    for word in passage.words:
        if any(form in topic.forms and form not in shared for form in _parts(word.lower)):
            return span_of((word,))
    return None


_VAGUE: Final = frozenset(map(stem, _LISTS["vague"]))
LEAST_SAID: Final = 2
"""The minimum number of words with a specific meaning in each sentence, not counting the name of the topic."""
_SHORT: Final = 3
"""The maximum length in words of a sentence that is exempt from `LEAST_SAID`, such as "I slept."."""


def says_little(passage: Passage, topic: TopicWords) -> str | None:
    """Name a sentence that says next to nothing besides the topic's name; None if there is none.

    >>> from skillmix.checkers.passage import passage_of
    >>> says_little(passage_of("Could you please think of our kites?"), topic_words("Kites", ["kite"], []))
    'a sentence says nothing besides the name of the topic: "Could you please think of our kites?"'
    """
    name = frozenset(map(stem, topic.name)) | _VAGUE
    said = main_words([word for word in passage.words if not is_number(word.lower)]) - name
    if len(passage.sentences) > 1 and len(said) > LEAST_SAID * len(passage.sentences):
        return None
    for sentence in passage.sentences:
        if len(sentence.words) > _SHORT and len(main_words(sentence.words) - name) < LEAST_SAID:
            return f'a sentence says nothing besides the name of the topic: "{shortened(sentence.text)}"'
    return None


_GOVERNING: Final = PREPOSITIONS | word_set("past like as about except but until till since despite via per around off")
_SCENES: Final = word_set("in at under through with among from on beyond above beneath outside inside behind for by")
"""Prepositions that can set the scene at the start of a sentence: "In the attic"."""


def in_passing(passage: Passage, topic: TopicWords) -> str | None:
    """Return why the only mention of a topic is in passing, that is, in a phrase of place, time or subject.

    >>> from skillmix.checkers.passage import passage_of
    >>> words = topic_words("Kites", ["kite"], [])
    >>> in_passing(passage_of("We walked past a kite to the hotel."), words)
    'it names the topic only in passing, after "past"'
    >>> in_passing(passage_of("We flew a kite by the hotel."), words)
    """
    found = mentions(passage, topic)
    if len(found) != 1:
        return None
    piece, index, _, is_first = found[0]
    before = _governor(piece, index)
    lower = [word.lower for word in piece]
    governor = lower[before] if before >= 0 else ""
    if governor in _GOVERNING and governor != "of":
        has_verb = any(is_finite(piece, at) for at in range(index + 1, len(piece)))
        is_phrase = governor not in _LISTS["when"] or not has_verb
        verb = lower[before - 1] if before else ""
        is_order = verb in VERBS and (before == 1 or lower[before - 2] in _LISTS["before order"])
        near = lower[max(before - 4, 0) : before] if governor == "for" else [verb]
        is_needed = not _LISTS["takes preposition"].isdisjoint(near) or is_order
        is_needed |= governor == "to" and lower[before + 1] in VERBS
        is_scene = before == 0 and is_first and governor in _SCENES
        return None if is_phrase and (is_needed or is_scene) else _in_passing(governor)
    for at in range(before, -1, -1):
        if lower[at] in _LISTS["when"] and "from" not in lower[:at]:
            return _in_passing(lower[at])
        if is_finite(piece, at):
            break
    return None


def _in_passing(governor: str) -> str:
    return f'it names the topic only in passing, after "{governor}"'


class Mention(NamedTuple):
    """A run of neighboring topic words."""

    piece: Words
    first: int
    last: int
    opens_sentence: bool

    @property
    def words(self) -> str:
        """Return the words in lower case."""
        return " ".join(word.lower for word in self.piece[self.first : self.last + 1])


def mentions(passage: Passage, topic: TopicWords) -> list[Mention]:
    """Find each mention of a topic."""
    found: list[Mention] = []
    for sentence in passage.sentences:
        for number, piece in enumerate(sentence.pieces):
            for index, word in enumerate(piece):
                if topic_bases((word,), topic):
                    goes_on = found and found[-1].piece is piece and found[-1].last == index - 1
                    first = found.pop().first if goes_on else index
                    found.append(Mention(piece, first, index, number == 0))
    return found


def _governor(piece: Words, index: int) -> int:
    """Find the word before a noun phrase, skipping any "of": "past" in "past the edge of a pool"."""
    before = _before_phrase(piece, index)
    while before > 0 and piece[before].lower == "of":
        before -= 1
        if is_number(piece[before].lower):
            break  # as in "one in four of the hedgehogs"
        if piece[before].lower not in _GOVERNING:
            before = _before_phrase(piece, before + 1)
    return before


def _before_phrase(piece: Words, index: int) -> int:
    for before in range(index - 1, -1, -1):
        lower = piece[before].lower
        if lower in DETERMINERS:
            return before - 1
        is_verb = is_finite(piece, before) or (lower.endswith("ing") and lower not in ADJECTIVES)
        if lower in _GOVERNING or lower in LITTLE or is_verb:
            return before
    return -1


class OtherTopics:
    """Finds words that put a text on a topic other than the requested one."""

    def __init__(self, topics: Mapping[str, TopicWords]) -> None:
        self._topics: dict[str, list[str]] = {}
        for topic, words in topics.items():
            for form, base in words.forms.items():
                if base in words.alone or words.name == {base}:
                    self._topics.setdefault(form, []).append(topic)

    def word_in(self, passage: Passage, topic: str) -> tuple[Word, str] | None:
        """Return the first word of another topic, and that topic; words of the requested topic are ignored."""
        for word in passage.words:
            for form in _parts(word.lower):
                topics = self._topics.get(form)
                if topics is not None and topic not in topics:
                    return word, topics[0]
        return None


def topic_bases(words: Words, topic: TopicWords) -> frozenset[str]:
    """Return the base forms of the topic words among some words."""
    forms = (form for word in words for form in _parts(word.lower))
    return frozenset([topic.forms[form] for form in forms if form in topic.forms])


def masked(words: Words, topic: TopicWords) -> str:
    """Return words in lower case, with each word of the topic masked.

    >>> from skillmix.checkers.passage import passage_of
    >>> masked(passage_of("As slow as a Bus!").words, topic_words("Old buses", ["bus"], []))
    'as slow as a _'
    """
    return " ".join(["_" if topic_bases((word,), topic) else word.lower for word in words])


def topic_problem(passage: Passage, topic: TopicWords) -> str:
    """Return why a text is not on its topic.

    >>> from skillmix.checkers.passage import passage_of
    >>> topic_problem(passage_of("The oven is hot."), topic_words("Sourdough bread", ["sourdough"], ["oven", "dough"]))
    'it has one word of the topic, "oven", where two are needed'
    """
    for word in passage.words:
        if any(form in topic.forms for form in _parts(word.lower)):
            return f'it has one word of the topic, "{shortened(word.text)}", where two are needed'
    return "it has no word of the topic"


def _parts(word: str) -> list[str]:
    """Return a word without its possessive ending, and the parts between its hyphens if it has any."""
    word = word.removesuffix("'s").removesuffix("'")
    return [word, *word.split("-")] if "-" in word else [word]


def _roots(word: str) -> tuple[str, ...]:
    """Return a word and the base forms that it may be an inflection of, in the order in which they are tried.

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
    """Yield the base form, its plurals, and the regular forms of a verb in -ed, -ing and -er."""
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
    for own in _stems(root) if is_verb or root in VERBS else ():
        yield own + "ed"
        yield (root if root.endswith("y") else own) + "ing"
        if len(root) > 3 and own + "er" not in _LISTS["not doers"]:
            yield from (own + "er", own + "ers")


_PLURALS: Final = {"mouse": ("mice",), "goose": ("geese",), "calf": ("calves",)}


def _stems(root: str) -> Iterator[str]:
    """Yield the stems before -ed, -ing and -er: without a final e, with i for y, or with the last letter doubled."""
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
