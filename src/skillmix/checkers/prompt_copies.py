"""Find texts that copy the prompt: eight words in a row of it, or an example with one word changed."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from functools import cached_property
from itertools import accumulate
from typing import Final, NamedTuple

from skillmix.catalog.catalog import Skill
from skillmix.checkers.passage import Passage, Words, passage_of

COPIED_RUN: Final = 8
"""The number of consecutive words that make a copy."""
_SHORT_RUN: Final = 3
_BROKEN_BY_A_WORD: Final = 3
"""One changed word breaks at most three of an example's three-word runs."""
_FEWEST_COMMON: Final = 3
"""Common three-word runs without which a text is no copy of an example, however short the example is."""


class Copy(NamedTuple):
    """The longest run of words that a text copies."""

    words: int
    source: str
    """The text that the words come from."""


class PromptTexts:
    """The texts that a prompt shows, each with a name such as 'the example of "simile"'.

    `examples` are those among them that a student could hand in with a word changed.
    """

    def __init__(self, texts: Mapping[str, str], *, examples: Iterable[str] = ()) -> None:
        self._texts = texts
        self._runs = frozenset(run for text in texts.values() for run in _runs(passage_of(text).words))
        self._examples = {name: passage_of(texts[name]).words for name in examples}
        self._examples_with: dict[str, list[str]] = defaultdict(list)
        for name, words in self._examples.items():
            for run in set(_runs(words, _SHORT_RUN)):
                self._examples_with[run].append(name)

    def copied_by(self, passage: Passage) -> Copy | None:
        """Find the longest run of words that a text copies from one of these texts; None if no run is long enough.

        >>> shown = PromptTexts({"the example": "We waited three hours, no, four hours for the ferry."})
        >>> shown.copied_by(passage_of("He waited three hours, no, four hours for the bus."))
        Copy(words=8, source='the example')
        """
        runs = _runs(passage.words)
        return None if self._runs.isdisjoint(runs) else self._longest(runs)

    def example_in(self, passage: Passage) -> str | None:
        """Name the example that a text repeats with at most one word changed; None if it repeats none.

        >>> shown = PromptTexts({"the example": "We waited three long hours for the ferry."}, examples=["the example"])
        >>> shown.example_in(passage_of("We waited three cold hours for the ferry, and then it came."))
        'the example'
        """
        common = Counter(
            name for run in set(_runs(passage.words, _SHORT_RUN)) for name in self._examples_with.get(run, ())
        )
        # Few texts have most runs of an example, so the slow comparison is rare.
        near = [name for name, count in common.items() if count >= self._fewest_common(name)]
        return next(
            (n for n in near if _in_order(self._examples[n], passage.words) >= len(self._examples[n]) - 1), None
        )

    def _fewest_common(self, example: str) -> int:
        runs = len(set(_runs(self._examples[example], _SHORT_RUN)))
        return max(_FEWEST_COMMON, runs - _BROKEN_BY_A_WORD)

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
    definitions: dict[str, str] = {}
    examples: dict[str, str] = {}
    for skill in skills:
        definitions[f'the definition of "{skill.name}"'] = skill.definition
        examples[f'the example of "{skill.name}"'] = skill.example
    return PromptTexts({**definitions, **examples}, examples=examples)


def _runs(words: Words, length: int = COPIED_RUN) -> list[str]:
    # Slices of one string: joining the words of every run would take three times as long.
    joined = " ".join([word.lower for word in words])
    ends = list(accumulate([len(word.lower) + 1 for word in words], initial=0))
    return [joined[start : end - 1] for start, end in zip(ends, ends[length:], strict=False)]


def _in_order(example: Words, text: Words) -> int:
    """The number of words of an example that a text has in the same order: their longest common subsequence."""
    lengths = [0] * (len(text) + 1)
    for word in example:
        before = lengths
        lengths = [0]
        for index, other in enumerate(text):
            is_same = word.lower == other.lower
            lengths.append(before[index] + 1 if is_same else max(before[index + 1], lengths[index]))
    return lengths[-1]
