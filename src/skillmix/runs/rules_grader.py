"""Graders that are code: `rules:` decides all points, `rules:SPEC` those of skills with a checker and a model the rest.

A verdict is no call: it is computed from the text whenever a run is read.
"""

from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Protocol

from skillmix.catalog.catalog import Catalog, remember_figures
from skillmix.catalog.own_code import remember_trusted, require_trust
from skillmix.checkers.judge import Judge, Verdict
from skillmix.checkers.registry import checker_of
from skillmix.checkers.sense import prompt_texts
from skillmix.errors import UserError
from skillmix.grading.reader import Reading


class CodeVerdict(Protocol):
    """The decisions of code on one text, as far as points depend on them."""

    @property
    def evidence(self) -> Container[str]:
        """The requested skills that have a checker."""
        ...

    @property
    def topic(self) -> object:
        """The words about the topic; None if there are none."""
        ...

    @property
    def nonsense(self) -> str | None:
        """Why the text does not make sense; None if it does."""
        ...

    @property
    def reasons(self) -> Mapping[str, str]:
        """The reason for each point that code denies, by criterion."""
        ...

    def earns(self, skill: str) -> bool | None:
        """Whether code gives the point for a skill; None for a skill without a checker."""
        ...

    def is_woven(self, skills: Sequence[str]) -> bool | None:
        """Whether the text shows all its skills about the topic; None if a skill without a checker leaves it open."""
        ...


def judge_of(catalog: Catalog) -> Judge:
    """The judge of a catalogue's texts; one with code of its own must be trusted."""
    require_trust(catalog.code)
    remember_trusted(catalog.code)  # in a worker process, the catalogue brings it
    remember_figures(catalog.name, catalog.figures)
    requires_woven = catalog.woven == "required"
    shown = prompt_texts(catalog.skills)
    return Judge(catalog.vocabulary, shown, requires_woven=requires_woven, figures=catalog.figures)


class RulesGrader:
    """Grades texts of one catalogue."""

    def __init__(self, catalog: Catalog) -> None:
        self.judge = judge_of(catalog)

    def verdict(self, text: str, *, skills: Iterable[str], topic: str) -> Verdict:
        """The points of a text, with the words that earn them."""
        return self.judge.judge(text, skills=skills, topic=topic)


def reading_of(verdict: CodeVerdict, skills: Iterable[str]) -> Reading:
    """A verdict in the form of a grader's reading; the length point is counted elsewhere, for every grader."""
    shown = [_point(verdict, skill) for skill in skills]
    if None in shown:
        return Reading(None, "a skill has no checker")
    points = (*shown, float(verdict.topic is not None), float(verdict.nonsense is None), None)
    return Reading(points, None, (verdict.nonsense,) if verdict.nonsense else ())


def applicable_reasons(verdict: CodeVerdict, *, is_alone: bool) -> Mapping[str, str]:
    """Why code denied points: all of them if it decides alone, else those of skills with a checker."""
    return {name: why for name, why in verdict.reasons.items() if is_alone or name in verdict.evidence}


def require_checkers(catalog: Catalog, skills: Iterable[str], grader: str) -> None:
    """Refuse `rules:` if a skill has no checker, or if the catalogue's own checkers are not trusted."""
    require_trust(catalog.code)
    skills = [skill.name for skill in catalog.require_skills(skills)]
    unknown = [name for name in skills if checker_of(name) is None]
    if unknown:
        raise UserError(
            f"The grader {grader!r} is `rules:`, and no code can check {_counted(unknown)} of catalogue "
            f"{catalog.name!r}.",
            hint="Use the catalogue verifiable, install checkers of yours, or let a model decide: rules:MODEL.",
        )


def _counted(skills: Sequence[str]) -> str:
    """Skills in words.

    >>> _counted(["irony"]), _counted(["irony", "simile"])
    ("the skill 'irony'", "2 skills ('irony' is one)")
    """
    return f"the skill {skills[0]!r}" if len(skills) == 1 else f"{len(skills)} skills ({skills[0]!r} is one)"


def with_verdict(reading: Reading, skills: Sequence[str], verdict: CodeVerdict) -> Reading:
    """A model's reading, with the points of code for skills that have a checker."""
    if reading.points is None:
        return reading
    own = [_point(verdict, skill) for skill in skills]
    decided = [model if code is None else code for code, model in zip(own, reading.points, strict=False)]
    return replace(reading, points=(*decided, *reading.points[len(decided) :]))


def _point(verdict: CodeVerdict, skill: str) -> float | None:
    """1 or 0; None for a skill without a checker."""
    earned = verdict.earns(skill)
    return None if earned is None else float(earned)
