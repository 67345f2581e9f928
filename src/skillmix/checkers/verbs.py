"""Find the finite verb of a main clause, from lists of verbs and the neighbors of a word.

The lists below contain common verbs; `verb_forms.json`, written by `bench/verb_forms.py`, contains further verbs.
"""

from typing import Final

from skillmix.checkers.passage import Words
from skillmix.checkers.words import LITTLE, PREPOSITIONS, english, is_number, lists_of, word_set

_LISTS: Final = lists_of("verbs")

_FORMS: Final = {name: word_set(words) for name, words in english("verb_forms").items()}
PAST: Final = _FORMS["past"] | _LISTS["past"]
# Base forms that are nearly always verbs; their forms in -s count too.
_NOUN_TOO: Final = (_FORMS["verbs or nouns"] - _LISTS["common"]) | _LISTS["noun too"]
_SURE: Final = _LISTS["common"] | _FORMS["verbs"] | _FORMS["verbs or nouns"]
_ORDERS: Final = _FORMS["orders"]
"""Verbs that are also nouns, but rarely at the start of a sentence: "Use soap"."""
_RARELY: Final = _FORMS["rarely verbs"]
VERBS: Final = (
    _SURE | _RARELY | word_set("backpack busk crumb drizzle flavor hitchhike meow postmark prickle repot sauce")
)
"""Base forms that are occasionally verbs."""
ADJECTIVES: Final = _FORMS["adjectives"]
_ARTICLE: Final = _LISTS["single"] | word_set("the my your his her its our their no")
_NOT_BEFORE_VERB: Final = _LISTS["determiner"] | _LISTS["not before verb"]
_OFTEN: Final = word_set("never always often rarely seldom sometimes hardly barely scarcely")
"""Adverbs that do not precede a noun."""
_AFTER_VERB: Final = _LISTS["determiner"] | _LISTS["after verb"]
_ADJECTIVE_ENDINGS: Final = ("less", "ful", "ous", "ive", "ish", "ed")


_POINTERS: Final = word_set("this that it you all each both nothing everything something anything")
"""Determiners and objects that can also be the subject at the start of a clause."""
_HEADS_A_NOUN: Final = word_set("the a an my your his her its our their these those every another no some any")
"""Words that cannot follow a noun inside a noun phrase."""
_OBJECTS: Final = _HEADS_A_NOUN | word_set("it him them me us")
_NO_VERB: Final = LITTLE | PREPOSITIONS | _LISTS["no verb"]
_MOODS: Final[dict[str, frozenset[str]]] = {
    "?": word_set("what how why where who which when whose any anything anyone anybody more another no nothing"),
    "!": word_set("what how"),
}
"""First words of questions and exclamations that need no verb: "Any news?", "What a day!"."""
_VERBLESS: Final = frozenset(tuple(pair.split(":")) for pair in _LISTS["verbless"])
"""The first two words of sentences that are complete without a verb."""


def is_complete(pieces: tuple[Words, ...], text: str) -> bool:
    """Return whether a sentence has a main clause or needs none, as in "What a day!" and "The sooner, the better."."""
    if not pieces:
        return False
    # A short first piece may be an interjection: "Oh, what a day!"
    first = pieces[1] if len(pieces) > 1 and len(pieces[0]) < 3 else pieces[0]
    if len(first) > 1 and first[1].lower != "to":
        opening = first[0].lower
        if any(mark in text and opening in words for mark, words in _MOODS.items()):
            return True
        compared = [
            piece[1].lower.endswith(("er", "more", "less", "worse"))
            for piece in pieces[:2]
            if len(piece) > 1 and piece[0].lower == "the"
        ]
        if (opening, first[1].lower) in _VERBLESS or compared == [True, True]:
            return True
    if "!" in text and len(pieces[-1]) == 1 and pieces[-1][0].lower in _SURE:
        return True  # the last piece is an order: "Three, two, one, jump!"
    return has_main_clause(pieces, "?" in text)


