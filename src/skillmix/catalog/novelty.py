"""Bound how often a combination of skills and a topic occurs in a training corpus (arXiv 2310.17567)."""

from dataclasses import dataclass
from typing import Final

from skillmix.errors import UserError


@dataclass(frozen=True, slots=True)
class NoveltyInputs:
    """The quantities behind the bound; the defaults are the paper's upper bounds."""

    skill_frequency: float = 0.0144
    """Largest share of sentences that show one given skill."""
    topic_frequency: float = 0.0022
    """Largest share of sentences on one given topic."""
    sentences_per_token: float = 5e10 / 1.2e12
    """Sentences per token of a corpus: at most 5e10 sentences in about 1.2e12 tokens."""


ASSUMPTIONS: Final = (
    "skills occur independently of one another and of the topic",
    "the frequencies are upper bounds, the same for every skill and every topic",
    "the training corpus is unknown; only its size enters",
    "a score that takes the best of several tries is compared with a bound for one text",
)


_MOST_SKILLS: Final = 10_000


@dataclass(frozen=True, slots=True)
class Novelty:
    """The bound, and the Full Marks ratio above which texts must be new."""

    k: int
    tokens: float
    sentences: float
    expected_occurrences: float
    """Upper bound on how often one combination occurs in the corpus."""
    a_third_new_above: float
    """Full Marks ratio above which more than a third of the texts cannot come from the corpus."""


def novelty(k: int, tokens: float, inputs: NoveltyInputs | None = None) -> Novelty:
    """Bound the expected number of occurrences of one combination of k skills and a topic.

    >>> round(novelty(5, 2e12).expected_occurrences, 2)
    0.11
    """
    inputs = inputs or NoveltyInputs()
    if not 1 <= k <= _MOST_SKILLS:
        raise UserError(f"k = {k} is not a possible number of skills.", hint=f"Choose k from 1 to {_MOST_SKILLS}.")
    if not 0 < tokens < float("inf"):
        raise UserError(f"{tokens:g} is not a number of tokens.", hint="Give a positive number such as 2e12.")
    for name in ("skill_frequency", "topic_frequency"):
        if not 0 < getattr(inputs, name) <= 1:
            raise UserError(f"{name} = {getattr(inputs, name):g} is not a share.", hint="Choose it above 0, at most 1.")
    if not 0 < inputs.sentences_per_token * tokens < float("inf"):
        raise UserError(
            f"{tokens:g} tokens with {inputs.sentences_per_token:g} sentences each do not make a corpus.",
            hint="The default is 5e10 sentences in 1.2e12 tokens; choose a rate above 0.",
        )
    sentences = tokens * inputs.sentences_per_token
    expected = inputs.skill_frequency**k * inputs.topic_frequency * sentences
    return Novelty(
        k=k,
        tokens=tokens,
        sentences=sentences,
        expected_occurrences=expected,
        a_third_new_above=1.5 * expected,
    )
