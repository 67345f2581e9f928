"""The texts of a run as tasks for people: what a person sees of a text, and what nobody may see.

An item is one text about one combination. Its id is a hash of the two, so it says nothing about the student; a text
that several students or generations wrote word for word is one item.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Final, Literal

from skillmix.annotation.sample import SampleText
from skillmix.catalog.catalog import Catalog, Skill
from skillmix.catalog.combinations import Combination
from skillmix.grading.ballots import StudentText
from skillmix.grading.points import FULL_MARKS, earns_nothing, text_score
from skillmix.hashing import digest, short_id
from skillmix.prompts.rubric import Criterion, rubric_of
from skillmix.runs.graders.human_votes import asked_criteria
from skillmix.runs.texts import RunRecords

Outcome = Literal["full marks", "less", "undecided"]
_OUTCOMES: Final[Mapping[float | None, Outcome]] = {1.0: "full marks", 0.0: "less", None: "undecided"}


@dataclass(frozen=True, slots=True)
class AnnotationItem:
    """A text for people. The student and the outcome decide whether it is chosen, and are shown to nobody."""

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
        """The criteria that people are asked about."""
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


def item_id(text: StudentText) -> str:
    """The id of a text about a combination."""
    return short_id("item", text.combination.id, text.id)


def items_of(records: RunRecords, *, students: Collection[str] = (), ks: Collection[int] = ()) -> list[AnnotationItem]:
    """The items of a run by id, without texts that earn nothing, which no grader sees either."""
    rules = records.run.rules()
    outcomes = _outcomes(records)
    items: dict[str, AnnotationItem] = {}
    for text in sorted(records.texts, key=_tie):
        is_wanted = (not students or text.student in students) and (not ks or text.combination.k in ks)
        if is_wanted and not earns_nothing(text.answer, rules):
            own = item_id(text)
            items.setdefault(own, AnnotationItem(own, text, outcomes.get(text.conversation, "undecided")))
    return [items[own] for own in sorted(items)]


def _tie(text: StudentText) -> bytes:
    """Which of several equal texts stands for all of them; a name of a student must not decide that."""
    return digest("equal texts", *text.conversation)


def _outcomes(records: RunRecords) -> dict[tuple[str, str, int], Outcome]:
    """Whether each text has full marks from the run's first grader."""
    first = next(iter(records.run.graders), None)
    rules, phrases = records.run.rules(), records.run.phrases
    return {
        ballot.text.conversation: _OUTCOMES[text_score(ballot.points(rules, phrases), FULL_MARKS)]
        for ballot in records.ballots
        if ballot.grader == first
    }


class QuestionWriter:
    """Puts the criteria of items into words, with definitions and examples where the catalogue is at hand."""

    def __init__(self, catalog: Catalog | None) -> None:
        self._skills: dict[str, Skill] = {skill.name: skill for skill in catalog.skills} if catalog else {}

    def of(self, item: AnnotationItem) -> list[AskedQuestion]:
        """The questions about an item: each skill, the topic, and sense."""
        return [self._question(criterion, item.combination.topic) for criterion in item.criteria]

    def _question(self, criterion: Criterion, topic: str) -> AskedQuestion:
        if criterion.kind == "topic":
            return AskedQuestion(criterion.name, f"Is the text about {topic}?")
        if criterion.kind == "sense":
            return AskedQuestion(criterion.name, "Does the text make sense?")
        skill = self._skills.get(criterion.name)
        words = f"Does the text show {criterion.name}?"
        return AskedQuestion(criterion.name, words, skill.definition if skill else "", skill.example if skill else "")


def task_in_words(item: AnnotationItem, questions: Iterable[AskedQuestion]) -> str:
    """The task as the journal keeps it, beside the answer: the text, and what was asked about it."""
    lines = ["A person read this text and answered the questions below: yes, no or unsure.", "", item.words, ""]
    for question in questions:
        lines.append(question.words)
        lines += [f"  Definition: {question.definition}"] if question.definition else []
        lines += [f"  Example: {question.example}"] if question.example else []
    return "\n".join(lines)