def has_main_clause(pieces: tuple[Words, ...], question: bool) -> bool:
    """Return whether the pieces of a sentence have more finite verbs than words that open a subordinate clause."""
    opened = 0
    for number, piece in enumerate(pieces):
        if number and not question and piece[0].lower in _LISTS["relative"] and not _points(piece):
            continue
        if _has_main_verb(piece, question, opened):
            return True
        if number > 1 and _resumes(pieces[number - 2], pieces[number - 1], piece):
            return True
        # The relative clause continues after an aside: "a bridge that, in its way, should be ..."
        if piece[-1].lower in _LISTS["relative"] and piece[-2:][0].lower not in _NOT_BEFORE_VERB:
            opened = 1
    return _is_short_order(pieces)


def _resumes(subject: Words, aside: Words, piece: Words) -> bool:
    """Return whether a piece continues a subject after an aside, as in "Roses, wild roses, bloom"."""
    opening = aside[0].lower
    if aside[-1].lower != subject[-1].lower and opening not in _ARTICLE:
        is_name = len(aside) < 3 and aside[0].text[0].isupper()
        if opening not in _LISTS["relative"] | _LISTS["subordinator"] and not opening.endswith("ing") and not is_name:
            return False
    first, after = piece[0].lower, piece[1].lower if len(piece) > 1 else ""
    if first.endswith("ed") and after in ("by", "with", "in", "as"):
        return False  # a participle: "a jar, an old one, filled with buttons"
    if first.endswith("s") and _stem(first) not in _LISTS["common"] and after in PREPOSITIONS:
        return False  # a plural noun: "a chair, a lamp, books without covers"
    return is_finite(subject + piece, len(subject))


def _is_short_order(pieces: tuple[Words, ...]) -> bool:
    """Return whether the first word is an order, and a later piece says why or when: "Run, Tom, because it rains"."""
    if not pieces or len(pieces[0]) > 1 or pieces[0][0].lower not in _SURE:
        return False
    return any(
        piece[0].lower in _LISTS["subordinator"] and any(is_finite(piece, index) for index in range(1, len(piece)))
        for piece in pieces[1:]
    )


def _has_main_verb(piece: Words, question: bool, opened: int) -> bool:
    verbs = 0
    for index, word in enumerate(piece):
        if is_finite(piece, index):
            verbs += 1
            if verbs > opened:
                return True
        elif word.lower in _LISTS["subordinator"] and _opens(piece, index, question):
            opened += 1
    return False


def _opens(piece: Words, index: int, question: bool) -> bool:
    """Return whether a word opens a subordinate clause, unlike a question word, "that house" or "until noon"."""
    word = piece[index].lower
    after = piece[index + 1].lower if index + 1 < len(piece) else ""
    has_start = any(one.lower == "from" for one in piece[max(index - 5, 0) : index])
    if word == "until" and (after in _LISTS["time"] or has_start):
        return False  # a preposition: "until noon", "from Monday morning until the last bell"
    if word not in _LISTS["relative"] and after.endswith("ing"):
        return False  # no subject follows: "while waiting"
    if index:
        if word == "that" and piece[index - 1].lower in _LISTS["preposition"]:  # a determiner: "in that house"
            return False
        return piece[index - 1].lower not in ("little", "a", "long", "like")  # a noun or pronoun: "for a while"
    return not question and not _points(piece) and word != "that"  # a determiner: "That old clock"


def _points(piece: Words) -> bool:
    """Return whether a piece begins like "That is", "That old clock", "Who would" or "If only"."""
    if len(piece) < 2:
        return False
    first, second = piece[0].lower, piece[1].lower
    if second == "only" or (first in ("that", "who") and second in _LISTS["auxiliary"]):
        return True
    return first == "that" and second not in _LISTS["determiner"] and second not in _LISTS["subject"]


