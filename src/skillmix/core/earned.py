"""A text with everything that was decided about it."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class EarnedText:
    """One student's text under one grader."""

    student: str
    grader: str
    skills: tuple[str, ...]
    topic: str
    generation: int
    text: str
    points: dict[str, bool | None]
    """By criterion; None is undecided."""
    evidence: dict[str, str]
    """The words that show a skill, where code found them."""
    reasons: dict[str, str]
    """Why a point was denied, by criterion, where code denied it."""
    full_marks: float | None
    skill_fraction: float | None
