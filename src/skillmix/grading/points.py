"""From votes to points, and from points to the metrics of a text."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import fsum
from typing import Final

from skillmix.grading.answers import Answer, Rules, names_skill
from skillmix.grading.formats.format_checks import check_format
from skillmix.grading.outcomes.outcome_points import one_hot, own_outcome
from skillmix.grading.reader import Reading
from skillmix.grading.replies.thoughts import CUT_IN_THOUGHT
from skillmix.grading.sentences import count_sentences
from skillmix.prompts.rubric import OUTCOMES, Rubric

Points = tuple[bool | None, ...]
"""True if earned, False if not, None if undecided; in the rubric's order."""


def vote(values: Sequence[float | None], rounds: int) -> bool | None:
    """The majority of the rounds; None if missing votes could still change it.

    >>> vote([1.0, 1.0, None], 3), vote([0.0, 0.0, None], 3), vote([1.0, 0.0, None], 3)
    (True, False, None)
    """
    readable = [value for value in values if value is not None]
    total = fsum(readable)
    if 2 * total > rounds:
        return True
    best = 2 * (total + rounds - len(readable))
    if best == rounds and rounds % 2 == 0:
        return None  # only an imported run can have an even number of votes, and a tie decides nothing
    return False if best <= rounds else None


def may_be_denied(votes: Sequence[float | None]) -> bool:
    """Whether the votes on a point leave it without a majority; whole votes alone decide most points.

    >>> may_be_denied([1.0, 1.0, 0.0]), may_be_denied([1.0, 0.0, None])
    (False, True)
    """
    return 2 * votes.count(1.0) <= len(votes) and 2 * fsum(vote or 0.0 for vote in votes) <= len(votes)


def decide_points(
    rubric: Rubric, answer: Answer, readings: Sequence[Reading | None], *, rounds: int, rules: Rules
) -> Points:
    """The points of one text: graders vote on skills, topic and sense; code decides length and named skills.

    A student's own failure is never "ungraded": an empty answer earns no point, not even for its length. A rubric of
    outcomes has one point, that of the outcome which a majority names.
    """
    if rubric.has_outcomes:
        return _outcome_points(answer, readings, rounds)
    if earns_nothing(answer, rules):
        return (False,) * len(rubric.criteria)
    votes = [reading.points for reading in readings if reading is not None and reading.points is not None]
    points = [vote([v[index] for v in votes], rounds) for index in range(rubric.k + 2)]
    for index in range(rubric.k):
        # The hard variant of arXiv 2310.17567: a skill that is named has not been shown.
        if names_skill(answer.text, rubric.criteria[index].name, rules.name_rule):
            points[index] = False
    return (*points, has_length(answer.text, rubric, rules))


def has_length(text: str, rubric: Rubric, rules: Rules) -> bool:
    """Whether a text is short enough; one that must have an output format must keep to it, too."""
    if rubric.format is None:
        return count_sentences(text, rules.counter) <= rubric.limit
    verdict = check_format(text, rubric.format)
    return verdict.fault is None and verdict.units <= rubric.limit


def _outcome_points(answer: Answer, readings: Sequence[Reading | None], rounds: int) -> Points:
    own = own_outcome(answer)
    if own is not None:
        return one_hot(own)
    votes = [reading.points for reading in readings if reading is not None and reading.points is not None]
    return tuple(vote([v[index] for v in votes], rounds) for index in range(len(OUTCOMES)))


def earns_nothing(answer: Answer, rules: Rules) -> bool:
    """Whether a text earns no point whatever a grader would say."""
    return answer.status in ("empty", "refused", CUT_IN_THOUGHT) or (
        answer.status == "no marker" and rules.missing_marker == "zero"
    )


@dataclass(frozen=True, slots=True)
class Metric:
    """A number in 0..1 for each text, with what the tables, figures and pages say about it."""

    name: str
    """The key in JSON, CSV and Python."""
    label: str
    """The heading of its columns and axes."""
    meaning: str
    """What a text must do, as the report explains it."""
    function: Callable[[Points, Points], float | None]
    """From the points of the skills and of the other three criteria; None if an undecided point could change it."""
    is_binary: bool
    """Whether a text scores 0 or 1 and nothing in between; the interval depends on it."""
    is_main: bool
    """Whether the report draws it and shows it in every score table; other metrics are in the detailed tables only."""


def text_score(points: Points, metric: str) -> float | None:
    """A metric of one text; None if an undecided point could change it.

    >>> text_score((True, True, True, None), "all_skills"), text_score((True, True, True, None), "full_marks")
    (1.0, None)
    """
    return METRICS[metric].function(points[:-3], points[-3:])


def woven_full_marks(points: Points, is_woven: bool | None) -> float | None:
    """1 for full marks with every skill shown about the topic; None if that is not known.

    >>> woven_full_marks((True, True, True, True), False), woven_full_marks((True, True, True, True), None)
    (0.0, None)
    """
    full = text_score(points, FULL_MARKS)
    if full == 0.0 or is_woven is False:
        return 0.0
    return full if is_woven else None


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
    others_met = _all_of(others)
    if others_met == 0.0 or not any(point is not False for point in skills):
        return 0.0
    return None if others_met is None or None in skills else skills.count(True) / len(skills)


def _all_of(points: Points) -> float | None:
    if False in points:
        return 0.0
    return None if None in points else 1.0


FULL_MARKS: Final = "full_marks"
METRICS: Final[Mapping[str, Metric]] = {
    metric.name: metric
    for metric in (
        Metric(
            name=FULL_MARKS,
            label="full marks",
            meaning="every skill, the topic, sense and length",
            function=_full_marks,
            is_binary=True,
            is_main=True,
        ),
        Metric(
            name="all_skills",
            label="all skills",
            meaning="every skill and two of the other three",
            function=_all_skills,
            is_binary=True,
            is_main=False,
        ),
        Metric(
            name="skill_fraction",
            label="skill fraction",
            meaning="the share of skills shown, if all of the other three are met, else 0",
            function=_skill_fraction,
            is_binary=False,
            is_main=True,
        ),
    )
}
"""Every metric by name. A new metric is a row here; tables, figures, JSON and exports follow."""
