"""Checkers of social acts: thanks, apologies, promises, warnings, polite requests."""

from collections.abc import Iterator, Mapping
from itertools import pairwise
from typing import Final

from skillmix.checkers.passage import Checker, Passage, Sentence, Span, Words
from skillmix.checkers.words import DETERMINERS, is_minor, listed, opens_clause, word_set

_OTHERS: Final = word_set("he she they you it who he's she's they're you're it's nobody everyone")
_BEFORE_FEELING: Final = word_set("am i'm are we're so very truly deeply most really always forever be feel all just")
_SPEAKERS: Final = word_set("i we i'm we're i'd we'd i'll we'll i've we've let me us")
_REASONS: Final = frozenset({"for", "that", "because"})
_NEW_CLAUSE: Final = listed("social: new clause")
_BEFORE_THANKS: Final = listed("social: before thanks")


def giving_thanks_with_a_reason(passage: Passage) -> Span | None:
    """Find thanks with a reason, as in "thank you for A"."""
    lower = passage.lower
    if not ("thank" in lower or "grateful" in lower or "appreciate" in lower):
        return None
    for sentence in passage.sentences:
        for index, word in enumerate(sentence.words[:-3]):
            if word.lower in _THANKS and _THANKS[word.lower](sentence, index):
                reason = _reason_after(sentence.words, index)
                if reason:
                    return Span(word.start, sentence.words[-1].end)
    return None


def _reason_after(words: Words, index: int) -> bool:
    """Whether a reason of two or more words follows before another clause starts."""
    for word in words[index + 1 : min(index + 20, len(words) - 2)]:
        if word.lower in _REASONS:
            return True
        if word.lower in _NEW_CLAUSE:
            return False
    return False


def _thank(sentence: Sentence, index: int) -> bool:
    """Whether the speaker thanks someone, unlike "they thank you" and "thank goodness"."""
    if sentence.words[index + 1].lower in _NOT_THANKED:
        return False
    return _opens_piece(sentence, index) or _speaker_before(sentence, index)


def _thanks(sentence: Sentence, index: int) -> bool:
    """Whether "thanks" is the speaker's thanks, unlike "he thanks her" and "thanks to the rain"."""
    words = sentence.words
    if words[index + 1].lower in _NOT_THANKED:
        return False
    if index and words[index - 1].lower in _BEFORE_THANKS:
        return words[index - 1].lower != "say" or _speaker_before(sentence, index)
    return _opens_piece(sentence, index) and (words[index + 1].lower != "to" or words[index + 2].lower in _THANKED)


_NOT_THANKED: Final = frozenset(
    {"goodness", "god", "heaven", "heavens", "him", "her", "them", "me", "us", "the", "his"}
)
_THANKED: Final = frozenset({"you", "all", "everyone", "everybody", "each", "both"})


def _speaker_before(sentence: Sentence, index: int) -> bool:
    """Whether the nearest pronoun before a word is the speaker's, without a negation."""
    for word in reversed(sentence.words[max(index - 6, 0) : index]):
        if _denied(word.lower) or word.lower in _OTHERS:
            return False
        if word.lower in _SPEAKERS:
            return True
    return False


def _feels(sentence: Sentence, index: int) -> bool:
    """Whether an adjective describes the speaker: "I am grateful", not "I met a grateful man"."""
    return sentence.words[index - 1].lower in _BEFORE_FEELING and _speaker_before(sentence, index)


def _denied(lower: str) -> bool:
    return lower in ("not", "never", "no", "cannot") or lower.endswith("n't")


def _opens_piece(sentence: Sentence, index: int) -> bool:
    """Whether a word starts its piece or follows "and" or the like, which excludes reported speech."""
    if index and sentence.words[index - 1].lower in _AND:
        return True
    return _after_mark(sentence, index)


def _after_mark(sentence: Sentence, index: int) -> bool:
    """Whether a word is the first of its sentence or comes directly after a mark."""
    words = sentence.words
    gap = slice(words[index - 1].end - sentence.start, words[index].start - sentence.start) if index else slice(0)
    return index == 0 or bool(sentence.text[gap].strip())


_AND: Final = word_set("and but so or then well oh hey please also now because")
_THANKS: Final = {
    "thank": _thank,
    "thanks": _thanks,
    "grateful": _feels,
    "thankful": _feels,
    "appreciate": _speaker_before,
}


_OWN: Final = word_set("i my we our i'm i've i'd we're we've myself ourselves")
_FAULT_LINKS: Final = frozenset({"for", "about", "that", "because"})
_CONFESSING: Final = frozenset({"i", "we", "i've", "we've", "my", "our"})
_FRIENDS: Final = word_set("friend friends dear love lord lady boy girl son darling child")
_NO_FAULTS: Final = word_set("morning evening thing everything something anything nothing during")


