"""Choose by hash which texts raters read, and what raters see of each text; raters do not know where texts come from.

The texts are lined up by student, then by k, then by outcome. The order of choice visits this line as evenly as
possible at every moment (bit-reversed counting, from a start that a hash decides). The first n of N texts therefore
contain about n/N of the texts of each student, of each k of a student, and of each outcome at that k. Within such a
group, the next text is the one whose skills have been shown least, in proportion to how often the texts have these
skills. A proportional sample needs no weights, because its shares estimate the shares among all texts. Including more
texts with a rare outcome would bias sensitivity and specificity.

Agreement is the share of texts on which two graders vote alike. Its 95% Wilson interval over n texts has the width
w = 2 z √(n p (1 − p) + z² / 4) / (n + z²), with z = 1.96 and the agreement p. Solved for n, with q = p (1 − p):
n + z² = z² (2 q + √(4 q² + w² (1 − 4 q))) / w². At p = .5, where the interval is widest, n = z² (1 / w² − 1).

An item is one text about one combination. Its id is a hash of text and combination, so it reveals nothing about the
student. If several students or generations contain exactly the same text, it is one item.
"""

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from math import ceil, sqrt
from statistics import NormalDist
from typing import Final, Literal, NamedTuple

from skillmix.catalog.catalog import Skill
from skillmix.catalog.combinations import Combination
from skillmix.errors import UserError
from skillmix.experiment.steps import NARROWEST
from skillmix.grading.points import FULL_MARKS, StudentText, earns_nothing, text_score
from skillmix.hashing import digest, seed_of, short_id
from skillmix.prompts.rubric import Criterion, rubric_of
from skillmix.runs.people import asked_criteria
from skillmix.runs.texts import RunRecords
from skillmix.scores.statistics.intervals import CONFIDENCE, wilson_interval


class SampleText(NamedTuple):
    """A text that may be chosen."""

    id: str
    strata: tuple[str, ...]
    """The groups of the text from the widest to the narrowest: student, k, outcome."""
    skills: tuple[str, ...]


def sample_order(candidates: Sequence[SampleText], *purpose: str | int) -> Iterator[str]:
    """Yield the ids of all candidates in the order of choice, so that a smaller sample is part of a larger one.

    >>> texts = [SampleText(f"{student}{i}", (student,), ("metaphor",)) for student in "ab" for i in range(4)]
    >>> sorted(id[0] for id in list(sample_order(texts, "demo"))[:4])
    ['a', 'a', 'b', 'b']
    """
    strata = {one.strata for one in candidates}
    # Each group is placed on the line within its wider group, in the order of hashes.
    places = {own: tuple(digest("stratum", purpose, own[: depth + 1]) for depth in range(len(own))) for own in strata}
    line = sorted((one.strata for one in candidates), key=places.__getitem__)
    groups: dict[tuple[str, ...], list[tuple[float, bytes, SampleText]]] = defaultdict(list)
    """By strata: how much a text's skills had been shown when the text was last examined, a hash, and the text."""
    for one in candidates:
        groups[one.strata].append((0.0, digest("text", purpose, one.id), one))
    for group in groups.values():
        heapify(group)
    texts = Counter(skill for one in candidates for skill in one.skills)
    shown: Counter[str] = Counter()
    for position in _spread(len(line), seed_of(0, "start", *purpose)):
        # Choose the text whose skills were shown least, or nearly least, because only a few texts are examined. Shares
        # only grow, so an entry whose share has not changed since it was examined has the lowest share of all.
        group, looked = groups[line[position]], list[tuple[float, bytes, SampleText]]()
        while group and len(looked) < _MOST_LOOKS:
            share, order, one = heappop(group)
            now = sum(shown[skill] / texts[skill] for skill in one.skills)
            looked.append((now, order, one))
            if now <= share:
                break
        best = min(looked)
        for entry in looked:
            if entry is not best:
                heappush(group, entry)
        shown.update(best[2].skills)
        yield best[2].id


_MOST_LOOKS: Final = 24


def _spread(total: int, start: int) -> Iterator[int]:
    """Yield all numbers below a total, each far from the numbers before it.

    >>> list(_spread(6, 0))
    [0, 4, 2, 1, 5, 3]
    """
    bits = max(0, total - 1).bit_length()
    for count in range(1 << bits if total else 0):
        reverse = int(f"{count:0{bits}b}"[::-1], 2) if bits else 0
        position = (reverse + start) % (1 << bits)
        if position < total:
            yield position


_Z: Final = NormalDist().inv_cdf((1 + CONFIDENCE) / 2)
_ROUNDING: Final = 1e-9


