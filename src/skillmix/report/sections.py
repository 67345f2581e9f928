"""The sections of the page: their order, titles and introductions."""

from dataclasses import dataclass
from typing import Final, Literal

SectionId = Literal["findings", "scores", "compare", "skills", "graders", "data", "time", "published"]


@dataclass(frozen=True, slots=True)
class SectionHeading:
    """A heading of the page, and the sentence under it."""

    title: str
    intro: str


SECTIONS: Final[dict[SectionId, SectionHeading]] = {
    "findings": SectionHeading(
        "Findings",
        "Six claims about learning to combine skills, decided by lineage and by paired differences on the same "
        "combinations, never by names.",
    ),
    "scores": SectionHeading(
        "Scores", "How often students combine k skills in one text. Click a value to read the texts behind it."
    ),
    "compare": SectionHeading(
        "Compare", "Any two students on the same combinations, whatever is known about their training."
    ),
    "skills": SectionHeading("Skills", "Which skills succeed, alone and together, and how many can be combined."),
    "graders": SectionHeading("Graders", "How far the grades can be trusted, and why full marks were missed."),
    "data": SectionHeading("Data and training", "Where tuned students come from, and what their data cost."),
    "time": SectionHeading("Time", "What the steps took on the machines that ran them."),
    "published": SectionHeading(
        "Published figures",
        "What the paper prints for its own models and graders: other models, and other words for the skills.",
    ),
}
"""The sections in the order of the page."""
