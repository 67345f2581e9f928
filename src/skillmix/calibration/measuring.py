"""Compare the votes of a grader with the known labels of the texts that it was asked about."""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final, Literal, TypeVar

from skillmix.calibration.known_texts import KnownText
from skillmix.calibration.planning import STUDENT, CalibrationPlan
from skillmix.calls import Call, GradeKey, Reply
from skillmix.grading.grader_words import words_about
from skillmix.grading.points import Points
from skillmix.grading.points import vote as majority
from skillmix.grading.reader import Reading
from skillmix.prompts.rubric import rubric_of
from skillmix.runs.reading.deciding import votes_of
from skillmix.runs.reading.graded_conversations import GradedConversation, conversations
from skillmix.runs.rules_grader import RulesGrader, reading_of, with_verdict
from skillmix.runs.run import Run
from skillmix.scores.grader_card import TextUnderGraders, Vote

LABELS: Final = "labels"
"""The name under which the known points stand beside those of the grader."""
Criterion = Literal["skill", "topic", "sense"]
CRITERIA: Final[tuple[Criterion, ...]] = ("skill", "topic", "sense")
"""The criteria that have labels, in the order of a rubric for one skill."""
_LENGTH: Final = len(CRITERIA)


@dataclass(frozen=True, slots=True)
class WrongPoint:
    """A point that the grader decided otherwise than the label."""

    known: KnownText
    criterion: Criterion
    label: bool
    words: str | None
    """What the grader wrote about it, if it wrote more than a number."""


@dataclass(frozen=True, slots=True)
class MeasuredText:
    """A text with the votes of the grader."""

    known: KnownText
    points: Points
    """The majority of the rounds: skill, topic, sense; None where it is open."""
    votes: tuple[Vote | None, ...]
    """By round: skill, topic, sense; None if no reply of the round could be read."""
    wrong: tuple[WrongPoint, ...]

    def as_item(self, run: str, grader: str) -> TextUnderGraders:
        """The text as a grader card takes it; the length counts as met on both sides.

        A point without a label is left out on both sides. A card takes decisions without a label for the population
        of which the labelled ones are a sample, and a calibration has no such sample.
        """
        known = self.known
        compared = [None if label is None else point for label, point in zip(known.labels, self.points, strict=True)]
        return TextUnderGraders(
            run=run,
            student=STUDENT,
            combination=known.id,
            generation=0,
            skills=(known.skill,),
            words=len(known.text.split()),
            points={grader: (*compared, True), LABELS: known.points},
            votes={grader: tuple(None if vote is None else (*vote, None) for vote in self.votes)},
            by_code=frozenset([_LENGTH]),
        )


@dataclass(frozen=True, slots=True)
class CallFacts:
    """The calls to the grader about the texts of the set, over all invocations."""

    calls: int
    unreadable: int
    """Replies that could not be read."""
    without_reply: int
    reasons: dict[str, int]
    """Why replies could not be read, with counts."""
    input_tokens: int | None
    output_tokens: int | None
    """None if a reply does not say how many."""
    cost_usd: float | None
    """None if the cost of a reply is not known."""


@dataclass(frozen=True, slots=True)
class Measured:
    """The texts of a set with the votes of a grader, and the calls behind them."""

    texts: tuple[MeasuredText, ...]
    facts: CallFacts


def measured(plan: CalibrationPlan, run: Run) -> Measured:
    """Read the votes of the grader from the run's journal; code gives its points now."""
    known = {(text.combination.id, text.text): text for text in plan.known.texts}
    code = RulesGrader(plan.catalog) if plan.settings.has_code else None
    texts: list[MeasuredText] = []
    graded: list[tuple[Call, Reading | None]] = []
    with run.read() as journal:
        for conversation in conversations(run, journal):
            text = conversation.text
            found = known.get((text.combination.id, text.answer.text)) if text.student == STUDENT else None
            if found is not None:
                own = list(_own(conversation, plan))
                graded += own
                texts.append(_measured_text(found, own, plan, code))
    order = {text.id: index for index, text in enumerate(plan.known.texts)}
    texts.sort(key=lambda one: order[one.known.id])
    return Measured(tuple(texts), _facts(graded))