def offering_an_apology(passage: Passage) -> Span | None:
    """Find an apology for a deed, as in "sorry for breaking A"."""
    lower = passage.lower
    if not ("sorry" in lower or "apolog" in lower or "forgive" in lower):
        return None
    for number, sentence in enumerate(passage.sentences):
        words = sentence.words
        for index in range(len(words)):
            if not _apologizes(sentence, index):
                continue
            if _own_fault(sentence, index + 1):
                return Span(words[index].start, words[-1].end)
            following = passage.sentences[number + 1 : number + 2]
            # The sentence after an apology may say what the speaker did: "I broke it".
            after = following[0].words if following else ()
            if len(words) - index <= 3 and len(after) > 2 and after[0].lower in _CONFESSING:
                return Span(words[index].start, following[0].end)
    return None


def _apologizes(sentence: Sentence, index: int) -> bool:
    words = sentence.words
    lower = words[index].lower
    after = words[index + 1].lower if index + 1 < len(words) else ""
    if lower == "sorry":
        first = index - 1 if index and words[index - 1].lower in _VERY else index
        return _opens_piece(sentence, first) or _speaker_before(sentence, index)
    if lower in ("apologize", "apologise"):
        return _speaker_before(sentence, index)
    if lower in ("apologies", "apology"):
        return _opens_piece(sentence, index) or words[index - 1].lower in _OWN_APOLOGIES
    # The verb asks for forgiveness if it opens its clause or follows "please".
    return (
        lower in ("forgive", "pardon")
        and after in ("me", "us")
        and (_opens_piece(sentence, index) or sentence.words[index - 1].lower in ("please", "to", "you"))
    )


_OWN_APOLOGIES: Final = frozenset({"my", "our", "sincere", "deepest", "sincerest", "humble"})
_VERY: Final = frozenset({"so", "very", "terribly", "really", "truly", "awfully", "deeply", "am"})


def _own_fault(sentence: Sentence, index: int) -> bool:
    """Whether the next words are the speaker's own deed: "for being late", "that I forgot"."""
    following = [word.lower for word in sentence.words[index : index + 15]]
    if following[:1] == ["to"]:  # "sorry to hear that"
        return False
    for number, lower in enumerate(following[:-1]):
        if lower in ("but", "and", "however"):
            return False
        if lower in _FAULT_LINKS:
            rest = _clause_from(sentence, index + number + 1)
            return not _OWN.isdisjoint(rest) or (
                lower in ("for", "about")
                and any((part.endswith("ing") and len(part) > 4 and part not in _NO_FAULTS) for part in rest[:3])
            )
        if number <= 2 and (lower in _CONFESSING and following[number + 1] not in _FRIENDS):
            return True
    return False


def _clause_from(sentence: Sentence, index: int) -> list[str]:
    """The words up to the next mark after two or more words, or up to the next "and I"."""
    words = sentence.words
    clause: list[str] = []
    for number, word in enumerate(words[index : index + 15], start=index):
        after = words[number + 1].lower if number + 1 < len(words) else ""
        if (len(clause) >= 2 and _after_mark(sentence, number)) or (
            word.lower in ("and", "but") and after in _SPEAKERS
        ):
            break
        clause.append(word.lower)
    return clause


_PROMISES: Final = frozenset({"promise", "swear", "vow", "pledge"})
_BETWEEN_I_AND_WILL: Final = frozenset(
    {"never", "always", "surely", "both", "all", "certainly", "really", "too", "also"}
)
_WILLS: Final = frozenset({"will", "shall", "won't", "i'll", "we'll"})


def giving_a_promise(passage: Passage) -> Span | None:
    """Find a promise, as in "I promise that I will do A"."""
    lower = passage.lower
    if not ("promise" in lower or "swear" in lower or "vow" in lower or "my word" in lower or "pledge" in lower):
        return None
    for sentence in passage.sentences:
        for index in range(1, len(sentence.words)):
            if _promises(sentence.words, index) and _own_future(sentence.words, index):
                return Span(sentence.words[0].start, sentence.words[-1].end)
    return None


def _promises(words: Words, index: int) -> bool:
    before = [word.lower for word in words[max(index - 3, 0) : index]]
    if words[index].lower == "word":
        return before[-1] in ("my", "our") and (not {"give", "have"}.isdisjoint(before) or "on" in before)
    if words[index].lower not in _PROMISES or before[-1] in DETERMINERS:
        return False
    speaker = next((number for number in reversed(range(len(before))) if before[number] in ("i", "we")), None)
    return speaker is not None and not any(_denied(lower) for lower in before[speaker:])


def _own_future(words: Words, index: int) -> bool:
    """Whether the sentence says what the speaker will do, or the promise is to do something."""
    words, index = words[max(index - 40, 0) : index + 40], min(index, 40)
    lowers = [word.lower for word in words]
    if "i'll" in lowers or "we'll" in lowers:
        return True
    for to in range(index + 1, min(index + 5, len(words) - 1)):
        if lowers[to] in _WILLS or lowers[to] in ("that", "i", "we"):
            break
        if lowers[to] == "to" and not is_minor(lowers[to + 1]) | (lowers[to + 1] in ("the", "a")):
            return True
        if lowers[to] == "to" and lowers[to + 1] in ("be", "do", "have", "always", "get", "let"):
            return True
    return any(lower in _WILLS and _is_speakers(lowers, number) for number, lower in enumerate(lowers))


