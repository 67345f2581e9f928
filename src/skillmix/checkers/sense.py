"""Decide by form whether a text makes sense as prose: length, markup, verbs, word order, loops, copies."""

import re
from collections import Counter
from collections.abc import Callable, Sequence
from itertools import pairwise
from operator import eq
from typing import Final

from skillmix.checkers.english.verbs import is_complete
from skillmix.checkers.english.word_order import order_score
from skillmix.checkers.passage import Passage, Span
from skillmix.checkers.prompt_copies import PromptTexts
from skillmix.checkers.repeats import repetition_problem
from skillmix.render import plural, shortened

_FIGURES: Final = (
    "alliteration|anaphora|epiphora|epistrophe|simile|syllogism|polysyndeton|asyndeton|chiasmus|antithesis|zeugma"
    "|oxymoron|onomatopoeia|personification|rhetorical question|rhetorical device|figure of speech|conditional clause"
    "|conditional structure|conditional question|affirming conditional|conditional and"
)


_LABELS: Final = (
    "answer|explanation|prompt|topic|topics|skill|skills|definition|instructions|response|question|user|assistant|text"
    f"|example|output|sentence|gratitude|promise|repetition|conditional|metaphor|{_FIGURES}"
)


_WRITING: Final = "text|sentence|passage|paragraph|example|phrase|clause|statement|response"


_TALK_OF_TASK = re.compile(
    r"(?:^|[.!?…]\W{1,4})"
    rf"(?:(?:{_LABELS})(?: \d)?:|(?:sure|certainly|of course)!|sure, (?:i|here|let)\b)"
    r"|\b(?:"
    r"an? (?:ai|language model)\b|language models?\b|ai assistant"
    rf"|(?:this|the|each|a|an|following|given|same|short) (?:{_WRITING})s? (?:above |below |that )?"
    r"(?:uses?|shows?|demonstrates?|illustrates?|contains?|exemplif|is an?(?: perfect)? example|must|has to|should"
    r"|is a perfect|like \")"
    rf"|in this (?:{_WRITING})|writ(?:e|ing) (?:a|an|one|two|the|only|your)(?: \w+){{0,2}} (?:{_WRITING})s?\b"
    rf"|here(?: is|'s| are)(?: \w+){{0,3}} (?:{_WRITING}|prompt)s?\b"
    rf"|(?:{_FIGURES})s? (?:is|are|in this|and)\b|(?:in|uses?|using|shows?|for|of|and|an?|called|the) (?:{_FIGURES})\b"
    r"|example of (?:gratitude|a promise|promise|repetition|thanks)|use of (?:repetition|the word)"
    r"|(?:in|uses?|create) a metaphor"
    r"|skills? (?:is|are|mean|to be|in the|can|has|have|shown?)|(?:these|language|each|all|two) skills?\b|the skills\b"
    r"|(?:the|on the|given) topic (?:is|of)\b|this topic\b|(?:original|same) sentence|by the speaker\b"
    r"|the (?:speaker|writer|author) (?:uses?|promises|shows?|says|thanks)|hope this helps|let me know if you"
    r"|your task|i'd be happy to|i can help you|i (?:cannot|can't) write"
    r")",
    re.IGNORECASE | re.MULTILINE,
)


_CUES: Final = frozenset(
    word + ending
    for word in re.findall(
        r"[a-z]{4,}|ai|use",
        f"{_LABELS} {_WRITING} ai author certainly course happy help hope language speaker task use write writer",
    )
    for ending in ("", "s")
) | {"sure", "let", "writing"}


def talk_of_task(passage: Passage) -> str | None:
    """Find words that talk about the task: names of skills, replies to the prompt, or labels such as "Answer:".

    >>> from skillmix.checkers.passage import passage_of
    >>> talk_of_task(passage_of("It is warm. Answer: bread"))
    'Answer'
    """
    # Most texts have none of these words, and the regular expression is slow.
    if _CUES.isdisjoint([word.lower for word in passage.words]):
        return None
    match = _TALK_OF_TASK.search(passage.lower)
    return passage.text[match.start() : match.end()].strip(_AROUND_TALK) if match else None


_AROUND_TALK: Final = " \t\r\n.,:;!?…\"'“”‘’«»()[]*_#>-–—"


MOST_WORDS: Final = 40
"""Words that one sentence may have."""
FEWEST_WORDS: Final = 4
MOST_STUTTER: Final = 4
"""Times that a word may occur in a row."""
LEAST_ORDER: Final = -0.12
"""The lowest mean score of a text's neighbouring words (`word_order`); shuffled texts score lower."""
LEAST_ORDER_OF_SHORT: Final = -0.15
"""The same for a text below `FEW_WORDS`, since a few pairs of words prove less."""
LEAST_ORDER_OF_SENTENCE: Final = -0.25
FEW_WORDS: Final = 7
LEAST_NEW: Final = 0.55
"""The lowest share of distinct three-word runs; it leaves room for a syllogism, which repeats its premises."""
LEAST_NEW_OF_THRICE: Final = 0.68
MOST_THRICE: Final = 0.12
"""The share of three-word runs that are third or later repeats; above it, `LEAST_NEW_OF_THRICE` applies."""


def sense_problem(
    passage: Passage, shown: PromptTexts | None = None, evidence: Sequence[Span] | None = None
) -> str | None:
    """Say why a text makes no sense; None if it does.

    `shown` holds texts that it must not copy. `evidence` holds the spans of requested skills that work by repetition;
    without it, repetition is no fault unless the text runs in circles.

    >>> from skillmix.checkers.passage import passage_of
    >>> sense_problem(passage_of("The baker sleeps by day, for the bread is baked at night."))
    >>> sense_problem(passage_of("Bread the of is baker to warm the and a."))
    'its words are in no usual order'
    """
    for problem in _PROBLEMS:
        reason = problem(passage)
        if reason:
            return reason
    reason = _order(passage, evidence or ())
    if reason:
        return reason
    repeats = repetition_problem(passage, evidence) if evidence is not None else None
    return repeats or (_copy(passage, shown) if shown else None)


