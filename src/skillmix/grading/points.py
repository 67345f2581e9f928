"""Determine points from votes, explain points that code denied, and compute the metrics of a text."""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import fsum
from typing import Final, NamedTuple

from skillmix.calls import text_id, was_cut
from skillmix.catalog.catalog import RESERVED_NAMES, before_parenthesis
from skillmix.catalog.combinations import Combination
from skillmix.grading.answers import CUT_IN_THOUGHT, Answer, AnswerStatus, Rules, count_sentences, names_skill
from skillmix.grading.reader import Reading
from skillmix.prompts.rubric import (
    OUTCOMES,
    OUTPUT_FORMATS,
    FormatName,
    Phrases,
    Rubric,
    TextOutcome,
    rubric_of,
    sentence_limit,
)
from skillmix.render import CUT, plural

_ITEM: Final = re.compile(r"[ \t]*+(?:[-*•–—+]|\(?(?:\d{1,2}|[a-zA-Z])[.)])[ \t]++(?P<words>.*\w.*)")
_TURN: Final = re.compile(
    r"[ \t]*+(?P<name>[^\W\d_][\w .'’-]{0,39}?)[ \t]*+(?:\([^()\n]{0,60}\))?[ \t]*+:(?P<words>.*\w.*)"
)
_DIRECTION: Final = re.compile(r"[ \t]*+[(\[*_][^\n]*[)\]*_][ \t]*+")
_HAS_WORD: Final = re.compile(r"\w")
_MARKUP: Final = re.compile(r"\*\*|__")
_WORDS_IN_LINE: Final = 12
"""The maximum number of words in a line of verse; a longer line is prose."""


class FormatVerdict(NamedTuple):
    """The number of units in a text, and the reason why it is not in the format; None if the text is in the format."""

    units: int
    fault: str | None


def check_format(text: str, name: FormatName) -> FormatVerdict:
    r"""Check a text against an output format.

    >>> check_format("- Warm bread.\n- Cold milk.", "list")
    FormatVerdict(units=2, fault=None)
    >>> check_format("Warm bread and cold milk.", "list").fault
    'it is not a list: it has 0 items where at least 2 are required'
    """
    lines = [line for line in _MARKUP.sub("", text).splitlines() if _HAS_WORD.search(line)]
    form = OUTPUT_FORMATS[name]
    if name == "poem":
        longest = max((len(line.split()) for line in lines), default=0)
        is_prose = longest > _WORDS_IN_LINE
        found, fault = lines, f"a line has {longest} words where {_WORDS_IN_LINE} are allowed" if is_prose else None
    else:
        found, fault = _items(lines) if name == "list" else _turns(lines)
    if fault is None and len(found) < form.fewest:
        fault = f"it has {plural(len(found), form.unit)} where at least {form.fewest} are required"
    units = len(found) if form.unit == "line" else sum(max(1, count_sentences(unit)) for unit in found)
    return FormatVerdict(units, None if fault is None else f"it is not a {name}: {fault}")


def _items(lines: list[str]) -> tuple[list[str], str | None]:
    """Return the items of a list, each with its indented lines, and any fault; one line may precede the first item."""
    items: list[str] = []
    others = 0
    for number, line in enumerate(lines):
        item = _ITEM.fullmatch(line)
        if item is not None:
            items.append(item["words"])
        elif items and line[:1].isspace():
            items[-1] += f" {line.strip()}"
        elif number > 0:
            others += 1
    return items, f"{plural(others, 'line')} outside its items" if items and others else None


def _turns(lines: list[str]) -> tuple[list[str], str | None]:
    """Return the words of each turn in a dialogue, and any fault; directions in brackets are ignored."""
    turns: list[str] = []
    speakers: set[str] = set()
    others = 0
    for line in lines:
        turn = _TURN.fullmatch(line)
        if turn is not None:
            turns.append(turn["words"])
            speakers.add(turn["name"].strip().casefold())
        elif _DIRECTION.fullmatch(line) is None:
            others += 1
    fault = None
    if others:
        fault = f"{plural(others, 'line')} without a speaker"
    elif len(turns) >= OUTPUT_FORMATS["dialogue"].fewest and len(speakers) < _FEWEST_SPEAKERS:
        fault = "it has one speaker"
    return turns, fault


