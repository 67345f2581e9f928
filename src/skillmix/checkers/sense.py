"""Decide by form whether a text makes sense as prose: length, markup, verbs, word order, loops, copies.

For word order, each frequent word is a class by itself, other known words share a few classes with words that have the
same neighbors, and unknown words are classed by their endings. `bench/word_order.py` makes the table.

A skill such as anaphora works by repetition, so the words inside the span that shows it count once. No skill needs a
series of equal members ("a picnic, a picnic, and a picnic"), so such a series is always rejected.
"""

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from itertools import accumulate, groupby, pairwise
from operator import itemgetter
from typing import Final, NamedTuple

from skillmix.catalog.catalog import Skill
from skillmix.checkers.passage import Passage, Sentence, Span, Word, Words, passage_of
from skillmix.checkers.verbs import is_complete, is_finite
from skillmix.checkers.words import CONJUNCTIONS, LITTLE, bare, english, is_number, meaning
from skillmix.render import plural, shortened

COPIED_RUN: Final = 8
"""The smallest number of consecutive words that counts as a copy."""
_SHORT_RUN: Final = 3
_BROKEN_BY_A_WORD: Final = 3
"""The maximum number of 3-grams of an example that one changed word can affect."""
_FEWEST_COMMON: Final = 3
"""The minimum number of 3-grams that a copy shares with an example, however short the example is."""


class Copy(NamedTuple):
    """The longest sequence of words that a text copies."""

    words: int
    source: str
    """The name of the text that the words come from."""


class PromptTexts:
    """The texts that a prompt shows, each with a name such as 'the example of "simile"'.

    `examples` are the names of the texts that a student could submit with one word changed.
    """

    def __init__(self, texts: Mapping[str, str], *, examples: Iterable[str] = ()) -> None:
        self._places: dict[str, list[tuple[str, int]]] = defaultdict(list)
        """The source and index of each n-gram."""
        for source, text in texts.items():
            for index, run in enumerate(_runs(passage_of(text).words)):
                self._places[run].append((source, index))
        self._examples = {name: passage_of(texts[name]).words for name in examples}
        self._examples_with: dict[str, list[str]] = defaultdict(list)
        for name, words in self._examples.items():
            for run in set(_runs(words, _SHORT_RUN)):
                self._examples_with[run].append(name)

    def copied_by(self, passage: Passage) -> Copy | None:
        """Find the longest sequence of words that a text copies from these texts; None if no sequence is long enough.

        >>> shown = PromptTexts({"the example": "We waited three hours, no, four hours for the ferry."})
        >>> shown.copied_by(passage_of("He waited three hours, no, four hours for the bus."))
        Copy(words=8, source='the example')
        """
        longest = Copy(0, "")
        before: dict[tuple[str, int], int] = {}
        for run in _runs(passage.words):
            # If this n-gram directly follows the previous one in the same source, the copy is one word longer.
            lengths = {
                (source, index): before.get((source, index - 1), COPIED_RUN - 1) + 1
                for source, index in self._places.get(run, ())
            }
            for (source, _), words in lengths.items():
                if words > longest.words:
                    longest = Copy(words, source)
            before = lengths
        return longest if longest.words else None

    def example_in(self, passage: Passage) -> str | None:
        """Return the example that a text repeats with at most one word changed; None if there is none.

        >>> shown = PromptTexts({"the example": "We waited three long hours for the ferry."}, examples=["the example"])
        >>> shown.example_in(passage_of("We waited three cold hours for the ferry, and then it came."))
        'the example'
        """
        common = Counter(
            name for run in set(_runs(passage.words, _SHORT_RUN)) for name in self._examples_with.get(run, ())
        )
        for name, count in common.items():
            words = self._examples[name]
            fewest = max(_FEWEST_COMMON, len(set(_runs(words, _SHORT_RUN))) - _BROKEN_BY_A_WORD)
            if count >= fewest and _in_order(words, passage.words) >= len(words) - 1:
                return name
        return None


def prompt_texts(skills: Iterable[Skill]) -> PromptTexts:
    """Collect the definitions and examples of skills."""
    definitions: dict[str, str] = {}
    examples: dict[str, str] = {}
    for skill in skills:
        definitions[f'the definition of "{skill.name}"'] = skill.definition
        examples[f'the example of "{skill.name}"'] = skill.example
    return PromptTexts({**definitions, **examples}, examples=examples)


