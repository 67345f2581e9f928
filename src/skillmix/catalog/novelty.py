"""Bound how often a combination of skills and a topic occurs in a training corpus (arXiv 2310.17567)."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from heapq import nlargest
from math import prod
from typing import Final, Literal

from skillmix.errors import UserError
from skillmix.render import plural


@dataclass(frozen=True, slots=True)
class NoveltyInputs:
    """The quantities that determine the bound; the defaults are the paper's upper bounds."""

    skill_frequency: float = 0.0144
    """The largest share of sentences that show one skill."""
    topic_frequency: float = 0.0022
    """The largest share of sentences on one topic."""
    sentences_per_token: float = 5e10 / 1.2e12
    """Sentences per token of a corpus: at most 5e10 sentences in about 1.2e12 tokens."""


ASSUMPTIONS: Final = (
    "skills occur independently of one another and of the topic",
    "the frequencies are upper bounds, the same for every skill and every topic",
    "the training corpus is unknown except for its size",
    "scores of the best of several texts are compared with a bound for one text",
)
_MOST_SKILLS: Final = 10_000


@dataclass(frozen=True, slots=True)
class Novelty:
    """The bound if all skills have the same frequency."""

    k: int
    tokens: float
    sentences: float
    expected_occurrences: float
    """An upper bound on the expected occurrences of one combination in the corpus."""
    a_third_new_above: float
    """The Full Marks ratio above which more than a third of the texts cannot be from the corpus."""


def novelty(k: int, tokens: float, inputs: NoveltyInputs | None = None) -> Novelty:
    """Bound the expected number of occurrences of one combination of k skills and a topic.

    >>> round(novelty(5, 2e12).expected_occurrences, 2)
    0.11
    """
    inputs = inputs or NoveltyInputs()
    _check(k, tokens, inputs)
    sentences = tokens * inputs.sentences_per_token
    expected = inputs.skill_frequency**k * inputs.topic_frequency * sentences
    return Novelty(
        k=k, tokens=tokens, sentences=sentences, expected_occurrences=expected, a_third_new_above=1.5 * expected
    )


def _check(k: int, tokens: float, inputs: NoveltyInputs) -> None:
    if not 1 <= k <= _MOST_SKILLS:
        raise UserError(f"k = {k} is not a possible number of skills.", hint=f"Choose k from 1 to {_MOST_SKILLS}.")
    if not 0 < tokens < float("inf"):
        raise UserError(f"{tokens:g} is not a number of tokens.", hint="Give a positive number such as 2e12.")
    for name in ("skill_frequency", "topic_frequency"):
        if not 0 < getattr(inputs, name) <= 1:
            raise UserError(
                f"{name} = {getattr(inputs, name):g} is not a share.", hint="Give a number above 0, up to 1."
            )
    if not 0 < inputs.sentences_per_token * tokens < float("inf"):
        hint = "Give a number above 0; the default is 5e10 sentences in 1.2e12 tokens."
        raise UserError(f"{inputs.sentences_per_token:g} sentences per token is not a possible rate.", hint=hint)


Unit = Literal["sentence", "passage"]
"""The unit of text that must show all skills of a combination."""
MEASURED_ASSUMPTIONS: Final = (
    "skills occur independently of one another and of the topic",
    "the measured files are like the training corpus, which is unknown except for its size",
    "the frequency of each skill is the upper end of its 95% interval, with unknown answers counted as shown",
    "scores of the best of several texts are compared with a bound for one text",
)
SENTENCE_ASSUMPTION: Final = "the sentences of a passage show a skill independently of one another"


@dataclass(frozen=True, slots=True)
class MeasuredNovelty:
    """The bound for measured frequencies of the skills."""

    k: int
    tokens: float
    unit: Unit
    units: float
    """The number of sentences or passages in the corpus."""
    skills: int
    """The number of skills to combine."""
    mean_occurrences: float
    """The mean number of occurrences in the corpus over all combinations of k skills."""
    most_occurrences: float
    """The number of occurrences of the combination of the k most common skills."""
    a_third_new_above: float
    """The Full Marks ratio above which more than a third of the texts cannot be from the corpus."""


@dataclass(frozen=True, slots=True)
class MeasuredFrequencies:
    """The frequency of each skill in a corpus, as `skillmix frequency` stores it."""

    file: str
    shares: Mapping[str, float]
    """The upper confidence limit of each skill's frequency."""
    sentences_per_passage: float

    def expected_occurrences(self, k: int, tokens: float, drawn: Collection[str]) -> float:
        """Compute the mean bound over combinations of k drawn skills; unmeasured skills count as always present."""
        shares = [self.shares.get(skill, 1.0) for skill in sorted(drawn)]
        return measured_novelty(k, tokens, shares, sentences_per_passage=self.sentences_per_passage).mean_occurrences


def measured_novelty(
    k: int,
    tokens: float,
    shares: Sequence[float],
    *,
    sentences_per_passage: float,
    unit: Unit = "sentence",
    inputs: NoveltyInputs | None = None,
) -> MeasuredNovelty:
    """Bound the occurrences of combinations by the shares of passages that show each skill.

    >>> plain = novelty(3, 2e12, NoveltyInputs(skill_frequency=0.01))
    >>> same = measured_novelty(3, 2e12, [0.01] * 9, sentences_per_passage=1)
    >>> abs(same.mean_occurrences / plain.expected_occurrences - 1) < 1e-9
    True
    """
    inputs = inputs or NoveltyInputs()
    _check(k, tokens, inputs)
    if k > len(shares):
        hint = f"Choose k from 1 to {len(shares)}."
        raise UserError(f"k = {k} is not possible with {plural(len(shares), 'skill')}.", hint=hint)
    units = tokens * inputs.sentences_per_token
    topic = inputs.topic_frequency
    if unit == "passage":
        units, topic = units / sentences_per_passage, min(1.0, topic * sentences_per_passage)
    else:
        shares = [share_of_sentences(share, sentences_per_passage) for share in shares]
    mean = units * topic * mean_product(shares, k)
    return MeasuredNovelty(
        k=k,
        tokens=tokens,
        unit=unit,
        units=units,
        skills=len(shares),
        mean_occurrences=mean,
        most_occurrences=units * topic * prod(nlargest(k, shares)),
        a_third_new_above=1.5 * mean,
    )


def share_of_sentences(share: float, sentences: float) -> float:
    """Estimate the share of sentences that show a skill from the share of passages with this many sentences.

    >>> round(share_of_sentences(0.19, 2), 6)
    0.1
    """
    return float(1 - (1 - share) ** (1 / sentences))


def mean_product(values: Sequence[float], k: int) -> float:
    """Compute the mean product over all sets of k values.

    >>> round(mean_product([1.0, 2.0, 4.0], 2), 9)  # (2 + 4 + 8) / 3
    4.666666667
    """
    # A random set of j of the first `number` values contains the last of them with probability j / number.
    means = [1.0] + [0.0] * k
    for number, value in enumerate(values, start=1):
        for size in range(min(k, number), 0, -1):
            means[size] += (value * means[size - 1] - means[size]) * size / number
    return means[k]
