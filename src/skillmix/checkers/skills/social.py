"""Checkers of social acts: thanks, apologies, promises, warnings, polite requests."""

from collections.abc import Iterator
from itertools import pairwise
from typing import Final

from skillmix.checkers.passage import Passage, Sentence, Span, Words, shows
from skillmix.checkers.words import DETERMINERS, is_minor, lists_of, opens_clause

_LISTS: Final = lists_of("social")


@shows("giving thanks with a reason", "thank", "grateful", "appreciate")
def giving_thanks_with_a_reason(passage: Passage) -> Iterator[Span]:
    """Find thanks with a reason, as in "thank you for A"."""
    for sentence in passage.sentences:
        for index, word in enumerate(sentence.words[:-3]):
            if word.lower in _THANKS and _THANKS[word.lower](sentence, index):
                reason = _reason_after(sentence.words, index)
                if reason:
                    yield Span(word.start, sentence.words[-1].end)


def _reason_after(words: Words, index: int) -> bool:
    """Return whether a reason of two or more words follows before another clause starts."""
    for word in words[index + 1 : min(index + 20, len(words) - 2)]:
        if word.lower in _LISTS["reasons"]:
            return True
        if word.lower in _LISTS["new clause"]:
            return False
    return False


def _thanks(sentence: Sentence, index: int) -> bool:
    """Return whether the speaker thanks someone, unlike "they thank you", "thank goodness" and "thanks to the rain"."""
    words = sentence.words
    if words[index + 1].lower in _LISTS["not thanked"]:
        return False
    if words[index].lower == "thank":
        return _opens_piece(sentence, index) or _speaker_before(sentence, index)
    if index and words[index - 1].lower in _LISTS["before thanks"]:
        return words[index - 1].lower != "say" or _speaker_before(sentence, index)
    is_thanked = words[index + 1].lower != "to" or words[index + 2].lower in _LISTS["thanked"]
    return is_thanked and _opens_piece(sentence, index)


def _speaker_before(sentence: Sentence, index: int) -> bool:
    """Return whether the nearest pronoun before a word is the speaker's, without a negation."""
    for word in reversed(sentence.words[max(index - 6, 0) : index]):
        if _denied(word.lower) or word.lower in _LISTS["others"]:
            return False
        if word.lower in _LISTS["speakers"]:
            return True
    return False


def _feels(sentence: Sentence, index: int) -> bool:
    """Return whether an adjective describes the speaker: "I am grateful", not "I met a grateful man"."""
    return sentence.words[index - 1].lower in _LISTS["before feeling"] and _speaker_before(sentence, index)


def _denied(lower: str) -> bool:
    return lower in ("not", "never", "no", "cannot") or lower.endswith("n't")


def _opens_piece(sentence: Sentence, index: int) -> bool:
    """Return whether a word starts its piece or follows "and" or the like, which excludes reported speech."""
    if index and sentence.words[index - 1].lower in _LISTS["and"]:
        return True
    return _after_mark(sentence, index)


def _after_mark(sentence: Sentence, index: int) -> bool:
    """Return whether a word is the first of its sentence or comes directly after a mark."""
    words = sentence.words
    gap = slice(words[index - 1].end - sentence.start, words[index].start - sentence.start) if index else slice(0)
    return index == 0 or bool(sentence.text[gap].strip())


_THANKS: Final = {
    "thank": _thanks,
    "thanks": _thanks,
    "grateful": _feels,
    "thankful": _feels,
    "appreciate": _speaker_before,
}


@shows("offering an apology", "sorry", "apolog", "forgive")
def offering_an_apology(passage: Passage) -> Iterator[Span]:
    """Find an apology for a deed, as in "sorry for breaking A"."""
    for number, sentence in enumerate(passage.sentences):
        words = sentence.words
        for index in range(len(words)):
            if not _apologizes(sentence, index):
                continue
            if _own_fault(sentence, index + 1):
                yield Span(words[index].start, words[-1].end)
            following = passage.sentences[number + 1 : number + 2]
            # The sentence after an apology may say what the speaker did: "I broke it".
            after = following[0].words if following else ()
            if len(words) - index <= 3 and len(after) > 2 and after[0].lower in _LISTS["confessing"]:
                yield Span(words[index].start, following[0].end)