def texts_for_width(width: float, *, agreement: float = 0.5) -> int:
    """Return the smallest number of texts for which the 95% interval of agreement is not wider than `width`.

    >>> texts_for_width(0.1), texts_for_width(0.1, agreement=0.9)
    (381, 141)
    """
    if not NARROWEST <= width < 1:
        raise UserError(
            f"{width} is not a width that an interval of agreement can have here.",
            hint=f"Use a number from {NARROWEST} to below 1.",
        )
    checked_agreement(agreement)
    q = agreement * (1 - agreement)
    square = _Z**2 * (2 * q + sqrt(4 * q**2 + width**2 * (1 - 4 * q))) / width**2
    return max(1, ceil(square - _Z**2 - _ROUNDING))


def checked_agreement(agreement: float) -> float:
    """Return the agreement if it is a valid share; otherwise raise an error."""
    if not 0 <= agreement <= 1:
        raise UserError(f"{agreement} is not an agreement.", hint="Use a number from 0 to 1.")
    return agreement


def width_of(texts: int, *, agreement: float = 0.5) -> float:
    """Return the width of the 95% interval of agreement over this number of texts."""
    low, high = wilson_interval(agreement, texts)
    return high - low


Outcome = Literal["full marks", "less", "undecided"]
_OUTCOMES: Final[Mapping[float | None, Outcome]] = {1.0: "full marks", 0.0: "less", None: "undecided"}


@dataclass(frozen=True, slots=True)
class AnnotationItem:
    """A text for annotation. Student and outcome affect whether the text is chosen, but raters never see them."""

    id: str
    text: StudentText
    outcome: Outcome
    """The outcome according to the run's first grader."""

    @property
    def combination(self) -> Combination:
        """Return the skills and the topic."""
        return self.text.combination

    @property
    def words(self) -> str:
        """Return the text itself."""
        return self.text.answer.text

    @property
    def criteria(self) -> tuple[Criterion, ...]:
        """Return the criteria that people judge."""
        return asked_criteria(rubric_of(self.combination.skills, self.combination.topic))

    @property
    def candidate(self) -> SampleText:
        """Return the item in the form that sampling uses."""
        strata = (self.text.student, str(self.combination.k), self.outcome)
        return SampleText(self.id, strata, self.combination.skills)


@dataclass(frozen=True, slots=True)
class AskedQuestion:
    """One question about a text, as shown to a person."""

    name: str
    """The criterion: a skill, `topic` or `sense`."""
    words: str
    definition: str = ""
    example: str = ""


def items_of(records: RunRecords, *, students: Collection[str] = (), ks: Collection[int] = ()) -> list[AnnotationItem]:
    """Return the items of a run by id, without texts that earn nothing, which graders do not see either."""
    rules, phrases = records.run.rules(), records.run.phrases
    first = next(iter(records.run.graders), None)
    outcomes = {
        ballot.text.conversation: _OUTCOMES[text_score(ballot.points(rules, phrases), FULL_MARKS)]
        for ballot in records.ballots
        if ballot.grader == first
    }
    items: dict[str, AnnotationItem] = {}
    # If texts are equal, a hash decides which one represents the others, so that student names have no influence.
    for text in sorted(records.texts, key=lambda text: digest("equal texts", *text.conversation)):
        is_wanted = (not students or text.student in students) and (not ks or text.combination.k in ks)
        if is_wanted and not earns_nothing(text.answer, rules):
            own = short_id("item", text.combination.id, text.id)
            items.setdefault(own, AnnotationItem(own, text, outcomes.get(text.conversation, "undecided")))
    return [items[own] for own in sorted(items)]


def questions_about(item: AnnotationItem, skills: Mapping[str, Skill]) -> list[AskedQuestion]:
    """Return the criteria of an item in words, with definitions and examples from `skills` by name."""
    questions = []
    for criterion in item.criteria:
        if criterion.kind == "topic":
            questions.append(AskedQuestion(criterion.name, f"Is the text about {item.combination.topic}?"))
        elif criterion.kind == "sense":
            questions.append(AskedQuestion(criterion.name, "Does the text make sense?"))
        else:
            skill = skills.get(criterion.name)
            shown = (skill.definition, skill.example) if skill else ()
            questions.append(AskedQuestion(criterion.name, f"Does the text show {criterion.name}?", *shown))
    return questions


def task_in_words(item: AnnotationItem, questions: Iterable[AskedQuestion]) -> str:
    """Return the task as the journal stores it beside the answer: the text and the questions."""
    lines = ["A person read this text and answered the questions below: yes, no or unsure.", "", item.words, ""]
    for question in questions:
        lines.append(question.words)
        lines += [f"  Definition: {question.definition}"] if question.definition else []
        lines += [f"  Example: {question.example}"] if question.example else []
    return "\n".join(lines)
