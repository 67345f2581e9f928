"""The plain form of `skillmix novelty`."""

from collections.abc import Sequence

from skillmix.catalog.novelty import Novelty, NoveltyInputs
from skillmix.render.numbers import expectation


def novelty_page(bound: Novelty, inputs: NoveltyInputs, assumptions: Sequence[str]) -> str:
    """The bound first, then what it stands on."""
    skills = "1 skill" if bound.k == 1 else f"{bound.k} skills"
    meaning = (
        "A Full Marks ratio above it means texts that were not all in the corpus; above "
        f"{expectation(bound.a_third_new_above)}, that more than a third were not."
        if bound.expected_occurrences < 1
        else "No ratio is above 1, so at this k the bound says nothing about new texts."
    )
    return "\n".join(
        [
            expectation(bound.expected_occurrences),
            f"is the most often that one combination of {skills} and a topic can be expected in a corpus of "
            f"{bound.tokens:.3g} tokens.",
            meaning,
            f"Inputs: skill frequency {inputs.skill_frequency:g}, topic frequency {inputs.topic_frequency:g}, "
            f"{bound.sentences:.3g} sentences.",
            "Assumptions:",
            *(f"- {assumption}" for assumption in assumptions),
        ]
    )