def is_finite(piece: Words, index: int) -> bool:
    """Return whether the word at an index is a finite verb, as far as its neighbors show."""
    word = piece[index].lower
    if word in _LISTS["auxiliary"]:
        return True
    before = piece[index - 1].lower if index else ""
    if word in PAST:
        return (
            before not in _ARTICLE or before == "one" or _is_pointer(before, index) or _follows_relative(piece, index)
        )
    often = before in _OFTEN
    while index > 1 and _is_adverb(before):
        piece = (*piece[: index - 1], *piece[index:])
        index -= 1
        before = piece[index - 1].lower
    return _is_verb_here(piece, index, before, often)


def _is_adverb(word: str) -> bool:
    if word in _LISTS["adverb"]:
        return True
    return word.endswith("ly") and len(word) > 5 and word not in _LISTS["ly not adverb"] and word not in ADJECTIVES


def _is_verb_here(piece: Words, index: int, before: str, often: bool) -> bool:
    word = piece[index].lower
    after = piece[index + 1].lower if index + 1 < len(piece) else ""
    if before in _LISTS["subject"] and (word == "like" or (word not in _NOT_BEFORE_VERB and word not in _NO_VERB)):
        return True
    if word.endswith("ed") and len(word) > 3:
        is_past = before not in _NOT_BEFORE_VERB or before == "them"
        if index:
            return is_past or _is_pointer(before, index) or _follows_relative(piece, index)
        # At the start of a piece, the verb may precede its subject or object: "..., cried Tom", "..., decided that ..."
        if after in _LISTS["determiner"] or after in _LISTS["reflexive"] or after in ("when", "that", "to", "not"):
            return True
        return len(piece) > 1 and piece[1].text[0].isupper()
    if word.endswith("s") and word not in _SURE:
        if often and not word.endswith(("ss", "us", "'s")):
            return True
        return _is_third_person(piece, index, before, after)
    if before in _LISTS["auxiliary"] or word == "like":
        return before in ("some", "many", "most", "others") and index == 1  # a subject: "Some like the soup hot"
    if word in _SURE:
        return _is_plain_form(piece, index, before, after)
    return word in _RARELY and after in _OBJECTS and (index == 0 or before in _LISTS["opener"] or _is_plural(before))


def _is_pointer(before: str, index: int) -> bool:
    """Return whether the first word of a piece is a pronoun such as "this", the subject of the word after it."""
    return index == 1 and before in _POINTERS


def _follows_relative(piece: Words, index: int) -> bool:
    """Return whether "that" comes right before the index and after a noun: "the cart that carried wool"."""
    return index > 1 and piece[index - 1].lower == "that" and piece[index - 2].lower not in _NOT_BEFORE_VERB


def _is_plain_form(piece: Words, index: int, before: str, after: str) -> bool:
    """Return whether a base form is an order at the start of a clause, or the verb of a plural subject."""
    word = piece[index].lower
    if before in ("that", "which", "god", "heaven", "lord") or (before in ("these", "those") and word not in _NOUN_TOO):
        return True
    if index == 0 or before in _LISTS["opener"] or (index == 1 and _is_adverb(before)):
        # An order: "Bake it", "Never mind", "Use soap", "Call me".
        if word not in _NOUN_TOO or before in _OFTEN or (after == "of" and word in _LISTS["with of"]):
            return bool(after)
        if word in _ORDERS and before not in ("and", "or"):
            return is_number(after) or (
                bool(after) and (after not in _NO_OBJECT or (after == "on" and word in _LISTS["with on"]))
            )
        return after in _AFTER_VERB and after not in ("in", "on", "and", "with")
    if before in _LISTS["several"] or (word not in _NOUN_TOO and len(piece) > 2 and before not in _NOT_BEFORE_VERB):
        return True
    if before in _NOT_BEFORE_VERB:
        return False
    if index > 1 and piece[0].lower in ("those", "these", "both"):
        return True  # a plural subject: "Those who arrive late miss the soup"
    # A plural subject: "Bakers work", "nine out of ten children in my class walk to school"
    several = before if after not in _AFTER_VERB else max((word.lower for word in piece[:index]), key=_is_plural)
    return _is_plural(several)