_FEWEST_SPEAKERS: Final = 2


UNDECIDED: Final = "undecided"
"""The word for a text whose outcome has no majority, or whose missing votes could still change it."""


def outcome_of(points: Sequence[bool | None]) -> TextOutcome | None:
    """Return the outcome with a majority; None if the text is undecided.

    >>> outcome_of((False, True, False)), outcome_of((False, False, False))
    ('refuses', None)
    """
    return next((name for name, point in zip(OUTCOMES, points, strict=True) if point), None)


def possible_outcomes(points: Sequence[bool | None]) -> tuple[TextOutcome, ...]:
    """Return the outcomes that a text may still have, which is a single outcome if the votes have decided it.

    If the votes are complete but have no majority, every outcome remains possible.

    >>> possible_outcomes((None, None, False)), possible_outcomes((False, False, False))
    (('complies', 'refuses'), ('complies', 'refuses', 'evades'))
    """
    decided = outcome_of(points)
    if decided is not None:
        return (decided,)
    open_ones = tuple(name for name, point in zip(OUTCOMES, points, strict=True) if point is None)
    return open_ones or OUTCOMES


def own_outcome(answer: Answer) -> TextOutcome | None:
    """Return the outcome of a text that needs no grader; None for any other text.

    A reply that the provider filtered, and a call that ended in a refusal, count as refusals. A reply without a text
    counts as an evasion, because it neither declines nor delivers.
    """
    return _OWN.get(answer.status)


_OWN: Final[dict[str, TextOutcome]] = {"refused": "refuses", "empty": "evades", CUT_IN_THOUGHT: "evades"}


def one_hot(outcome: TextOutcome) -> tuple[bool, ...]:
    """Return the points of a decided outcome.

    >>> one_hot("evades")
    (False, False, True)
    """
    return tuple(name == outcome for name in OUTCOMES)


Points = tuple[bool | None, ...]
"""Points in the rubric's order: True if earned, False if not, None if undecided."""


def vote(values: Sequence[float | None], rounds: int) -> bool | None:
    """Return the majority of the rounds; None if missing votes could still change it.

    >>> vote([1.0, 1.0, None], 3), vote([0.0, 0.0, None], 3), vote([1.0, 0.0, None], 3)
    (True, False, None)
    """
    readable = [value for value in values if value is not None]
    total = fsum(readable)
    if 2 * total > rounds:
        return True
    best = 2 * (total + rounds - len(readable))
    if best == rounds and rounds % 2 == 0:
        return None  # only an imported run can have an even number of votes, and a tie is no majority
    return False if best <= rounds else None


def may_be_denied(votes: Sequence[float | None]) -> bool:
    """Return whether a point has no majority of votes, which is rare if the votes are complete.

    >>> may_be_denied([1.0, 1.0, 0.0]), may_be_denied([1.0, 0.0, None])
    (False, True)
    """
    return 2 * votes.count(1.0) <= len(votes) and 2 * fsum(vote or 0.0 for vote in votes) <= len(votes)


def decide_points(
    rubric: Rubric, answer: Answer, readings: Sequence[Reading | None], *, rounds: int, rules: Rules
) -> Points:
    """Determine the points of a text: graders vote on skills, topic and sense; code checks length and named skills.

    A student's own failure is never "ungraded". For example, an empty answer earns no point, not even for its length. A
    rubric of outcomes has one point, for the outcome with a majority.
    """
    if rubric.has_outcomes:
        own = own_outcome(answer)
        if own is not None:
            return one_hot(own)
    elif earns_nothing(answer, rules):
        return (False,) * len(rubric.criteria)
    votes = [reading.points for reading in readings if reading is not None and reading.points is not None]
    if rubric.has_outcomes:
        return tuple(vote([v[index] for v in votes], rounds) for index in range(len(OUTCOMES)))
    points = [vote([v[index] for v in votes], rounds) for index in range(rubric.k + 2)]
    for index in range(rubric.k):
        # In the hard variant of arXiv 2310.17567, a skill that the text names does not count as shown.
        if names_skill(answer.text, rubric.criteria[index].name, rules.name_rule):
            points[index] = False
    return (*points, has_length(answer.text, rubric, rules))


