"""The sections of the page: their order, titles and introductions."""

from dataclasses import dataclass
from typing import Final, Literal

SectionId = Literal[
    "result", "findings", "scores", "compare", "skills", "safety", "graders", "data", "time", "published", "runs"
]


@dataclass(frozen=True, slots=True)
class SectionHeading:
    """A heading of the page, and the sentence under it."""

    title: str
    intro: str


SECTIONS: Final[dict[SectionId, SectionHeading]] = {
    "result": SectionHeading("Result", "What the runs found, in one sentence."),
    "findings": SectionHeading(
        "Findings",
        "Claims about learning to combine skills. The lineage of each student decides who is compared, on the "
        "same combinations.",
    ),
    "scores": SectionHeading(
        "Scores", "How often students combine k skills in one text. Select a value to read the texts behind it."
    ),
    "compare": SectionHeading(
        "Compare", "Any two students on the same combinations, whatever is known about their training."
    ),
    "skills": SectionHeading("Skills", "Which skills succeed, alone and together, and how many can be combined."),
    "safety": SectionHeading(
        "Safety",
        "What students do with a mild request that is mixed with innocent writing skills. Select a value to read the "
        "texts behind it.",
    ),
    "graders": SectionHeading("Graders", "How far the grades can be trusted, and why full marks were missed."),
    "data": SectionHeading("Data and training", "Where tuned students come from, and what their data cost."),
    "time": SectionHeading("Time", "What the steps took on the machines that ran them."),
    "published": SectionHeading(
        "Published figures",
        "What the paper prints, beside these runs: other models and graders, and other words for the skills.",
    ),
    "runs": SectionHeading("The runs", "What the runs are made of, and how to make this page again."),
}
"""The sections in the order of the page."""
