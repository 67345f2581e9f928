"""Texts that copy what the prompt shows: so many words in a row from a definition or an example."""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from functools import cached_property
from itertools import accumulate
from typing import Final, NamedTuple

from skillmix.catalog.catalog import Skill
from skillmix.checkers.passage import Passage, Words, passage_of

COPIED_RUN: Final = 8
"""So many words in a row as in the prompt are a copy."""


class Copy(NamedTuple):
    """The longest copied run of a text."""

    words: int
    source: str
    """What it is copied from."""


class PromptTexts:
    """The texts that a prompt shows, by what they are, such as 'the example of "simile"'."""

    def __init__(self, texts: Mapping[str, str]) -> None:
        self._texts = texts
        self._runs = frozenset(run for text in texts.values() for run in _runs(passage_of(text).words))

    def copied_by(self, passage: Passage) -> Copy | None:
        """Find the longest run of words that a text shares with one of these texts, if it is long enough for a copy.

        >>> shown = PromptTexts({"the example": "We waited three hours, no, four hours for the ferry."})
        >>> shown.copied_by(passage_of("He waited three hours, no, four hours for the bus."))
        Copy(words=8, source='the example')
        """
        runs = _runs(passage.words)
        return None if self._runs.isdisjoint(runs) else self._longest(runs)

    def _longest(self, runs: list[str]) -> Copy:
        longest = Copy(0, "")
        before: dict[tuple[str, int], int] = {}
        for run in runs:
            # A run that follows the one before it in the same source makes that copy one word longer.
            lengths = {
                (source, index): before.get((source, index - 1), COPIED_RUN - 1) + 1
                for source, index in self._positions.get(run, ())
            }
            for (source, _), words in lengths.items():
                if words > longest.words:
                    longest = Copy(words, source)
            before = lengths
        return longest

    @cached_property
    def _positions(self) -> Mapping[str, list[tuple[str, int]]]:
        """Where each run stands; only texts with a copy need it."""
        positions: dict[str, list[tuple[str, int]]] = defaultdict(list)
        for source, text in self._texts.items():
            for index, run in enumerate(_runs(passage_of(text).words)):
                positions[run].append((source, index))
        return dict(positions)


def prompt_texts(skills: Iterable[Skill]) -> PromptTexts:
    """The definitions and examples of a catalogue's skills."""
    texts: dict[str, str] = {}
    for skill in skills:
        texts[f'the definition of "{skill.name}"'] = skill.definition
        texts[f'the example of "{skill.name}"'] = skill.example
    return PromptTexts(texts)


def _runs(words: Words) -> list[str]:
    # Cut out of one string: joining the words of every run would take three times as long.
    joined = " ".join([word.lower for word in words])
    ends = list(accumulate([len(word.lower) + 1 for word in words], initial=0))
    return [joined[start : end - 1] for start, end in zip(ends, ends[COPIED_RUN:], strict=False)]