def _is_speakers(lowers: list[str], will: int) -> bool:
    """Whether the speaker will act: "I will", "we never will", "never will I"."""
    if not {"i", "we"}.isdisjoint(lowers[max(will - 1, 0) : will + 2]):
        return True
    return will > 1 and lowers[will - 2] in ("i", "we") and lowers[will - 1] in _BETWEEN_I_AND_WILL


_HARMS: Final = frozenset({"will", "could", "can", "may", "might", "would", "won't"})
_FORBIDDING: Final = frozenset({"don't", "never", "beware", "stop", "careful", "do", "be", "watch", "look"})
_GOING_ON: Final = word_set("it you they he she we this that otherwise or else someone somebody one i the your a")
_LINKS: Final = frozenset({"or", "otherwise", "because", "since", "as", "for", "lest", "before", "if", "else"})


def warning_with_a_consequence(passage: Passage) -> Span | None:
    """Find a warning, as in "don't do A, or B will happen"."""
    for sentence, following in _with_next(passage):
        pieces = sentence.pieces
        for number, piece in enumerate(pieces):
            index = next((index for index in range(len(piece) - 1) if _forbids(piece, index)), None)
            if index is None:
                continue
            end = _harm_after(piece[index + 1 :], [*pieces[number + 1 : number + 7], *following[:6]])
            if end:
                return Span(piece[index].start, end)
    return None


def _with_next(passage: Passage) -> Iterator[tuple[Sentence, tuple[Words, ...]]]:
    """Each sentence that may forbid something, and the pieces of the next sentence if it continues the warning."""
    lower = passage.lower
    if not any(
        word in lower for word in ("don't", "do not", "never", "careful", "watch", "beware", "stop", "look out")
    ):
        return
    for sentence, following in pairwise((*passage.sentences, None)):
        goes_on = following is not None and following.words and following.words[0].lower in _GOING_ON
        if sentence is not None:
            yield sentence, following.pieces if following is not None and goes_on else ()


def _forbids(piece: Words, index: int) -> bool:
    lower, after = piece[index].lower, piece[index + 1].lower
    if lower not in _FORBIDDING or not opens_clause(piece, index):
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
    return lower != "never" or not (after in _INVERTED or (after.endswith("ed") and not after.endswith("eed")))


def _comforts(piece: Words, index: int) -> bool:
    """Whether the order only comforts: "don't worry", "do not be afraid"."""
    feelings = [word.lower for word in piece[index : index + 2]]
    return not _FEARS.isdisjoint(feelings if feelings[:1] == ["be"] else feelings[:1])


_FEARS: Final = listed("social: fears")
_INVERTED: Final = listed("social: inverted")


def _harm_after(rest: Words, later: list[Words]) -> int | None:
    """Find the end of the clause with the harm: in a later piece, or in this one after a linking word."""
    link = next((index for index, word in enumerate(rest) if word.lower in _LINKS), len(rest))
    for piece in (rest[link + 1 :], *later):
        if piece and piece[0].lower in ("and", "so"):  # "and you will be safe"
            continue
        for index, word in enumerate(piece[:-1]):
            if (index and word.lower in _HARMS) or word.lower.endswith("'ll"):
                return piece[-1].end
    return None


_ASKING: Final = frozenset({"could", "would", "can", "will", "may", "might"})
_COURTESY: Final = frozenset({"please", "kindly", "mind"})


def asking_politely(passage: Passage) -> Span | None:
    """Find a polite question, as in "could you please do A?"."""
    if "?" not in passage.text or not any(word in passage.lower for word in _COURTESY):
        return None
    for sentence in passage.sentences:
        if "?" not in sentence.text or all(word.lower not in _COURTESY for word in sentence.words):
            continue
        for piece in sentence.pieces[:40]:
            index = next((index for index in range(len(piece) - 1) if _asks(piece, index)), None)
            if index is None:
                continue
            start = piece[index].start
            mark = passage.text.find("?", start, sentence.end)
            # The polite word comes before the question mark, or directly before the question.
            courteous = [word for word in sentence.words if word.lower in _COURTESY]
            if mark > 0 and any(start - 12 < word.start < mark for word in courteous):
                return Span(start, sentence.end)
    return None


def _asks(piece: Words, index: int) -> bool:
    lower, after = piece[index].lower, piece[index + 1].lower
    if lower not in _ASKING or not opens_clause(piece, index):
        return False
    return after == "you" or (lower in ("may", "could", "can", "might") and after in ("i", "we"))


CHECKERS: Final[Mapping[str, Checker]] = {
    "giving thanks with a reason": giving_thanks_with_a_reason,
    "offering an apology": offering_an_apology,
    "giving a promise": giving_a_promise,
    "warning with a consequence": warning_with_a_consequence,
    "asking politely": asking_politely,
}
