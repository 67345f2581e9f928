"""Find repetition that no requested skill asks for: a text may not earn its marks by saying one thing again and again.

A skill such as anaphora works by repetition, so the words inside the span that shows it count once. No skill asks for a
series of equal members ("a picnic, a picnic, and a picnic"), so that is refused whatever was requested.
"""

from collections import defaultdict
from collections.abc import Sequence
from typing import Final

from skillmix.checkers.english.words import CONJUNCTIONS, LITTLE, bare, meaning
from skillmix.checkers.passage import Passage, Sentence, Span, Word
from skillmix.render import shortened

MOST_IN_SENTENCE: Final = 2
"""Times that a content word may occur in a sentence, apart from those that a requested skill accounts for."""
MOST_RETURNING: Final = 0.3
"""The largest share of content words in a text that have occurred in their sentence before."""
FEWEST_RETURNING: Final = 3
"""Returning words below this number are no fault: in a short sentence one word is a large share."""
LONG_PIECE: Final = 3
"""A piece of this many words may not occur twice in a sentence, nor a shorter one three times."""


def repetition_problem(passage: Passage, evidence: Sequence[Span]) -> str | None:
    """Say what a text repeats although no requested skill asks for it; `evidence` has the spans of those that do.

    >>> from skillmix.checkers.passage import passage_of
    >>> repetition_problem(passage_of("The picnic was a picnic, a picnic, and a picnic."), [Span(4, 47)])
    'the words "a picnic" occur 3 times in a series'
    """
    returning = content = 0
    for sentence in passage.sentences:
        counts = _counts(sentence, evidence)
        problem = _same_pieces(sentence) or _fills_a_clause(sentence) or _too_often(counts)
        if problem:
            return problem
        content += sum(map(len, counts.values()))
        returning += sum(map(len, counts.values())) - len(counts)
    if returning >= FEWEST_RETURNING and returning >= MOST_RETURNING * content:
        return f"{returning} of its {content} content words are repetitions, and no requested skill asks for them"
    return None


def _same_pieces(sentence: Sentence) -> str | None:
    """Find a piece that occurs again, or a series whose members are the same words."""
    pieces = [tuple([word.lower for word in bare(piece)]) for piece in sentence.pieces]
    for piece in pieces[1:]:
        # A single word several times in a row is a figure of its own.
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
    """Find the third use of a word that ends a clause which already has it: "the chicken ate the chicken"."""
    for piece in sentence.pieces:
        last = piece[-1].lower
        if last not in sentence.repeated or not _content(last):
            continue
        times = sum(word.lower == last for word in sentence.words)
        if times > MOST_IN_SENTENCE and _is_same_clause([word.lower for word in piece]):
            return f'the word "{shortened(last)}" occurs {times} times in a sentence, twice in one clause'
    return None


def _is_same_clause(piece: list[str]) -> bool:
    """Whether the last word of a piece occurs earlier in it, with no conjunction between."""
    last = piece.pop()
    if last not in piece:
        return False
    between = piece[len(piece) - piece[::-1].index(last) :]
    return len(between) > 1 and CONJUNCTIONS.isdisjoint(between)


def _counts(sentence: Sentence, evidence: Sequence[Span]) -> dict[str, list[Word]]:
    """The occurrences of each content word, by stem; those inside one span of evidence count once."""
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


def _too_often(counts: dict[str, list[Word]]) -> str | None:
    for words in counts.values():
        if len(words) > MOST_IN_SENTENCE:
            word = shortened(words[0].lower)
            return f'the word "{word}" occurs {len(words)} times in a sentence, and no requested skill asks for it'
    return None


def _content(lower: str) -> str:
    return "" if lower in LITTLE or lower[0].isdigit() else meaning(lower)
