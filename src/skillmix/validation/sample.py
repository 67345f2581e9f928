"""Choose the texts that raters read, by hash and blind, and what a rater sees of each.

The texts stand on a line, sorted by student, then k, then outcome. An order visits the line as evenly as possible at
every moment (bit-reversed counting, from a start that a hash decides), so that any first n texts hold about n/N of each
student, of each k of a student, and of each outcome of these. Within such a group, the text comes next whose skills
have been shown least, in proportion to how often the texts have these skills. A sample in proportion needs no weights:
shares that are counted in it estimate the shares in all texts. More texts of a rare outcome would bias sensitivity
and specificity.

Agreement is the share of texts on which two graders give the same vote. Its 95% Wilson interval over n texts has the
width w = 2 z √(n p (1 − p) + z² / 4) / (n + z²), with z = 1.96 and the agreement p. Solved for n, with q = p (1 − p):
n + z² = z² (2 q + √(4 q² + w² (1 − 4 q))) / w². At p = .5, where the interval is widest, n = z² (1 / w² − 1).

An item is one text about one combination. Its id is a hash of the two, so it says nothing about the student; a text
that several students or generations wrote word for word is one item.
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
    """Its groups from the widest to the narrowest: student, k, outcome."""
    skills: tuple[str, ...]


def sample_order(candidates: Sequence[SampleText], *purpose: str | int) -> Iterator[str]:
    """Ids of all candidates in the order of choice; the first n are the same for every n.

    >>> texts = [SampleText(f"{student}{i}", (student,), ("metaphor",)) for student in "ab" for i in range(4)]
    >>> sorted(id[0] for id in list(sample_order(texts, "demo"))[:4])
    ['a', 'a', 'b', 'b']
    """
    strata = {one.strata for one in candidates}
    # A group is placed on the line within its wider groups, in an order of hashes.
    places = {own: tuple(digest("stratum", purpose, own[: depth + 1]) for depth in range(len(own))) for own in strata}
    line = sorted((one.strata for one in candidates), key=places.__getitem__)
    groups: dict[tuple[str, ...], list[tuple[float, bytes, SampleText]]] = defaultdict(list)
    """By strata: how much the skills of a text had been shown when it was last looked at, a hash, and the text."""
    for one in candidates:
        groups[one.strata].append((0.0, digest("text", purpose, one.id), one))
    for group in groups.values():
        heapify(group)
    texts = Counter(skill for one in candidates for skill in one.skills)
    shown: Counter[str] = Counter()
    for position in _spread(len(line), seed_of(0, "start", *purpose)):
        # Take the text whose skills were shown least, or nearly least: a few texts are looked at, not all. Shares only
        # grow, so an entry whose share has not changed since it was looked at is the least of all.
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
    """All numbers below a total, each next one far from those before it.

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
    """The smallest number of texts whose 95% interval of agreement is not wider than this.

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
    """The agreement itself if it is a share; otherwise an error."""
    if not 0 <= agreement <= 1:
        raise UserError(f"{agreement} is not an agreement.", hint="Use a number from 0 to 1.")
    return agreement


def width_of(texts: int, *, agreement: float = 0.5) -> float:
    """The width of the 95% interval of agreement over some texts."""
    low, high = wilson_interval(agreement, texts)
    return high - low


Outcome = Literal["full marks", "less", "undecided"]
_OUTCOMES: Final[Mapping[float | None, Outcome]] = {1.0: "full marks", 0.0: "less", None: "undecided"}


@dataclass(frozen=True, slots=True)
class AnnotationItem:
    """A text for annotation. The student and the outcome affect whether it is chosen, but are never shown."""

    id: str
    text: StudentText
    outcome: Outcome
    """By the run's first grader."""

    @property
    def combination(self) -> Combination:
        """The skills and the topic."""
        return self.text.combination

    @property
    def words(self) -> str:
        """The text itself."""
        return self.text.answer.text

    @property
    def criteria(self) -> tuple[Criterion, ...]:
        """Return the criteria that people are asked about."""
        return asked_criteria(rubric_of(self.combination.skills, self.combination.topic))

    @property
    def candidate(self) -> SampleText:
        """The item as the sample sees it."""
        strata = (self.text.student, str(self.combination.k), self.outcome)
        return SampleText(self.id, strata, self.combination.skills)


@dataclass(frozen=True, slots=True)
class AskedQuestion:
    """One question about a text, as a person sees it."""

    name: str
    """The criterion: a skill, `topic` or `sense`."""
    words: str
    definition: str = ""
    example: str = ""


def items_of(records: RunRecords, *, students: Collection[str] = (), ks: Collection[int] = ()) -> list[AnnotationItem]:
    """The items of a run by id, without texts that earn nothing, which no grader sees either."""
    rules, phrases = records.run.rules(), records.run.phrases
    first = next(iter(records.run.graders), None)
    outcomes = {
        ballot.text.conversation: _OUTCOMES[text_score(ballot.points(rules, phrases), FULL_MARKS)]
        for ballot in records.ballots
        if ballot.grader == first
    }
    items: dict[str, AnnotationItem] = {}
    # A hash decides which of several equal texts represents them all; the name of a student must not.
    for text in sorted(records.texts, key=lambda text: digest("equal texts", *text.conversation)):
        is_wanted = (not students or text.student in students) and (not ks or text.combination.k in ks)
        if is_wanted and not earns_nothing(text.answer, rules):
            own = short_id("item", text.combination.id, text.id)
            items.setdefault(own, AnnotationItem(own, text, outcomes.get(text.conversation, "undecided")))
    return [items[own] for own in sorted(items)]


def questions_about(item: AnnotationItem, skills: Mapping[str, Skill]) -> list[AskedQuestion]:
    """Return the criteria of an item in words, with definitions and examples of the available skills by name."""
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
    """Return the task as the journal stores it, beside the answer: the text, and the questions."""
    lines = ["A person read this text and answered the questions below: yes, no or unsure.", "", item.words, ""]
    for question in questions:
        lines.append(question.words)
        lines += [f"  Definition: {question.definition}"] if question.definition else []
        lines += [f"  Example: {question.example}"] if question.example else []
    return "\n".join(lines)
