"""Find words that clash: words of far fields in an everyday text, handled ideas, things with relatives.

Form alone cannot tell whether a text makes sense. The lists of words in `clashes.json` catch some of the texts whose
parts do not belong together ("The hotel lobby arrested a comma"), and hardly any others.
"""

import json
from importlib.resources import files
from typing import Final

from skillmix.checkers.english.words import DETERMINERS, stem, word_set
from skillmix.checkers.passage import Passage, Sentence, Words
from skillmix.checkers.topic import TopicWords, topic_bases

_STORED: Final = json.loads((files("skillmix.checkers.english") / "clashes.json").read_text(encoding="utf-8"))
_CORE, _FAR, _OF_PEOPLE, _NO_PLACES, _DEEDS, _NOT_HANDLED = (
    frozenset(map(stem, words.split())) for words in _STORED.values()
)
MOST_FAR: Final = 1
"""Different words of fields such as mathematics, grammar and law that a text may have if its topic has none.

A word of their core, such as "subtraction", is one too many.
"""
_PLACING: Final = word_set("behind beside beneath underneath at past opposite inside near of by through")
_PLACED: Final = word_set("left right north south east west next stands stood sits sat hides lies hidden lives turn")
_BEFORE_NOUN: Final = DETERMINERS | word_set("own very same old new")
_BEFORE_OF: Final = word_set(
    "made think thought heard hear dream dreamed dreamt proud full afraid care out speak tired kind sort rid fond ahead"
    " aware capable sure because consist smell taste know knew what talk beware approve short front most best"
)
_SENSED: Final = word_set("blue green purple yellow pink brown turquoise deaf wooden woolen furry hairy juicy fried")
_NEAR: Final = 4
_NO_END: Final = word_set("the a an and because although than since") | {"of"}
_SINCE: Final = word_set("ever long not has have had happened")


def clash(passage: Passage, topic: TopicWords) -> str | None:
    """Say which words of a text do not belong together; None if none are known to clash.

    >>> from skillmix.checkers.passage import passage_of
    >>> from skillmix.checkers.topic import topic_words
    >>> clash(passage_of("The lobby arrested a comma."), topic_words("Hotel lobbies", ["lobby"], ["desk"]))
    'its words are of far fields: arrested, comma'
    """
    far = {stem(word.lower): word.text for word in passage.words if not word.text[0].isupper()}
    far = {one: text for one, text in far.items() if one in _FAR or one in _CORE}
    if far:
        own = frozenset(map(stem, topic.forms))
        far = {one: text for one, text in far.items() if one not in own and own.isdisjoint(_CORE)}
    if len(far) > MOST_FAR or not _CORE.isdisjoint(far):
        return f"its words are of far fields: {', '.join(sorted(far.values()))}"
    for sentence in passage.sentences:
        for piece in sentence.pieces:
            for index in range(len(piece) - 1):
                noun = _clashing_noun(piece, index, topic)
                if noun:
                    return f'"{piece[index].text}" has nothing to do with "{noun}"'
        last = _unfinished_end(sentence)
        if last:
            return f'a sentence ends in "{last}"'
    return None


def _clashing_noun(piece: Words, index: int, topic: TopicWords) -> str | None:
    """The noun after a verb that cannot handle it, after a place where it cannot be, or after a thing's "its"."""
    noun = _noun_after(piece, index + 1)
    if not noun or topic_bases(piece[index + 1 : index + 4], topic):
        return None
    before, kind = piece[index].lower, stem(noun)
    has_article = piece[index + 1].lower in _BEFORE_NOUN
    clashes = (
        (stem(before) in _DEEDS and has_article and kind in _NOT_HANDLED)
        or (before == "its" and kind in _OF_PEOPLE)
        or (before in _SENSED and not has_article and kind in _NO_PLACES)
        or (_places(piece, index) and has_article and kind in _NO_PLACES)
    )
    return noun if clashes else None


def _unfinished_end(sentence: Sentence) -> str | None:
    """The last word of a sentence that cannot end in it, such as "the", if a full stop follows."""
    end = sentence.text.rstrip("\"'”’)")
    last = [word.lower for word in sentence.words[-2:]]
    if len(last) < 2 or last[1] not in _NO_END or not end.endswith(".") or end.endswith(".."):
        return None
    allowed = {"of": _BEFORE_OF, "since": _SINCE}.get(last[1], frozenset[str]())
    return None if last[0] in allowed else last[1]


def _noun_after(piece: Words, index: int) -> str:
    """The first word after articles and the like; empty at the end of a piece."""
    words = (word.lower for word in piece[index : index + _NEAR] if word.lower not in _BEFORE_NOUN)
    return next(words, "").removesuffix("'s")


def _places(piece: Words, index: int) -> bool:
    before = piece[index - 1].lower if index else ""
    lower = piece[index].lower
    return lower in ("behind", "beside", "beneath", "underneath") or (lower in _PLACING and before in _PLACED)