def _runs(words: Words, length: int = COPIED_RUN) -> list[str]:
    # Each n-gram is a slice of one string, because joining the words of every n-gram would take three times as long.
    joined = " ".join([word.lower for word in words])
    ends = list(accumulate([len(word.lower) + 1 for word in words], initial=0))
    return [joined[start : end - 1] for start, end in zip(ends, ends[length:], strict=False)]


def _in_order(example: Words, text: Words) -> int:
    """Count the words of an example that a text has in the same order: their longest common subsequence."""
    lengths = [0] * (len(text) + 1)
    for word in example:
        before = lengths
        lengths = [0]
        for index, other in enumerate(text):
            is_same = word.lower == other.lower
            lengths.append(before[index] + 1 if is_same else max(before[index + 1], lengths[index]))
    return lengths[-1]


DIGITS: Final = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
"""The characters that encode log-odds in the data file, from the lowest value to the highest."""
STEP: Final = 0.125
LOWEST: Final = -len(DIGITS) // 2 * STEP

ENDINGS: Final = ("ing", "ed", "ly", "tion", "ness", "ment", "ful", "ous", "able", "ive", "ity", "al", "er", "s", "y")
OTHER_CLASSES: Final = (".", "?", ",", ";", '"', "number", "name", "other", *(f"-{ending}" for ending in ENDINGS))
"""Classes that are not words: marks (the end mark also precedes the first word), numbers, endings.

A question has its own mark, because its word order differs: "Were you", "do they?".
"""

_VERB: Final = "makes"
"""A word that represents the class of verbs in -s."""
_HARDLY: Final = -2.0
_DOUBT: Final = 5
"""The number of neutral pairs added to each sentence, because a few words prove little."""


class WordOrder(NamedTuple):
    """Word classes and the log-odds of each pair of neighboring classes."""

    classes: dict[str, int]
    """The class of each lower-case word, and of each other class by its name."""
    log_odds: tuple[tuple[float, ...], ...]


@cache
def word_order() -> WordOrder:
    """Return the word-order table of the package."""
    stored = english("word_order")
    classes = {word: number for number, words in enumerate(stored["classes"]) for word in words.split()}
    # Nearly impossible pairs ("the of") get more weight than unusual ones.
    odds = {digit: LOWEST + STEP * index for index, digit in enumerate(DIGITS)}
    values = {digit: value + min(value - _HARDLY, 0) for digit, value in odds.items()}
    return WordOrder(classes, tuple(tuple(values[digit] for digit in row) for row in stored["log_odds"]))


def order_score(sentence: Sentence) -> float:
    """Compute the mean log-odds of a sentence's neighboring words: above 0 for prose, below 0 for shuffled words."""
    classes, log_odds = word_order()
    order = tuple(symbols(sentence, classes))
    # Each pair counts once, so that repeating an unusual phrase for effect does not make it more unusual.
    pairs = set(pairwise(order))
    return sum([log_odds[before][after] for before, after in pairs]) / (len(pairs) + _DOUBT)


def symbols(sentence: Sentence, classes: dict[str, int]) -> Iterator[int]:
    """Yield the classes of a sentence's words and marks, in order, between two end marks."""
    ends = classes["?" if "?" in sentence.text[-_LONGEST_END_MARK:] else "."]
    yield ends
    offset = sentence.start
    end = offset
    text = sentence.text
    for index, (_, lower, start, word_end) in enumerate(sentence.words):
        if index and start - end > 1:
            gap = text[end - offset : start - offset]
            mark = "," if gap == ", " else mark_class(gap)
            if mark:
                yield classes[mark]
        known = classes.get(lower)
        yield classes[_unknown(sentence.words, index, classes)] if known is None else known
        end = word_end
    yield ends


_LONGEST_END_MARK: Final = 3
"""The number of last characters of a sentence that may contain its end mark and closing quotes."""


def mark_class(gap: str) -> str:
    """Return the class of the strongest mark between two words; empty for blanks alone."""
    if any(mark in gap for mark in ".!…"):
        return "."
    if "?" in gap:
        return "?"
    if any(mark in gap for mark in ";:—–-"):
        return ";"
    if "," in gap:
        return ","
    return "" if gap.isspace() else '"'


def _unknown(words: Words, index: int, classes: dict[str, int]) -> str:
    word = words[index]
    if word.text[0].isdigit():
        return "number"
    if index and word.text[0].isupper():
        return "name"
    fitting = (one for one in ENDINGS if word.lower.endswith(one) and len(word.lower) > len(one) + 2)
    ending = f"-{found}" if (found := next(fitting, None)) else "other"
    # "checks" has the same neighbors as "makes", not as "charts".
    return _VERB if ending == "-s" and _VERB in classes and is_finite(words, index) else ending