def _own(conversation: GradedConversation, plan: CalibrationPlan) -> Iterator[tuple[Call, Reading | None]]:
    """The calls of the grader in rounds that count, each with its reading."""
    for call, reading in zip(conversation.calls, conversation.readings, strict=True):
        key = call.key
        if isinstance(key, GradeKey) and key.grader == plan.grader and key.round < plan.settings.votes:
            yield call, reading


def _measured_text(
    known: KnownText, own: Sequence[tuple[Call, Reading | None]], plan: CalibrationPlan, code: RulesGrader | None
) -> MeasuredText:
    skills = known.combination.skills
    verdict = code.verdict(known.text, skills=skills, topic=known.topic) if code else None
    if plan.settings.asked is None:
        assert verdict is not None  # a grader without a model is code
        readings: list[Reading | None] = [reading_of(verdict, skills)]
    else:
        by_round = votes_of([(_round(call), reading) for call, reading in own])
        readings = [by_round.get(number) for number in range(plan.settings.votes)]
        if verdict is not None:
            readings = [reading and with_verdict(reading, skills, verdict) for reading in readings]
    votes = tuple(reading.points[:_LENGTH] if reading and reading.points else None for reading in readings)
    readable = [one for one in votes if one is not None]
    points = tuple(majority([one[index] for one in readable], len(votes)) for index in range(_LENGTH))
    return MeasuredText(known, points, votes, tuple(_wrong(known, points, own, plan)))


def _round(call: Call) -> int:
    assert isinstance(call.key, GradeKey)
    return call.key.round


def _whole(value: float | None) -> bool | None:
    """A vote as a point; half a point is neither."""
    return None if value is None or value == 0.5 else value > 0.5


def _wrong(
    known: KnownText, points: Points, own: Sequence[tuple[Call, Reading | None]], plan: CalibrationPlan
) -> Iterator[WrongPoint]:
    for index, (criterion, label, point) in enumerate(zip(CRITERIA, known.labels, points, strict=True)):
        if label is not None and point is not None and label != point:
            words = next(_words(known, index, point, own, plan), None)
            yield WrongPoint(known, criterion, label, words)


def _words(
    known: KnownText, index: int, point: bool, own: Sequence[tuple[Call, Reading | None]], plan: CalibrationPlan
) -> Iterator[str]:
    """What the grader wrote about a criterion in the rounds that decided it so."""
    rubric = rubric_of(known.combination.skills, known.topic, phrases=plan.prompts.phrases)
    for call, reading in own:
        if reading and reading.points and _whole(reading.points[index]) is point and isinstance(call.outcome, Reply):
            words = words_about(rubric, index, call.outcome.text)
            if words:
                yield words


def _facts(graded: Sequence[tuple[Call, Reading | None]]) -> CallFacts:
    replies = [call.outcome for call, _ in graded if isinstance(call.outcome, Reply)]
    problems = [reading.problem for _, reading in graded if reading is not None and reading.points is None]
    return CallFacts(
        calls=len(graded),
        unreadable=len(problems),
        without_reply=len(graded) - len(replies),
        reasons=dict(Counter(problem or "unknown" for problem in problems).most_common()),
        input_tokens=_sum([reply.input_tokens for reply in replies]),
        output_tokens=_sum([reply.output_tokens for reply in replies]),
        cost_usd=_sum([reply.cost_usd for reply in replies]),
    )


_Number = TypeVar("_Number", int, float)


def _sum(values: Sequence[_Number | None]) -> _Number | None:
    known = [value for value in values if value is not None]
    return sum(known) if len(known) == len(values) else None
