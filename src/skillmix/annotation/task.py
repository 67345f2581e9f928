"""A task for people: which texts of a run each of them reads, their questions, and the answers so far."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property

from skillmix.annotation.assignment import Assignment, assign
from skillmix.annotation.sample_size import checked_agreement, texts_for_width
from skillmix.annotation.shown_texts import AnnotationItem, AskedQuestion, QuestionWriter, items_of, task_in_words
from skillmix.calls import human_grader
from skillmix.errors import UserError
from skillmix.render import name_hint
from skillmix.runs.graders.human_votes import LONGEST_COMMENT, HumanAnswer, is_duration, is_vote
from skillmix.runs.graders.rater_journal import Answers, RaterJournal, latest_answer, stored_answers
from skillmix.runs.graders.run_grader import PERSON
from skillmix.runs.run import Run
from skillmix.runs.texts import run_records

TEXTS = 50
"""Texts for each person, unless somebody asks for another number."""


class NothingToRead(UserError):
    """The run has no text, or none of a student, that people could read."""


@dataclass(frozen=True, slots=True)
class TaskSettings:
    """Who reads, and how many of which texts."""

    raters: tuple[str, ...]
    n: int | None = None
    """Texts for each person; None for the number that gives `width`, or else 50."""
    width: float | None = None
    """The width of the 95 % interval of agreement between a person and a grader."""
    agreement: float = 0.5
    """The agreement at which the interval has that width; .5 is the worst case."""
    overlap: float = 0.3
    """The share of a person's texts that everybody reads."""
    seed: int = 0
    students: tuple[str, ...] = ()
    """Students whose texts are read; none means all."""
    ks: tuple[int, ...] = ()
    """Numbers of skills of the texts; none means all."""

    def __post_init__(self) -> None:
        for rater in self.raters:
            human_grader(rater)
        twice = next((rater for rater in self.raters if self.raters.count(rater) > 1), None)
        if twice is not None:
            raise UserError(f"The rater {twice!r} is named twice.", hint="Give each person one name.")
        if not self.raters:
            raise UserError("Nobody is named who reads.", hint="Name each person with --rater NAME.")
        if not 0 <= self.overlap <= 1:
            raise UserError(f"{self.overlap} is not a share of texts.", hint="Use a number from 0 to 1.")
        if self.n is not None and self.width is not None:
            raise UserError("Two numbers of texts are asked for.", hint="Give --n or --width, not both.")
        if self.n is not None and self.n < 1:
            raise UserError(f"{self.n} is not a number of texts.", hint="Use 1 or more.")
        checked_agreement(self.agreement)
        if self.width is not None:
            texts_for_width(self.width, agreement=self.agreement)

    @property
    def texts(self) -> int:
        """Texts for each person."""
        if self.width is not None:
            return texts_for_width(self.width, agreement=self.agreement)
        return TEXTS if self.n is None else self.n


@dataclass(frozen=True)
class AnnotationTask:
    """The texts of a run that people read; a pure function of the run, the settings and the answers so far."""

    run: Run
    settings: TaskSettings
    items: Mapping[str, AnnotationItem]
    """All texts of the run that may be chosen, by id."""
    assignment: Assignment
    _answers: Mapping[str, Answers] = field(repr=False)

    @property
    def raters(self) -> tuple[str, ...]:
        """The people."""
        return self.settings.raters

    def texts(self, rater: str) -> list[AnnotationItem]:
        """The texts of a person, in the order in which the person sees them."""
        return [self.items[one] for one in self.assignment.texts[rater]]

    def answer(self, rater: str, item: AnnotationItem) -> HumanAnswer | None:
        """A person's answer about a text when the task was made; None if there was none."""
        return latest_answer(self._answers[rater], item.text)

    @cached_property
    def _questions(self) -> QuestionWriter:
        return QuestionWriter(self.run.unchanged_catalog)

    def questions(self, item: AnnotationItem) -> list[AskedQuestion]:
        """The questions about a text."""
        return self._questions.of(item)

    def open_texts(self, rater: str) -> list[AnnotationItem]:
        """The texts of a person that had no answer when the task was made."""
        return [item for item in self.texts(rater) if self.answer(rater, item) is None]

    @contextmanager
    def answering(self, rater: str, *, model: str = PERSON) -> Iterator["AnswerStore"]:
        """Store answers of a person, or of a simulated one by its spec; only one process can for the same name."""
        with RaterJournal(self.run.journal, rater, model=model) as journal:
            yield AnswerStore(self, journal)


