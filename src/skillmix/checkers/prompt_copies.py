"""Find texts that copy eight or more words in a row from a definition or an example of the prompt."""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from functools import cached_property
from itertools import accumulate
from typing import Final, NamedTuple

from skillmix.catalog.catalog import Skill
from skillmix.checkers.passage import Passage, Words, passage_of

COPIED_RUN: Final = 8
"""The number of consecutive words that make a copy."""


class Copy(NamedTuple):
    """The longest run of words that a text copies."""

    words: int
    source: str
    """The text that the words come from."""


class PromptTexts:
    """The texts that a prompt shows, each with a name such as 'the example of "simile"'."""

    def __init__(self, texts: Mapping[str, str]) -> None:
        self._texts = texts
        self._runs = frozenset(run for text in texts.values() for run in _runs(passage_of(text).words))

    def copied_by(self, passage: Passage) -> Copy | None:
        """Find the longest run of words that a text copies from one of these texts; None if no run is long enough.

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
            # If this run directly follows the previous run in the same source, the copy is one word longer.
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
        """The source and position of each run; only texts with a copy need them."""
        positions: dict[str, list[tuple[str, int]]] = defaultdict(list)
        for source, text in self._texts.items():
            for index, run in enumerate(_runs(passage_of(text).words)):
                positions[run].append((source, index))
        return dict(positions)


def prompt_texts(skills: Iterable[Skill]) -> PromptTexts:
    """The definitions and examples of skills."""
    texts: dict[str, str] = {}
    for skill in skills:
        texts[f'the definition of "{skill.name}"'] = skill.definition
        texts[f'the example of "{skill.name}"'] = skill.example
    return PromptTexts(texts)


def _runs(words: Words) -> list[str]:
    # Slices of one string: joining the words of every run would take three times as long.
    joined = " ".join([word.lower for word in words])
    ends = list(accumulate([len(word.lower) + 1 for word in words], initial=0))
    return [joined[start : end - 1] for start, end in zip(ends, ends[COPIED_RUN:], strict=False)]