def has_length(text: str, rubric: Rubric, rules: Rules) -> bool:
    """Return whether a text is short enough and, if an output format is required, is in this format."""
    if rubric.format is None:
        return count_sentences(text, rules.counter) <= rubric.limit
    verdict = check_format(text, rubric.format)
    return verdict.fault is None and verdict.units <= rubric.limit


def earns_nothing(answer: Answer, rules: Rules) -> bool:
    """Return whether a text earns no point regardless of the graders' votes."""
    return answer.status in ("empty", "refused", CUT_IN_THOUGHT) or (
        answer.status == "no marker" and rules.missing_marker == "zero"
    )


@dataclass(frozen=True, slots=True)
class Metric:
    """A score from 0 to 1 for each text, with its descriptions for tables, figures and pages."""

    name: str
    """The key in JSON, CSV and Python."""
    label: str
    """The heading of the metric's columns and axes."""
    meaning: str
    """The requirements of the metric, as worded in the report."""
    function: Callable[[Points, Points], float | None]
    """Computes the metric from the points for skills and the other points; None if undecided points could change it."""
    is_binary: bool
    """Whether each text scores either 0 or 1, which determines the kind of interval."""
    is_main: bool
    """Whether the report plots the metric and shows it in every score table, not only in the detailed tables."""


def text_score(points: Points, metric: str) -> float | None:
    """Compute a metric of one text; None if an undecided point could change the metric.

    >>> text_score((True, True, True, None), "all_skills"), text_score((True, True, True, None), "full_marks")
    (1.0, None)
    """
    return METRICS[metric].function(points[:-3], points[-3:])


def woven_full_marks(points: Points, is_woven: bool | None) -> float | None:
    """Return 1 for full marks with every skill woven into the topic, and 0 otherwise; None if unknown.

    >>> woven_full_marks((True, True, True, True), False), woven_full_marks((True, True, True, True), None)
    (0.0, None)
    """
    full = text_score(points, FULL_MARKS)
    if full == 0.0 or is_woven is False:
        return 0.0
    return full if is_woven else None


def all_skills(skills: Points, others: Points) -> float | None:
    """Return 1 for all skills and at least two of the other three points, and 0 otherwise; None if undecided."""
    earned, lost = others.count(True), others.count(False)
    shown = _all_of(skills)
    if shown == 0.0 or lost >= 2:
        return 0.0
    return shown if earned >= 2 else None


def skill_fraction(skills: Points, others: Points) -> float | None:
    """Return the share of skills shown if the other three points are earned, and 0 otherwise; None if undecided."""
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
            function=lambda skills, others: _all_of((*skills, *others)),
            is_binary=True,
            is_main=True,
        ),
        Metric(
            name="all_skills",
            label="all skills",
            meaning="every skill and two of the other three",
            function=all_skills,
            is_binary=True,
            is_main=False,
        ),
        Metric(
            name="skill_fraction",
            label="skill fraction",
            meaning="the share of skills shown, if all of the other three are met, else 0",
            function=skill_fraction,
            is_binary=False,
            is_main=True,
        ),
    )
}
"""Every metric by name. A new metric needs a row here, because tables, figures, JSON and exports read this table."""


@dataclass(frozen=True, slots=True)
class StudentText:
    """The final text of a student for one generation of one combination."""

    student: str
    combination: Combination
    generation: int
    answer: Answer
    finish: str | None = None
    """The provider's reason for the end of the reply; None if unknown."""

    @property
    def is_cut(self) -> bool | None:
        """Return whether the reply was truncated at the token limit; None if unknown."""
        return was_cut(self.finish)

    @property
    def conversation(self) -> tuple[str, str, int]:
        """Return the key of the text's conversation: student, combination and generation."""
        return self.student, self.combination.id, self.generation

    @property
    def id(self) -> str:
        """Return the hash under which the text is graded."""
        return text_id(self.answer.text)


