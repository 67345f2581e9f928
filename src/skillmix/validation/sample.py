"""Choose by hash which texts raters read, and hide from the raters which student wrote them.

The texts are sorted by student, then by k, then by outcome. Texts are drawn from this order as evenly as possible at
every point, by bit-reversed counting from a hash-based start. The first n of N texts therefore contain about n/N of
the texts of each student, of each k of a student, and of each outcome at that k. Within such a group, the next text is
the one whose skills have been shown least, in proportion to the number of texts with these skills. A proportional
sample needs no weights, because its shares estimate the shares among all texts. Including more texts with a rare
outcome would bias sensitivity and specificity.

Agreement is the share of texts on which two graders vote alike. Its 95% Wilson interval over n texts has the width
w = 2 z √(n p (1 − p) + z² / 4) / (n + z²), with z = 1.96 and the agreement p. Solved for n, with q = p (1 − p):
n + z² = z² (2 q + √(4 q² + w² (1 − 4 q))) / w². At p = .5, where the interval is widest, n = z² (1 / w² − 1).

An item is one text about one combination. Its id is a hash of text and combination, so it reveals nothing about the
student. Equal texts about the same combination are one item, even from several students or generations.
"""

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from math import ceil, sqrt
from statistics import NormalDist
from typing import Final, NamedTuple

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
    """The nested groups of the text: student, k, outcome."""
    skills: tuple[str, ...]


def sample_order(candidates: Sequence[SampleText], *purpose: str | int) -> Iterator[str]:
    """Yield the ids of all candidates in the order of choice, so that a smaller sample is part of a larger one.

    >>> texts = [SampleText(f"{student}{i}", (student,), ("metaphor",)) for student in "ab" for i in range(4)]
    >>> sorted(id[0] for id in list(sample_order(texts, "demo"))[:4])
    ['a', 'a', 'b', 'b']
    """
    strata = {one.strata for one in candidates}
    # Sort the texts by hashes of their nested groups, so that names do not determine the order of groups.
    places = {own: tuple(digest("stratum", purpose, own[: depth + 1]) for depth in range(len(own))) for own in strata}
    line = sorted((one.strata for one in candidates), key=places.__getitem__)
    groups: dict[tuple[str, ...], list[tuple[float, bytes, SampleText]]] = defaultdict(list)
    """Heaps of texts by strata: how much each text's skills had been shown when last examined, a hash, and the text."""
    for one in candidates:
        groups[one.strata].append((0.0, digest("text", purpose, one.id), one))
    for group in groups.values():
        heapify(group)
    texts = Counter(skill for one in candidates for skill in one.skills)
    shown: Counter[str] = Counter()
    for position in _spread(len(line), seed_of(0, "start", *purpose)):
        # Choose the text whose skills were shown least, or nearly least if finding it would take too many steps.
        # Shares only grow, so an entry whose share is unchanged since it was last examined has the lowest share.
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
    """Yield all numbers below a total, each far from its predecessors.

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
            f"{width} is not a valid width for an interval of agreement.",
            hint=f"Use a number from {NARROWEST} to below 1.",
        )
    if not 0 <= agreement <= 1:
        raise UserError(f"{agreement} is not a valid agreement.", hint="Use a number from 0 to 1.")
    q = agreement * (1 - agreement)
    square = _Z**2 * (2 * q + sqrt(4 * q**2 + width**2 * (1 - 4 * q))) / width**2
    return max(1, ceil(square - _Z**2 - _ROUNDING))


def width_of(texts: int, *, agreement: float = 0.5) -> float:
    """Return the width of the 95% interval of agreement over this number of texts."""
    low, high = wilson_interval(agreement, texts)
    return high - low


_OUTCOMES: Final[Mapping[float | None, str]] = {1.0: "full marks", 0.0: "less", None: "undecided"}


@dataclass(frozen=True, slots=True)
class AnnotationItem:
    """A text for raters, who see neither its student nor its outcome."""

    id: str
    text: StudentText
    outcome: str
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
        """Return the criteria that raters judge."""
        return asked_criteria(rubric_of(self.combination.skills, self.combination.topic))

    @property
    def candidate(self) -> SampleText:
        """Return the item as a candidate for `sample_order`."""
        strata = (self.text.student, str(self.combination.k), self.outcome)
        return SampleText(self.id, strata, self.combination.skills)


@dataclass(frozen=True, slots=True)
class AskedQuestion:
    """One question about a text, as shown to a rater."""

    name: str
    """The criterion: a skill, `topic` or `sense`."""
    words: str
    definition: str = ""
    example: str = ""


def items_of(records: RunRecords, *, students: Collection[str] = (), ks: Collection[int] = ()) -> list[AnnotationItem]:
    """Return the items of a run, sorted by id, without texts that earn no points and so are not graded."""
    rules, phrases = records.run.rules(), records.run.phrases
    first = next(iter(records.run.graders), None)
    outcomes = {
        ballot.text.conversation: _OUTCOMES[text_score(ballot.points(rules, phrases), FULL_MARKS)]
        for ballot in records.ballots
        if ballot.grader == first
    }
    items: dict[str, AnnotationItem] = {}
    # A hash determines which of several equal texts is shown, so that student names have no influence.
    for text in sorted(records.texts, key=lambda text: digest("equal texts", *text.conversation)):
        is_wanted = (not students or text.student in students) and (not ks or text.combination.k in ks)
        if is_wanted and not earns_nothing(text.answer, rules):
            own = short_id("item", text.combination.id, text.id)
            items.setdefault(own, AnnotationItem(own, text, outcomes.get(text.conversation, "undecided")))
    return [items[own] for own in sorted(items)]


def questions_about(item: AnnotationItem, skills: Mapping[str, Skill]) -> list[AskedQuestion]:
    """Return the questions about an item, with definitions and examples from `skills` by name."""
    words = {"topic": f"Is the text about {item.combination.topic}?", "sense": "Does the text make sense?"}
    questions = []
    for criterion in item.criteria:
        skill = skills.get(criterion.name) if criterion.kind not in words else None
        asked = words.get(criterion.kind, f"Does the text show {criterion.name}?")
        shown = (skill.definition, skill.example) if skill else ()
        questions.append(AskedQuestion(criterion.name, asked, *shown))
    return questions


def task_in_words(item: AnnotationItem, questions: Iterable[AskedQuestion]) -> str:
    """Return the text and the questions as the journal stores them with the answer."""
    lines = ["A person read this text and answered the questions below: yes, no or unsure.", "", item.words, ""]
    for question in questions:
        lines.append(question.words)
        lines += [f"  Definition: {question.definition}"] if question.definition else []
        lines += [f"  Example: {question.example}"] if question.example else []
    return "\n".join(lines)