_NO_OBJECT: Final = PREPOSITIONS - word_set("to about at for with into") | word_set("and or but")


def _is_plural(word: str) -> bool:
    return (
        (word.endswith("s") and not word.endswith(("ss", "'s", "us", "is")))
        or word.endswith("men")
        or word in _LISTS["several"]
    )


def _is_third_person(piece: Words, index: int, before: str, after: str) -> bool:
    word = piece[index].lower
    stem = _stem(word)
    if word.endswith(("ss", "us", "'s")) or stem not in _SURE:
        # An unlisted word is a verb if a singular noun comes before it, and an object after it.
        is_noun = before in _NOT_BEFORE_VERB or _is_plural(before) or before.endswith(_ADJECTIVE_ENDINGS)
        if index == 0 or word.endswith(("ss", "us", "'s")) or is_noun:
            return False
        return after in _LISTS["determiner"] and _follows(piece, index, _LISTS["single"] | {"the"})
    if index == 0:
        return stem not in _NOUN_TOO and (after in _LISTS["subject"] or after in _HEADS_A_NOUN)  # "..., says she"
    # After a phrase such as "none of us" the verb is singular.
    if before in ("this", "that", "it") or (
        index > 1 and piece[index - 2].lower == "of" and piece[index - 1].lower in ("us", "them", "you", "it", "these")
    ):
        return True  # "This forces him": a plural noun would follow "these"
    if stem not in _NOUN_TOO:
        return before not in _NOT_BEFORE_VERB or before in _LISTS["opener"]
    return before not in _NOT_BEFORE_VERB and _is_verb_not_noun(piece, index, before, after)


def _is_verb_not_noun(piece: Words, index: int, before: str, after: str) -> bool:
    """Return whether a word in -s is a verb and not a plural noun, as in "the bus runs from"."""
    if after in _HEADS_A_NOUN:
        return True
    if before in ADJECTIVES or before.endswith(_ADJECTIVE_ENDINGS):
        return False
    if _is_plural(before):
        # Two plural nouns do not form a compound; "makes plans" is a verb and its object.
        return index > 1 and (_stem(before) in _NOUN_TOO or _stem(before) not in _SURE)
    if before in PAST or (index == 1 and _stem(piece[1].lower) not in _LISTS["common"]):
        return False  # a plural noun: "lent books", "Street markets"
    if index == 1:
        return not after or after in _LISTS["determiner"] or (piece[0].text[0].isupper() and after in _AFTER_VERB)
    goes_on = after not in ("of", "or", "and") or (after == "of" and _stem(piece[index].lower) in _LISTS["with of"])
    if is_number(after) or after in ("twice", "half") or any(word.lower == "who" for word in piece[:index]):
        return True  # "..., creamy cheese costs twice as much", "the man who drove us home drives"
    return goes_on and (piece[index - 1].text[0].isupper() or _follows(piece, index, _ARTICLE))


def _follows(piece: Words, index: int, articles: frozenset[str]) -> bool:
    """Return whether an article, up to three adjectives or nouns and a noun come directly before the index."""
    for word in reversed(piece[max(index - 5, 0) : index - 1]):
        if word.lower in articles or word.lower.endswith("'s"):
            return True
        if word.lower in _NOT_BEFORE_VERB and word.lower != "of" and not is_number(word.lower):
            return False
    return False


def _stem(word: str) -> str:
    if word.endswith("ies") and len(word) > 4:
        return word[:-3] + "y"
    if word.endswith(("ches", "shes", "sses", "xes", "oes", "zes")):
        return word[:-2]
    return word[:-1]