def _apologizes(sentence: Sentence, index: int) -> bool:
    words = sentence.words
    lower = words[index].lower
    after = words[index + 1].lower if index + 1 < len(words) else ""
    if lower == "sorry":
        first = index - 1 if index and words[index - 1].lower in _LISTS["very"] else index
        return _opens_piece(sentence, first) or _speaker_before(sentence, index)
    if lower in ("apologize", "apologise"):
        return _speaker_before(sentence, index)
    if lower in ("apologies", "apology"):
        return _opens_piece(sentence, index) or words[index - 1].lower in _LISTS["own apologies"]
    # The verb asks for forgiveness if it opens its clause or follows "please".
    return (
        lower in ("forgive", "pardon")
        and after in ("me", "us")
        and (_opens_piece(sentence, index) or sentence.words[index - 1].lower in ("please", "to", "you"))
    )


def _own_fault(sentence: Sentence, index: int) -> bool:
    """Return whether the next words name a fault of the speaker: "for being late", "that I forgot"."""
    following = [word.lower for word in sentence.words[index : index + 15]]
    if following[:1] == ["to"]:  # sympathy, not an apology: "sorry to hear that"
        return False
    for number, lower in enumerate(following[:-1]):
        if lower in ("but", "and", "however"):
            return False
        if lower in _LISTS["fault links"]:
            rest = _clause_from(sentence, index + number + 1)
            deeds = (part for part in rest[:3] if part.endswith("ing") and part not in _LISTS["no faults"])
            is_deed = lower in ("for", "about") and any(len(deed) > 4 for deed in deeds)
            return is_deed or not _LISTS["own"].isdisjoint(rest)
        if number <= 2 and (lower in _LISTS["confessing"] and following[number + 1] not in _LISTS["friends"]):
            return True
    return False


def _clause_from(sentence: Sentence, index: int) -> list[str]:
    """Return the words up to the next mark after two or more words, or up to the next "and I"."""
    words = sentence.words
    clause: list[str] = []
    for number, word in enumerate(words[index : index + 15], start=index):
        after = words[number + 1].lower if number + 1 < len(words) else ""
        if (len(clause) >= 2 and _after_mark(sentence, number)) or (
            word.lower in ("and", "but") and after in _LISTS["speakers"]
        ):
            break
        clause.append(word.lower)
    return clause


@shows("giving a promise", "promise", "swear", "vow", "my word", "pledge")
def giving_a_promise(passage: Passage) -> Iterator[Span]:
    """Find a promise, as in "I promise that I will do A"."""
    for sentence in passage.sentences:
        for index in range(1, len(sentence.words)):
            if _promises(sentence.words, index) and _own_future(sentence.words, index):
                yield Span(sentence.words[0].start, sentence.words[-1].end)


def _promises(words: Words, index: int) -> bool:
    before = [word.lower for word in words[max(index - 3, 0) : index]]
    if words[index].lower == "word":
        return before[-1] in ("my", "our") and (not {"give", "have"}.isdisjoint(before) or "on" in before)
    if words[index].lower not in _LISTS["promises"] or before[-1] in DETERMINERS:
        return False
    if words[index].lower == "swear" and words[index + 1 : index + 2] and words[index + 1].lower == "at":
        return False
    speaker = next((number for number in reversed(range(len(before))) if before[number] in ("i", "we")), None)
    return speaker is not None and not any(_denied(lower) for lower in before[speaker:])


def _own_future(words: Words, index: int) -> bool:
    """Return whether the sentence says what the speaker will do, or the promise is to do something."""
    words, index = words[max(index - 40, 0) : index + 40], min(index, 40)
    lowers = [word.lower for word in words]
    if "i'll" in lowers or "we'll" in lowers:
        return True
    for to in range(index + 1, min(index + 5, len(words) - 1)):
        if lowers[to] == "to" and not is_minor(lowers[to + 1]) | (lowers[to + 1] in ("the", "a")):
            return True
        if lowers[to] == "to" and lowers[to + 1] in ("be", "do", "have", "always", "get", "let"):
            return True
    for will, lower in enumerate(lowers):  # in any order: "I will", "never will I", "we never will"
        near, earlier = lowers[max(will - 1, 0) : will + 2], lowers[max(will - 2, 0) : will]
        is_own = not {"i", "we"}.isdisjoint(near) or (
            earlier[:1] in (["i"], ["we"]) and earlier[-1] in _LISTS["between i and will"]
        )
        if lower in _LISTS["wills"] and is_own:
            return True
    return False