MOST_IN_SENTENCE: Final = 2
"""The maximum number of uses of a content word in a sentence, not counting uses that a requested skill requires."""
MOST_RETURNING: Final = 0.3
"""The maximum share of a text's content words that repeat an earlier word of the same sentence."""
FEWEST_RETURNING: Final = 3
"""Fewer repeated words than this are allowed, because one word is a large share of a short sentence."""
LONG_PIECE: Final = 3
"""A piece of at least this many words may not occur twice in a sentence; a shorter one may not occur three times."""


def repetition_problem(passage: Passage, evidence: Sequence[Span]) -> str | None:
    """Describe a repetition that no requested skill needs; `evidence` lists the spans of skills that need repetition.

    >>> from skillmix.checkers.passage import passage_of
    >>> repetition_problem(passage_of("The picnic was a picnic, a picnic, and a picnic."), [Span(4, 47)])
    'the words "a picnic" occur 3 times in a series'
    """
    returning = content = 0
    for sentence in passage.sentences:
        counts = _counts(sentence, evidence)
        problem = _same_pieces(sentence) or _fills_a_clause(sentence)
        if problem:
            return problem
        for words in counts.values():
            if len(words) > MOST_IN_SENTENCE:
                word = shortened(words[0].lower)
                return f'the word "{word}" occurs {len(words)} times in a sentence, and no requested skill asks for it'
        content += sum(map(len, counts.values()))
        returning += sum(map(len, counts.values())) - len(counts)
    if returning >= FEWEST_RETURNING and returning >= MOST_RETURNING * content:
        return f"{returning} of its {content} content words are repetitions, and no requested skill asks for them"
    return None


def _same_pieces(sentence: Sentence) -> str | None:
    """Find a piece that occurs twice, or a series whose members are the same words."""
    pieces = [tuple([word.lower for word in bare(piece)]) for piece in sentence.pieces]
    for piece in pieces[1:]:
        # A single word several times in a row is a figure of speech.
        if len(piece) == 1 or not any(map(_content, piece)):
            continue
        times = pieces.count(piece)
        if len(piece) < LONG_PIECE:
            # "The picnic was a hoot, a hoot, and a hoot": the first member ends the first piece.
            times = sum(other[-len(piece) :] == piece for other in pieces)
        if times >= (2 if len(piece) >= LONG_PIECE else 3):
            return f'the words "{shortened(" ".join(piece))}" occur {times} times in a series'
    return None


def _fills_a_clause(sentence: Sentence) -> str | None:
    """Find the third use of a word that ends a clause which already contains it: "the chicken ate the chicken"."""
    for piece in sentence.pieces:
        last = piece[-1].lower
        times = sum(word.lower == last for word in sentence.words)
        if times <= MOST_IN_SENTENCE or not _content(last):
            continue
        earlier = [index for index, word in enumerate(piece[:-1]) if word.lower == last]
        between = [word.lower for word in piece[earlier[-1] + 1 : -1]] if earlier else []
        if len(between) > 1 and CONJUNCTIONS.isdisjoint(between):
            return f'the word "{shortened(last)}" occurs {times} times in a sentence, twice in one clause'
    return None


def _counts(sentence: Sentence, evidence: Sequence[Span]) -> dict[str, list[Word]]:
    """Count each content word by stem, where all occurrences inside one span of evidence count once."""
    counts: defaultdict[str, list[Word]] = defaultdict(list)
    inside: set[str] = set()
    for word in sentence.words:
        stem = _content(word.lower)
        if not stem:
            continue
        if any(start <= word.start and word.end <= end for start, end in evidence):
            if stem in inside:
                continue
            inside.add(stem)
        counts[stem].append(word)
    return counts


def _content(lower: str) -> str:
    return "" if lower in LITTLE or is_number(lower) else meaning(lower)


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


def talk_of_task(passage: Passage) -> str | None:
    """Find words that talk about the task: names of skills, replies to the prompt, or labels such as "Answer:".

    >>> from skillmix.checkers.passage import passage_of
    >>> talk_of_task(passage_of("It is warm. Answer: bread"))
    'it talks about the task: "Answer"'
    """
    match = _TALK_OF_TASK.search(passage.lower)
    talk = passage.text[match.start() : match.end()].strip(_AROUND_TALK) if match else None
    return None if talk is None else f'it talks about the task: "{shortened(talk)}"'


_AROUND_TALK: Final = " \t\r\n.,:;!?…\"'“”‘’«»()[]*_#>-–—"


