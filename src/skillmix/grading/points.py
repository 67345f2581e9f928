"""From votes to points, from points to the three metrics, from texts to a cell of a table."""

from collections.abc import Sequence
from math import fsum
from typing import Final, Literal, get_args

from skillmix.grading.answers import Answer, Rules, names_skill
from skillmix.grading.reader import Reading
from skillmix.grading.sentences import count_sentences
from skillmix.prompts.rubric import Rubric

Metric = Literal["full_marks", "all_skills", "skill_fraction"]
METRICS: Final[tuple[Metric, ...]] = get_args(Metric)

Points = tuple[bool | None, ...]
"""Earned, not earned or undecided, in the rubric's order."""


def vote(values: Sequence[float | None], rounds: int) -> bool | None:
    """The majority of R rounds over the readable votes; None while missing votes could still turn it.

    >>> vote([1.0, 1.0, None], 3), vote([0.0, 0.0, None], 3), vote([1.0, 0.0, None], 3)
    (True, False, None)
    """
    readable = [value for value in values if value is not None]
    total = fsum(readable)
    if 2 * total > rounds:
        return True
    best = 2 * (total + rounds - len(readable))
    if best == rounds and rounds % 2 == 0:
        return None  # only an import can leave an even number of votes; a tie of them decides nothing
    return False if best <= rounds else None


def decide_points(
    rubric: Rubric, answer: Answer, readings: Sequence[Reading | None], *, rounds: int, rules: Rules
) -> Points:
    """The points of one text: votes where a grader decides, code where code does.

    A student's own failure is never "ungraded": an empty answer earns nothing, not even the length point.
    """
    if earns_nothing(answer, rules):
        return (False,) * len(rubric.criteria)
    votes = [reading.points for reading in readings if reading is not None and reading.points is not None]
    points = [vote([v[place] for v in votes], rounds) for place in range(rubric.k + 2)]
    for place in range(rubric.k):
        # The hard variant of arXiv 2310.17567: a skill that is named has not been shown.
        if names_skill(answer.text, rubric.criteria[place].name, rules.name_rule):
            points[place] = False
    return (*points, count_sentences(answer.text, rules.counter) <= rubric.limit)


def earns_nothing(answer: Answer, rules: Rules) -> bool:
    """Whether a text scores 0 on everything without a grader."""
    return answer.status in ("empty", "refused") or (answer.status == "no marker" and rules.missing_marker == "zero")


def text_score(points: Points, metric: Metric) -> float | None:
    """A metric of one text; None if an undecided point could change it.

    >>> text_score((True, True, True, None), "all_skills"), text_score((True, True, True, None), "full_marks")
    (1.0, None)
    """
    return _TEXT_SCORES[metric](points[:-3], points[-3:])


def _full_marks(skills: Points, others: Points) -> float | None:
    return _all_of((*skills, *others))


def _all_skills(skills: Points, others: Points) -> float | None:
    """All skills and at least two of the other three."""
    earned, lost = others.count(True), others.count(False)
    shown = _all_of(skills)
    if shown == 0.0 or lost >= 2:
        return 0.0
    return shown if earned >= 2 else None


def _skill_fraction(skills: Points, others: Points) -> float | None:
    """The share of skills shown, if all of the other three are earned."""
    enough = _all_of(others)
    if enough == 0.0 or not any(point is not False for point in skills):
        return 0.0
    return None if enough is None or None in skills else skills.count(True) / len(skills)


def _all_of(points: Points) -> float | None:
    if False in points:
        return 0.0
    return None if None in points else 1.0


_TEXT_SCORES: Final = {
    "full_marks": _full_marks,
    "all_skills": _all_skills,
    "skill_fraction": _skill_fraction,
}
