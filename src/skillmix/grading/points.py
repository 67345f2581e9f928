"""From votes to points, from points to the three metrics, from texts to a cell of a table."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import fsum
from statistics import fmean
from typing import Final, Literal, get_args

from skillmix.core.reading import Reading
from skillmix.core.rubric import Rubric
from skillmix.core.sentences import count_sentences
from skillmix.core.statistics.intervals import mean_interval, wilson_interval
from skillmix.core.text_rules import Answer, Rules, names_skill

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


@dataclass(frozen=True, slots=True)
class Summary:
    """One metric over the combinations of a cell."""

    value: float | None
    """Mean of the best of G over complete combinations; None if none is complete."""
    low: float | None
    high: float | None
    bound_low: float | None
    """The same over all combinations with ungraded texts as 0, and as 1 in bound_high."""
    bound_high: float | None
    combinations: int
    complete: int
    ungraded: int
    """Texts without a score for this metric."""
    one_try: float | None
    """Mean over single texts of complete combinations."""
    one_try_low: float | None
    one_try_high: float | None


@dataclass(frozen=True, slots=True)
class Score:
    """One metric in one cell of a run; the fields are those that `scores --json` prints."""

    run: str
    student: str
    grader: str
    catalog: str | None
    partition: str | None
    prompts: str | None
    seed: int | None
    setting: str
    k: int
    metric: Metric
    value: float | None
    low: float | None
    high: float | None
    bound_low: float | None
    bound_high: float | None
    combinations: int
    complete: int
    ungraded: int
    format_failures: int
    """Texts without the marker, or empty."""
    one_try: float | None
    one_try_low: float | None
    one_try_high: float | None
    sets: str = "all"
    """Which skill sets of the cell: all, those that are reserved, or those that data sets may hold ("seen")."""
    trained_on: int | None = None
    """Combinations that the student was trained on; None if its lineage is not known."""
    written: int = 0
    """Texts that are there and no refusals: those that have a format."""

    @property
    def format_valid(self) -> float | None:
        """The share of them with the marker and something behind it."""
        return valid_share(self.format_failures, self.written)


def valid_share(failures: int, written: int) -> float | None:
    """The share of texts whose format was valid; nothing is known where none was written.

    >>> valid_share(1, 4), valid_share(0, 0)
    (0.75, None)
    """
    return (written - failures) / written if written else None


def summarise(scores: Sequence[Sequence[float | None]], metric: Metric) -> Summary:
    """Sum up a cell: for each combination the scores of its G texts, None where ungraded."""
    complete = [[s for s in texts if s is not None] for texts in scores if texts and None not in texts]
    best = [max(texts) for texts in complete]
    tries = [fmean(texts) for texts in complete]
    value, low, high = _mean_with(best, binary=metric != "skill_fraction")
    one_try, one_try_low, one_try_high = _mean_with(tries, binary=False)
    return Summary(
        value=value,
        low=low,
        high=high,
        bound_low=_mean([max(_filled(texts, 0.0), default=0.0) for texts in scores]),
        bound_high=_mean([max(_filled(texts, 1.0), default=1.0) for texts in scores]),
        combinations=len(scores),
        complete=len(complete),
        ungraded=sum(texts.count(None) for texts in map(list, scores)),
        one_try=one_try,
        one_try_low=one_try_low,
        one_try_high=one_try_high,
    )


def _mean_with(values: list[float], *, binary: bool) -> tuple[float | None, float | None, float | None]:
    mean = _mean(values)
    if mean is None:
        return None, None, None
    interval = wilson_interval(mean, len(values)) if binary else mean_interval(values)
    return mean, interval.low, interval.high


def _mean(values: Sequence[float]) -> float | None:
    return fmean(values) if values else None


def _filled(texts: Sequence[float | None], filling: float) -> list[float]:
    return [filling if score is None else score for score in texts]