MOST_WORDS: Final = 40
"""The maximum number of words in a sentence."""
FEWEST_WORDS: Final = 4
MOST_STUTTER: Final = 4
"""The maximum number of times that a word may occur in a row."""
LEAST_ORDER: Final = -0.12
"""The lowest allowed mean score of a text's neighboring words (`word_order`). Shuffled texts score lower."""
LEAST_ORDER_OF_SHORT: Final = -0.15
"""The lowest allowed mean score of a text below `FEW_WORDS`, because a few pairs of words prove less."""
LEAST_ORDER_OF_SENTENCE: Final = -0.25
FEW_WORDS: Final = 7
LEAST_NEW: Final = 0.55
"""The lowest allowed share of distinct 3-grams, low enough for a syllogism, which repeats its premises."""
LEAST_NEW_OF_THRICE: Final = 0.68
MOST_THRICE: Final = 0.12
"""The share of 3-grams that are third or later repeats above which `LEAST_NEW_OF_THRICE` applies."""


def sense_problem(
    passage: Passage, shown: PromptTexts | None = None, evidence: Sequence[Span] | None = None
) -> str | None:
    """Return why a text makes no sense; None if it makes sense.

    `shown` contains texts that the text must not copy. `evidence` contains the spans of requested skills that work by
    repetition. Without `evidence`, repetition is allowed unless the text runs in circles.

    >>> from skillmix.checkers.passage import passage_of
    >>> sense_problem(passage_of("The baker sleeps by day, for the bread is baked at night."))
    >>> sense_problem(passage_of("Bread the of is baker to warm the and a."))
    'its words are in no usual order'
    """
    reasons = (problem(passage) for problem in (_length, _markup, _end, talk_of_task, _loop, _verbs))
    reason = next(filter(None, reasons), None) or _order(passage, evidence or ())
    if reason is None and evidence is not None:
        reason = repetition_problem(passage, evidence)
    if reason is not None or shown is None:
        return reason
    copy = shown.copied_by(passage)
    if copy:
        return f"{copy.words} words in a row are copied from {copy.source}"
    example = shown.example_in(passage)
    return f"it is {example} with one word changed" if example else None


def form_problem(passage: Passage) -> str | None:
    """Describe a fault in the form of a text from a small vocabulary: its length, markup, end, or loops.

    Such texts share their sentence patterns, so no check compares them with general English or with the prompt.
    """
    return _length(passage) or _markup(passage) or _end(passage) or _loop(passage)


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
_FIRST_ITEM = re.compile(r"(?:^|\s)\(?[1a][.)]\s+\w")
_SECOND_ITEM = re.compile(r"\s\(?[2b][.)]\s+\w")


def _markup(passage: Passage) -> str | None:
    text = passage.text
    numbered = _SECOND_ITEM.search(text) and _FIRST_ITEM.search(text)
    return "it is a list, a table or code, not prose" if numbered or _MARKUP.search(text) else None


_END = re.compile(r"(?:[.!?…]|--|[—–])[\"'”’»)\]]*$")


def _end(passage: Passage) -> str | None:
    if not _END.search(passage.text.rstrip()[-9:]):
        return "it breaks off: its last sentence has no end mark"
    return None


def _loop(passage: Passage) -> str | None:
    words = [word.lower for word in passage.words]
    times, word = max(((len(list(run)), word) for word, run in groupby(words)), key=itemgetter(0))
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


def _verbs(passage: Passage) -> str | None:
    without = sum(
        len(sentence.words) for sentence in passage.sentences if not is_complete(sentence.pieces, sentence.text)
    )
    # A reply in a dialogue may be one or two words.
    most = len(passage.words) * (0.5 if '"' not in passage.lower else 0.99)
    if without > most:
        return "most of it has no finite verb"
    return None


def _order(passage: Passage, evidence: Sequence[Span]) -> str | None:
    """Find words in an unusual order, but allow short clauses such as "leaves fall" in a figure of repetition."""
    scores = [(order_score(sentence), len(sentence.words)) for sentence in passage.sentences]
    words = len(passage.words)
    mean = sum(score * size for score, size in scores) / words
    least = LEAST_ORDER if words >= FEW_WORDS else LEAST_ORDER_OF_SHORT
    if any(2 * sum(span.start <= word.start < span.end for word in passage.words) > words for span in evidence):
        least = LEAST_ORDER_OF_SENTENCE
    if mean < least or any(score < LEAST_ORDER_OF_SENTENCE and size >= FEW_WORDS for score, size in scores):
        return "its words are in no usual order"
    return None