def form_problem(passage: Passage) -> str | None:
    """What is wrong with the form of a text from a small vocabulary: its length, markup, its end, loops.

    Such texts share their frames, so this leaves out what compares a text with English at large or with the prompt.
    """
    for problem in (_length, _markup, _end, _loop):
        reason = problem(passage)
        if reason:
            return reason
    return None


def _copy(passage: Passage, shown: PromptTexts) -> str | None:
    copy = shown.copied_by(passage)
    if copy:
        return f"{copy.words} words in a row are copied from {copy.source}"
    example = shown.example_in(passage)
    return f"it is {example} with one word changed" if example else None


def _length(passage: Passage) -> str | None:
    words = len(passage.words)
    if words < FEWEST_WORDS:
        return f"it has {plural(words, 'word')} where at least {FEWEST_WORDS} are needed"
    longest = max(len(sentence.words) for sentence in passage.sentences)
    if longest > MOST_WORDS:
        return f"a sentence has {longest} words where {MOST_WORDS} are allowed"
    return None


_MARKUP = re.compile(
    r"^[ \t]*(?:[-*•#|>]|\(?\d{1,2}[.)]\s|\(?[a-d]\)\s)|[{}|`\\]|\*\*|</?\w+>|https?:"
    r"|(?:^|[.!?]\s)(?:Step|Option|Sentence|Line|Part) [\dA-D]:",
    re.MULTILINE,
)
_SIGN = re.compile(r"[\n\r:{}|`\\*<]")
_FIRST_ITEM = re.compile(r"(?:^|\s)\(?[1a][.)]\s+\w")
_SECOND_ITEM = re.compile(r"\s\(?[2b][.)]\s+\w")


def _markup(passage: Passage) -> str | None:
    text = passage.text
    # Most texts have none of these characters, and the long regular expression is slow.
    marked = _MARKUP.search(text) if _SIGN.search(text) else _MARKUP.match(text)
    numbered = _SECOND_ITEM.search(text) and _FIRST_ITEM.search(text)
    return "it is a list, a table or code, not prose" if numbered or marked else None


def _task_talk(passage: Passage) -> str | None:
    talk = talk_of_task(passage)
    return f'it talks about the task: "{shortened(talk)}"' if talk is not None else None


_END = re.compile(r"(?:[.!?…]|--|[—–])[\"'”’»)\]]*$")


def _end(passage: Passage) -> str | None:
    if not _END.search(passage.text.rstrip()[-9:]):
        return "it breaks off: its last sentence has no end mark"
    return None


def _loop(passage: Passage) -> str | None:
    words = [word.lower for word in passage.words]
    times, word = _longest_stutter(words)
    if times > MOST_STUTTER:
        return f'the word "{shortened(word)}" occurs {times} times in a row where {MOST_STUTTER} are allowed'
    sentences = [sentence.text.lower() for sentence in passage.sentences if len(sentence.words) > 4]
    if len(set(sentences)) < len(sentences):
        return f"the same sentence occurs {max(Counter(sentences).values())} times"
    if len(words) >= 8 and _runs_in_circles(words):
        return "it runs in circles: too many of its phrases are repeated"
    return None


def _runs_in_circles(words: list[str]) -> bool:
    triples = list(zip(words, words[1:], words[2:], strict=False))
    new = len(set(triples)) / len(triples)
    if new >= LEAST_NEW_OF_THRICE:
        return False
    thrice = sum(count - 2 for count in Counter(triples).values() if count > 2)
    return new < LEAST_NEW or thrice > MOST_THRICE * len(triples)


def _longest_stutter(words: list[str]) -> tuple[int, str]:
    """The length of the longest run of one word, and the word; (1, "") if no word could exceed the limit."""
    if sum(map(eq, words, words[1:])) < 2:
        return 1, ""
    longest, repeated = 1, ""
    run = 1
    for before, word in pairwise(words):
        run = run + 1 if word == before else 1
        if run > longest:
            longest, repeated = run, word
    return longest, repeated


def _verbs(passage: Passage) -> str | None:
    without = sum(
        len(sentence.words) for sentence in passage.sentences if not is_complete(sentence.pieces, sentence.text)
    )
    # An answer in a dialogue may be one or two words.
    most = len(passage.words) * (0.5 if '"' not in passage.lower else 0.99)
    if without > most:
        return "most of it has no finite verb"
    return None


def _order(passage: Passage, evidence: Sequence[Span]) -> str | None:
    """Find words in no usual order; a figure of repetition has short clauses with bare nouns ("leaves fall")."""
    scores = [(order_score(sentence), len(sentence.words)) for sentence in passage.sentences]
    words = len(passage.words)
    mean = sum(score * size for score, size in scores) / words
    least = LEAST_ORDER if words >= FEW_WORDS else LEAST_ORDER_OF_SHORT
    if any(2 * sum(span.start <= word.start < span.end for word in passage.words) > words for span in evidence):
        least = LEAST_ORDER_OF_SENTENCE
    if mean < least or any(score < LEAST_ORDER_OF_SENTENCE and size >= FEW_WORDS for score, size in scores):
        return "its words are in no usual order"
    return None


_PROBLEMS: Final[tuple[Callable[[Passage], str | None], ...]] = (
    _length,
    _markup,
    _end,
    _task_talk,
    _loop,
    _verbs,
)