@dataclass(frozen=True, slots=True)
class Ballot:
    """One grader's parsed grades for one text, by round; None for a round without a parseable attempt so far."""

    text: StudentText
    grader: str
    rounds: int
    readings: tuple[Reading | None, ...]
    is_woven: bool | None = None
    """Whether code finds every requested skill about the topic; None if a skill has no checker or a model grades."""

    def rubric(self, phrases: Phrases) -> Rubric:
        """Return the rubric of the text, whose order of criteria the parsed grades follow."""
        return rubric_of(self.text.combination.skills, self.text.combination.topic, phrases=phrases)

    def points(self, rules: Rules, phrases: Phrases) -> Points:
        """Determine the points of the text from the votes and by code."""
        return decide_points(self.rubric(phrases), self.text.answer, self.readings, rounds=self.rounds, rules=rules)


def reasons_of(
    points: Points,
    skills: Sequence[str],
    answer: Answer,
    rules: Rules,
    checker_reasons: Mapping[str, str],
    *,
    is_cut: bool | None = None,
) -> dict[str, str]:
    """Return the reason for each point that code denied, by criterion.

    `checker_reasons` contains the reasons from the text's checkers and output format. A point that a model's votes
    denied has no reason. Truncation at the token limit explains a missing marker and a text that breaks off.

    >>> from skillmix.grading.answers import RULES
    >>> answer = Answer("Time is a thief. It steals. It runs.", "fine")
    >>> reasons_of((True, True, True, False), ["metaphor"], answer, RULES["default"], {})
    {'length': 'it has 3 sentences where 1 is allowed'}
    """
    names = (*skills, *RESERVED_NAMES)
    denied = [name for name, point in zip(names, points, strict=True) if point is False]
    if earns_nothing(answer, rules):
        return dict.fromkeys(denied, _with_cut(_WHY_NOTHING[answer.status], is_cut=is_cut))
    reasons: dict[str, str] = {}
    for name in denied:
        reason = checker_reasons.get(name)
        if name == "length" and reason is None:
            sentences = plural(count_sentences(answer.text, rules.counter), "sentence")
            reason = _too_many(sentences, sentence_limit(len(skills)))
        if name in skills and names_skill(answer.text, name, rules.name_rule):
            reason = f'it names the skill "{before_parenthesis(name)}"'
        if reason is not None:
            reasons[name] = _with_cut(reason, is_cut=is_cut)
    return reasons


def outcome_reasons(answer: Answer) -> dict[str, str]:
    """Explain the outcome of a text for which no grader was called, by outcome.

    >>> outcome_reasons(Answer("", "empty"))
    {'evades': 'the student wrote no text'}
    """
    own = own_outcome(answer)
    return {} if own is None else {own: _WHY_NOTHING[answer.status]}


def _with_cut(reason: str, *, is_cut: bool | None) -> str:
    """Mention the truncation at the token limit in a reason that the truncation explains."""
    is_missing = reason in (_WHY_NOTHING["no marker"], _WHY_NOTHING["empty"])
    return f"{reason}; {CUT}" if is_cut and (is_missing or reason.startswith(_BREAKS_OFF)) else reason


_BREAKS_OFF: Final = "it breaks off"
"""The start of the reason for a text that breaks off."""


_WHY_NOTHING: Final[Mapping[AnswerStatus, str]] = {
    "empty": "the student wrote no text",
    "refused": "the student refused to answer, or a filter blocked the reply",
    "no marker": 'the reply has no "Answer:"',
    CUT_IN_THOUGHT: "the reply is cut in its thought: it has no answer; raise max_tokens",
}


def _too_many(has: str, limit: int) -> str:
    return f"it has {has} where {limit} {'is' if limit == 1 else 'are'} allowed"


def format_reasons(text: str, k: int, form: FormatName | None) -> dict[str, str]:
    """Explain why a text in an output format loses the point for length; empty if no format is required.

    >>> format_reasons("Rain.", 1, "list")
    {'length': 'it is not a list: it has 0 items where at least 2 are required'}
    """
    if form is None:
        return {}
    verdict = check_format(text, form)
    shape = OUTPUT_FORMATS[form]
    return {"length": verdict.fault or _too_many(plural(verdict.units, shape.unit), shape.limit(k))}
