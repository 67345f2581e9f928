"""Texts with their points, for a terminal."""

from collections.abc import Sequence
from dataclasses import dataclass

from skillmix.render.untrusted import one_line


@dataclass(frozen=True, slots=True)
class TextRow:
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


def text_page(texts: Sequence[TextRow]) -> str:
    """One paragraph for each text."""
    return "\n\n".join(_paragraph(text) for text in texts) or "There are no graded texts."


def _paragraph(text: TextRow) -> str:
    lines = [f"{text.student}, k = {len(text.skills)}, on {text.topic}: {one_line(text.text)}"]
    for name, point in text.points.items():
        shown = grounds(text.evidence.get(name), text.reasons.get(name))
        lines.append(f"  {_SIGNS[point]} {name}" + (f": {shown}" if shown else ""))
    return "\n".join(lines)


def grounds(evidence: str | None, reason: str | None) -> str:
    """The words that show a skill, the reason why a point was denied, or both: a skill that is named may be shown too.

    >>> grounds("as hard as a bench", 'it names the skill "simile"')
    '“as hard as a bench”; it names the skill "simile"'
    """
    shown = [f"“{one_line(evidence)}”"] if evidence else []
    return "; ".join([*shown, one_line(reason)] if reason else shown)


_SIGNS = {True: "+", False: "-", None: "?"}
