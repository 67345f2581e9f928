"""Checkers of interruptions: asides, broken-off sentences, tags, corrections, split quotations, address."""

import re
from bisect import bisect_right
from collections.abc import Iterator
from itertools import pairwise
from typing import Final

from skillmix.checkers.passage import Passage, Span, Words, shows, span_between
from skillmix.checkers.words import ARTICLES, LITTLE, PERSONS, PREPOSITIONS, lists_of, word_set

_LISTS: Final = lists_of("interruption")

_BRACKET = re.compile(r"\(([^()]{5,300})\)")
_DASH = re.compile(r"[—–]|--+| - ")
_SHORTEST_ASIDE: Final = 3


@shows("parenthetical aside")
def parenthetical_aside(passage: Passage) -> Iterator[Span]:
    """Find three or more words in parentheses or dashes inside a sentence, with a word for a person such as "I"."""
    for sentence in passage.sentences:
        brackets = [match.span() for match in _BRACKET.finditer(sentence.text)]
        dashes = [match.span() for match in _DASH.finditer(sentence.text)]
        between = [(first[0], second[1]) for first, second in pairwise(dashes)]
        for start, end in (*brackets[:_FEW], *between[:_FEW]):
            span = Span(sentence.start + start, sentence.start + end)
            inside = [word.lower for word in sentence.words if span.start <= word.start < span.end]
            if (
                len(inside) >= _SHORTEST_ASIDE
                and sentence.words[0].start < span.start
                and sentence.words[-1].start >= span.end
                and inside[0] not in _REFERS
                and any(word.split("'")[0] in PERSONS for word in inside)
            ):
                yield span


_REFERS: Final = word_set("see cf compare call tel page")
"""First words of a reference, which is not a remark: "(see my memo)"."""


_FEW: Final = 8

_BREAK = re.compile(r"(?:(?:(?<!\.)|(?<= \. \. \.))\.\.++|…|[—–]|(?<!-)--++)[\"”'’)\]]*+(?=\s|$)|(?: \.){3}| -$")
_SHORTEST_BROKEN: Final = 4


@shows("aposiopesis", "..", "…", "—", "–", "--", ". .", " -")
def aposiopesis(passage: Passage) -> Iterator[Span]:
    """Find a sentence or quotation that breaks off after a word that cannot be its last."""
    for sentence in passage.sentences:
        if len(sentence.words) < _SHORTEST_BROKEN:
            continue
        for mark in _BREAK.finditer(sentence.text):
            last = bisect_right(sentence.words, sentence.start + mark.start(), key=lambda word: word.end)
            # The mark must end its sentence or a quotation.
            if (mark[0][-1] in '"”' or sentence.words[-1].start < sentence.start + mark.start()) and _is_unfinished(
                [word.lower for word in sentence.words[max(0, last - 3) : last]]
            ):
                yield Span(sentence.start, sentence.start + mark.end())


def _is_unfinished(last_three: list[str]) -> bool:
    """Return whether a sentence cannot end in these words."""
    if len(last_three) < _LAST_WORDS:
        return False
    earlier, before, last = last_three
    if last in _LISTS["helping"]:
        return earlier not in _HAS_A_LAST_HELPER
    if last in PREPOSITIONS and earlier == "to":  # a complete phrase: "someone to talk with"
        return False
    return last in _LISTS["cannot be last"] or before in _LEFT_HANGING.get(last, ())


_LAST_WORDS: Final = 3
_HAS_A_LAST_HELPER: Final = _LISTS["has a last helper"]
"""Words that, before a subject, allow an auxiliary verb to end the sentence: "all we could", "than she did"."""
_LEFT_HANGING: Final = {
    "that": _LISTS["before a clause"],
    **dict.fromkeys(("you", "it", "there", "this"), _LISTS["opens a clause"]),
    **dict.fromkeys(
        ("old", "new", "big", "little", "small", "great", "whole", "entire"), ARTICLES | word_set("my your his")
    ),
    "so": _LISTS["be"],
    "no": _LISTS["be"] | word_set("have has had with"),
    "like": word_set("looked looks felt feels sounded sounds was seemed something smelled"),
}
"""Words that cannot end a sentence after certain other words."""


_HELPERS: Final = (
    "is|are|was|were|do|does|did|have|has|had|can|could|will|would|shall|should|may|might|must|need|dare|ought|am"
)
_TAG = re.compile(
    rf"[,—–-] ?(?P<tag>(?:{_HELPERS}|wo|ca|sha|ai)(?P<negative>n't)? (?:i|you|he|she|it|we|they|there|this|that|one))"
    r"(?=\?|,| ?[—–]|\)|\"|!)"
)
_NEGATION = re.compile(r"\b(?:not|never|no|nothing|nobody|none|cannot|nowhere|neither)\b|n't\b")
_REACH: Final = 300


@shows("tag question")
def tag_question(passage: Passage) -> Iterator[Span]:
    """Find a statement, a comma and a tag (an auxiliary verb and a pronoun), if either statement or tag is negative."""
    for match in _TAG.finditer(passage.lower):
        before = _SENTENCE_END.split(passage.lower[max(0, match.start() - _REACH) : match.start()])[-1]
        clause = _CLAUSE_END.split(before)[-1]
        # Either the tag or the statement is negative, and the negation may come early in the statement.
        is_negative = _NEGATION.search(clause if match["negative"] else before) is not None
        if len(before.split()) >= 2 and is_negative != bool(match["negative"]):
            # The tag repeats the statement's subject, unlike "I have never been there, have you?".
            # The tag also repeats the statement's helping verb, unlike "It had passed, isn't it?".
            statement = clause.split()
            verbs = {_VERB_OF_HELPER.get(word.removesuffix("n't"), "") for word in statement} - {""}
            verb = _VERB_OF_HELPER.get(match["tag"].split()[0].removesuffix("n't"))
            if verb and verbs and verb not in verbs:
                continue
            subject = before.strip(" \"'(—–-").split(maxsplit=1)[0].partition("'")[0]
            if subject not in _LISTS["subjects"] or match["tag"].split()[-1] == subject or _OPINION.search(before):
                yield Span(match.start("tag"), match.end("tag"))