@shows(
    *("warning with a consequence", "don't", "do not", "never"),
    *("careful", "watch", "beware", "stop", "look out"),
)
def warning_with_a_consequence(passage: Passage) -> Iterator[Span]:
    """Find a warning, as in "don't do A, or B will happen"."""
    for number, sentence in enumerate(passage.sentences):
        following = passage.sentences[number + 1 : number + 2]
        # The next sentence may continue the warning.
        goes_on = following and following[0].words and following[0].words[0].lower in _LISTS["going on"]
        later = following[0].pieces[:6] if goes_on else ()
        pieces = sentence.pieces
        for place, piece in enumerate(pieces):
            index = next((index for index in range(len(piece) - 1) if _forbids(piece, index)), None)
            if index is None:
                continue
            end = _harm_after(piece[index + 1 :], [*pieces[place + 1 : place + 7], *later])
            if end:
                yield Span(piece[index].start, end)


def _forbids(piece: Words, index: int) -> bool:
    lower, after = piece[index].lower, piece[index + 1].lower
    if lower not in _LISTS["forbidding"] or not opens_clause(piece, index):
        return False
    if lower == "do":
        return after == "not" and not _comforts(piece, index + 2)
    if lower == "don't":
        return not _comforts(piece, index + 1)
    if lower in ("be", "watch", "look"):
        return after in ("careful", "out", "cautious", "wary", "your")
    if lower in ("careful", "stop"):
        return index == 0 or (lower == "stop" and after not in ("by", "in", "over"))
    # "Never" does not always give an order: "never have I seen", "never again".
    return lower != "never" or not (after in _LISTS["inverted"] or (after.endswith("ed") and not after.endswith("eed")))


def _comforts(piece: Words, index: int) -> bool:
    """Return whether the order only comforts: "don't worry", "do not be afraid"."""
    feelings = [word.lower for word in piece[index : index + 2]]
    return not _LISTS["fears"].isdisjoint(feelings if feelings[:1] == ["be"] else feelings[:1])


def _harm_after(rest: Words, later: list[Words]) -> int | None:
    """Find the end of the clause with the harm, in a later piece or after a linking word in the same piece."""
    link = next((index for index, word in enumerate(rest) if word.lower in _LISTS["links"]), len(rest))
    for piece in (rest[link + 1 :], *later):
        if piece and piece[0].lower in ("and", "so"):  # a reassurance, not a harm: "and you will be safe"
            continue
        for index, word in enumerate(piece[:-1]):
            if (index and word.lower in _LISTS["harms"]) or word.lower.endswith("'ll"):
                return piece[-1].end
    return None


_ASKING: Final = {
    **dict.fromkeys(("would", "will"), ("you",)),
    **dict.fromkeys(("may", "could", "can", "might"), ("you", "i", "we")),
}


@shows("asking politely", *_LISTS["courtesy"])
def asking_politely(passage: Passage) -> Iterator[Span]:
    """Find a polite question, as in "could you please do A?"."""
    for sentence in passage.sentences:
        for piece in sentence.pieces[:40]:
            asking = (
                word.start
                for index, (word, after) in enumerate(pairwise(piece))
                if after.lower in _ASKING.get(word.lower, ()) and opens_clause(piece, index)
            )
            start = next(asking, None)
            if start is None:
                continue
            mark = passage.text.find("?", start, sentence.end)
            # The polite word comes before the question mark, or directly before the question.
            courteous = [word for word in sentence.words if word.lower in _LISTS["courtesy"]]
            if mark > 0 and any(start - 12 < word.start < mark for word in courteous):
                yield Span(start, sentence.end)