class AnswerStore:
    """Stores the answers of one person, each in one transaction before anyone sees that it is stored."""

    def __init__(self, task: AnnotationTask, journal: RaterJournal) -> None:
        self._task = task
        self._journal = journal

    def latest(self, item: AnnotationItem) -> HumanAnswer | None:
        """The answer about a text that counts; None if there is none yet."""
        return self._journal.latest(item.text)

    def answered(self, items: Sequence[AnnotationItem]) -> list[bool]:
        """Whether each of these texts has an answer."""
        return [self.latest(item) is not None for item in items]

    def store(self, item: AnnotationItem, answer: HumanAnswer) -> bool:
        """Store an answer; False if the same answer is stored already. A fault is an error, and nothing is stored."""
        fault = fault_of(item, answer)
        if fault is not None:
            raise UserError(f"The answer about the text {item.id} cannot be stored: {fault}.", hint=_VOTES)
        return self._journal.store(item.text, task_in_words(item, self._task.questions(item)), answer)

    def store_all(self, answers: Mapping[str, HumanAnswer]) -> int:
        """Store answers by the id of their text; return how many were new. With a fault, nothing is stored."""
        with self._journal.transaction():
            return sum(self.store(self._task.items[own], answer) for own, answer in answers.items())


_VOTES = "Give each criterion 1 (yes), 0 (no) or None (unsure)."


def fault_of(item: AnnotationItem, answer: HumanAnswer) -> str | None:
    """Why an answer does not fit a text; None if it does."""
    names = [criterion.name for criterion in item.criteria]
    missing = [name for name in names if name not in answer.votes]
    unknown = [name for name in answer.votes if name not in names]
    if missing or unknown:
        return f"it has no vote on {missing[0]!r}" if missing else f"{unknown[0]!r} is not a criterion of it"
    wrong = next((name for name in names if not is_vote(answer.votes[name])), None)
    if wrong is not None:
        return f"the vote on {wrong!r} is {answer.votes[wrong]!r}"
    if len(answer.comment) > LONGEST_COMMENT:
        return f"the comment has {len(answer.comment)} letters where {LONGEST_COMMENT} are allowed"
    if answer.seconds is not None and not is_duration(answer.seconds):
        return f"{answer.seconds!r} is not a number of seconds"
    return None


def make_task(run: Run, settings: TaskSettings) -> AnnotationTask:
    """Choose the texts of each person; the run is read once."""
    if run.has_outcomes:
        raise UserError(
            f"The graders of {run.name} name outcomes, and people are asked about skills, topic and sense.",
            hint="Read its texts with skillmix texts or in its report.",
        )
    records = run_records(run)
    _refuse_unknown_students(run, settings.students, {text.student for text in records.texts})
    everything = items_of(records)
    is_whole = not settings.students and not settings.ks
    wanted = everything if is_whole else items_of(records, students=settings.students, ks=settings.ks)
    if not wanted:
        raise NothingToRead(
            f"The run {run.name} has no text that people could read.",
            hint="Run it first, or choose another student or k. Empty answers and refusals are not shown.",
        )
    answers = {rater: stored_answers(run.journal, rater) for rater in settings.raters}
    answered = {
        rater: [item.id for item in wanted if latest_answer(own, item.text) is not None]
        for rater, own in answers.items()
    }
    assignment = assign(
        [item.candidate for item in wanted],
        settings.raters,
        n=settings.texts,
        overlap=settings.overlap,
        seed=settings.seed,
        answered=answered,
    )
    items = {item.id: item for item in (*everything, *wanted)}
    return AnnotationTask(run, settings, items, assignment, answers)


def _refuse_unknown_students(run: Run, students: Sequence[str], known: set[str]) -> None:
    student = next((name for name in students if name not in known), None)
    if student is not None:
        listed = f"Its students: {', '.join(sorted(known)) or 'none'}."
        raise NothingToRead(
            f"The run {run.name} has no student {student!r}.", hint=name_hint(student, known, otherwise=listed)
        )