_VERB_OF_HELPER: Final = {
    **dict.fromkeys(("is", "are", "was", "were"), "be"),
    **dict.fromkeys(("has", "had"), "have"),
    **dict.fromkeys(("can", "could"), "can"),
    "should": "should",
}
_OPINION: Final = re.compile(
    r"\b(?:think|suppose|guess|bet|believe|hope|know|see|said|says|hear|imagine|and|but)\b|[,;:]"
)
_SENTENCE_END = re.compile(r"[.?!]\s")
_CLAUSE_END = re.compile(r"[,;:]")


_TAKEN_BACK = re.compile(
    r"(?:[,;…—–]|--|\.\.\.| -)\s?(?:(?:oh|well|er|um|uh|but|and|or),? )?"
    r"(?P<cue>no(?=,| ?[—–]| -)|no,? wait\b|wait\b(?=,| ?[—–]| -|,? no\b| \w+ \w*n't)|or,? rather\b"
    r"|i mean\b(?! (?:to|it|that|what|business|well|no)\b)|or,? should i say\b|make that\b|scratch that\b|correction\b)"
    r"(?P<rest>.{0,40})"
)
_WORD = re.compile(r"\w")


@shows("self-correction")
def self_correction(passage: Passage) -> Iterator[Span]:
    """Find a comma or dash, a cue such as "no" that takes back the words before it, and a replacement."""
    for match in _TAKEN_BACK.finditer(passage.lower):
        before = passage.lower[max(0, match.start() - _REACH) : match.start()].rsplit("\n", 1)[-1]
        words = _SENTENCE_END.split(before)[-1].split()
        if len(words) < 2 or words[-1] in _NOTHING_SAID_YET or (match["cue"] == "no" and words[-1] in _LISTS["saying"]):
            continue
        if _WORD.search(match["rest"]) and not _GOES_ON.match(match["rest"]):
            yield Span(match.start("cue"), match.end("cue"))


_NOTHING_SAID_YET: Final = LITTLE - PERSONS - word_set("all some many most few more once never there here then")
_GOES_ON = re.compile(r",? (?:and|then|no|thank|thanks)\b")
"""Words after a cue that corrects nothing: "stop, wait, and listen"; "no, thank you"."""


_SPEECH = re.compile(
    r"\b(?:sa(?:y|ys|id|ying)|t(?:ell|ells|old)|repl(?:y|ies|ied)|cr(?:y|ies|ied)|went on|goes on|began|thought|thinks"
    rf"|(?:{'|'.join(sorted(_LISTS['speech']))})(?:s|d|ed|ged|ped|ted|ing|ging|ping|ting)?)\b"
)
_SPLIT = re.compile(
    r"[\w,!?….—–-][\"']\s?(?P<between>(?:[^\".!?;:]|(?<=\bm[rs])\.|(?<=\bmrs)\.|(?<=\bdr)\.){5,90}?)(?P<open>\"|(?<=[\s—–-])')(?=[\w.…])"
)
_LONGEST_BETWEEN: Final = 8


@shows("split quotation")
def split_quotation(passage: Passage) -> Iterator[Span]:
    """Find two quotations in one sentence with two to eight words between them that say who speaks."""
    text = passage.lower
    if text.count('"') < 4 and text.count("'") < 4:
        return
    for match in _SPLIT.finditer(text):
        between = match["between"]
        mark = match["open"]
        if (
            2 <= len(between.split()) <= _LONGEST_BETWEEN
            and _SPEECH.search(between)
            and " said to " not in f" {between} "
            and mark in text[max(0, match.start() - _REACH) : match.start()]
            and mark in text[match.end() : match.end() + 2 * _REACH]
        ):
            yield Span(*match.span("between"))


_READERS: Final = _LISTS["readers"]
"""Persons to whom a letter begins with "dear"."""
_LONGEST_NAME: Final = 5


@shows("apostrophe (address to a thing)")
def apostrophe(passage: Passage) -> Iterator[Span]:
    """Find a piece that consists of "O", "oh" or "dear" and a name, with a form of "you" elsewhere in the sentence."""
    for sentence in passage.sentences:
        for index, piece in enumerate(sentence.pieces):
            if not _is_call(piece):
                continue
            others = sentence.pieces[:index] + sentence.pieces[index + 1 :]
            if any(word.lower in _LISTS["you"] for other in others for word in other):
                yield span_between(piece[0], piece[-1])


def _is_call(piece: Words) -> bool:
    if piece[0].lower not in _LISTS["calls"] or not 2 <= len(piece) <= _LONGEST_NAME:
        return False
    if piece[1].lower in _LISTS["no one"]:
        return False
    if piece[1].lower == "my":
        return len(piece) > 2 and piece[2].lower not in _LISTS["no one"] | _LISTS["oaths"]
    if piece[0].lower == "dear" and (piece[1].lower in _READERS or piece[-1].lower in _READERS):
        return False
    return piece[1].lower != "dear" or len(piece) > 2
