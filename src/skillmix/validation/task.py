"""Assign texts to raters, store their answers, and let simulated raters answer.

A rater's list does not depend on the other raters, except where two separate lists would contain the same text. A
rater's earlier answers still count if the run, the number of texts or the raters have changed.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from functools import cached_property
from itertools import combinations, islice
from typing import Final

from skillmix.calls import UNKNOWN_DECODING, GradeKey, Message, Reply, Request, human_grader
from skillmix.catalog.catalog import Skill
from skillmix.errors import UserError
from skillmix.experiment.steps import AnnotateStep
from skillmix.hashing import ranked
from skillmix.models.scripted import scripted_rater
from skillmix.render import name_hint, plural, whole
from skillmix.runs.journal import JournalWriter
from skillmix.runs.people import LONGEST_COMMENT, HumanAnswer, document_of, is_duration, is_vote, rater_file
from skillmix.runs.run import Run
from skillmix.runs.texts import run_records
from skillmix.runs.verdicts import PERSON
from skillmix.validation.rater_answers import Answers, attempts_at, require_same_rater, stored_answers
from skillmix.validation.sample import (
    AnnotationItem,
    AskedQuestion,
    SampleText,
    items_of,
    questions_about,
    sample_order,
    task_in_words,
    texts_for_width,
)

_ROUNDING: Final = 1e-9


@dataclass(frozen=True, slots=True)
class Assignment:
    """The ids of each rater's texts, in the order in which the rater sees them."""

    texts: Mapping[str, tuple[str, ...]]

    @property
    def shared(self) -> int:
        """Return the smallest number of texts that any two raters have in common; 0 for one rater."""
        pairs = combinations(map(set, self.texts.values()), 2)
        return min((len(one & other) for one, other in pairs), default=0)

    @property
    def distinct(self) -> int:
        """Return the number of different texts in all lists."""
        return len(set[str]().union(*map(set, self.texts.values())))


def assign(
    candidates: Sequence[SampleText],
    raters: Sequence[str],
    *,
    n: int,
    overlap: float,
    seed: int = 0,
    answered: Mapping[str, Collection[str]] | None = None,
) -> Assignment:
    """Assign n texts to each rater, some of which all raters read; assign fewer if there are not enough texts.

    If there are too few texts for separate lists, the lists have more texts in common. `answered` lists the texts that
    each rater has already answered; they replace unanswered texts, so that no answer is lost.
    """
    for_all = sample_order(candidates, "shared", seed)
    orders = {rater: sample_order(candidates, "own", seed, rater) for rater in raters}
    shared, own = list[str](), {rater: list[str]() for rater in raters}
    taken: set[str] = set()

    def next_of(order: Iterator[str]) -> list[str]:
        """Return a list with the next text that nobody has been assigned; empty if there is none."""
        found = list(islice((one for one in order if one not in taken), 1))
        taken.update(found)
        return found

    for number in range(min(n, len(candidates))):
        if is_shared(number, overlap):
            shared += next_of(for_all)
        else:
            for rater in raters:
                own[rater] += next_of(orders[rater])
    known, texts = {one.id for one in candidates}, {}
    for rater in raters:
        # If there are too few separate texts, fill the list with texts of other raters.
        has = {*shared, *own[rater]}
        more = (one for one in sample_order(candidates, "own", seed, rater) if one not in has)
        own[rater] += islice(more, max(0, n - len(has)))
        # Replace the last separate texts without an answer with answered texts that are not in the list.
        done = [one for one in (answered or {}).get(rater, ()) if one in known]
        extra = [one for one in done if one not in (*shared, *own[rater])]
        replaced = [one for one in reversed(own[rater]) if one not in done][: len(extra)]
        kept = [one for one in (*shared, *own[rater]) if one not in replaced]
        texts[rater] = tuple(ranked([*kept, *extra[: len(replaced)]], "annotate", seed, rater))
    return Assignment(texts)


def is_shared(number: int, overlap: float) -> bool:
    """Return whether all raters read the text with this number, counted from 0; such texts are spread evenly.

    >>> [is_shared(number, 0.3) for number in range(10)].count(True)
    3
    """
    return int((number + 1) * overlap + _ROUNDING) > int(number * overlap + _ROUNDING)


TEXTS = 50
"""The default number of texts per rater."""


class NothingToRead(UserError):
    """Raised if a run, or one of its students, has no text for people to read."""


@dataclass(frozen=True, slots=True)
class TaskSettings:
    """The raters, and the number and choice of their texts."""

    raters: tuple[str, ...]
    n: int | None = None
    """The number of texts for each rater; if None, as many as `width` requires, or else 50."""
    width: float | None = None
    """The width of the 95% interval of agreement between a rater and a grader."""
    agreement: float = 0.5
    """The agreement at which the interval has this width; .5 is the worst case."""
    overlap: float = 0.3
    """The share of a rater's texts that all raters read."""
    seed: int = 0
    students: tuple[str, ...] = ()
    """The students whose texts are read; empty for all students."""
    ks: tuple[int, ...] = ()
    """The values of k whose texts are read; empty for all values."""

    def __post_init__(self) -> None:
        for rater in self.raters:
            human_grader(rater)
            if self.raters.count(rater) > 1:
                raise UserError(f"The rater {rater!r} is named twice.", hint="Name each person once.")
        if not self.raters:
            raise UserError("No raters given.", hint="Name each person with --rater NAME.")
        if not 0 <= self.overlap <= 1:
            raise UserError(f"{self.overlap} is not a share of texts.", hint="Use a number from 0 to 1.")
        if self.n is not None and self.width is not None:
            raise UserError("The number of texts is given twice.", hint="Give --n or --width, not both.")
        if self.n is not None and self.n < 1:
            raise UserError(f"{self.n} is not a number of texts.", hint="Use 1 or more.")
        texts_for_width(0.5 if self.width is None else self.width, agreement=self.agreement)

    @property
    def texts(self) -> int:
        """Return the number of texts for each rater."""
        if self.width is not None:
            return texts_for_width(self.width, agreement=self.agreement)
        return TEXTS if self.n is None else self.n


@dataclass(frozen=True)
class AnnotationTask:
    """The texts of a run that people read; a pure function of the run, the settings and the stored answers."""

    run: Run
    settings: TaskSettings
    items: Mapping[str, AnnotationItem]
    """All texts of the run that may be chosen, by id."""
    assignment: Assignment
    _answers: Mapping[str, Answers] = field(repr=False)

    @property
    def raters(self) -> tuple[str, ...]:
        """Return the raters."""
        return self.settings.raters

    def texts(self, rater: str) -> list[AnnotationItem]:
        """Return a rater's texts, in the order in which the rater sees them."""
        return [self.items[one] for one in self.assignment.texts[rater]]

    def answer(self, rater: str, item: AnnotationItem) -> HumanAnswer | None:
        """Return the answer about a text that was stored when the task was made; None if there was none."""
        return attempts_at(self._answers[rater], item.text).latest

    @cached_property
    def _skills(self) -> dict[str, Skill]:
        catalog = self.run.unchanged_catalog
        return {skill.name: skill for skill in catalog.skills} if catalog else {}

    def questions(self, item: AnnotationItem) -> list[AskedQuestion]:
        """Return the questions about a text."""
        return questions_about(item, self._skills)

    def open_texts(self, rater: str) -> list[AnnotationItem]:
        """Return a rater's texts that had no answer when the task was made."""
        return [item for item in self.texts(rater) if self.answer(rater, item) is None]

    def answering(self, rater: str, *, model: str = PERSON) -> "AnswerStore":
        """Open the store for the answers of a person, or of a simulated rater with this model string."""
        return AnswerStore(self, rater, model)


class AnswerStore(AbstractContextManager["AnswerStore"]):
    """Stores one rater's answers, each in a separate transaction; only one process at a time can open the store."""

    def __init__(self, task: AnnotationTask, rater: str, model: str) -> None:
        folder = task.run.people
        require_same_rater(folder, rater, model)
        self._task, self._model, self._grader = task, model, human_grader(rater)
        self._journal = JournalWriter(rater_file(folder, rater))
        try:
            self._journal.into_one_file()  # clean up in case an earlier process was killed
            self._answers = stored_answers(folder, rater)
        except BaseException:
            self._journal.close()
            raise

    def __exit__(self, *problem: object) -> None:
        self._journal.close()

    def latest(self, item: AnnotationItem) -> HumanAnswer | None:
        """Return the latest answer about a text, which is the one that counts; None if there is none yet."""
        return attempts_at(self._answers, item.text).latest

    def answered(self, items: Sequence[AnnotationItem]) -> list[bool]:
        """Return, for each of these texts, whether it has an answer."""
        return [self.latest(item) is not None for item in items]

    def store(self, item: AnnotationItem, answer: HumanAnswer) -> bool:
        """Store an answer with the task as shown; return False if it is already stored.

        A changed answer is stored as a further attempt. If the answer has a fault, raise an error.
        """
        fault = fault_of(item, answer)
        if fault is not None:
            raise UserError(f"The answer about the text {item.id} cannot be stored: {fault}.", hint=_VOTES)
        attempts = attempts_at(self._answers, item.text)
        sent = {one.id for one in attempts.by_number.values() if one is not None and one.id is not None}
        if answer.id in sent or (attempts.latest is not None and attempts.latest.says_the_same(answer)):
            return False
        number = max(attempts.by_number, default=-1) + 1
        key = GradeKey(*attempts.conversation, item.text.id, self._grader, 0, number)
        shown = task_in_words(item, self._task.questions(item))
        request = Request(key, self._model, (Message("user", shown),), UNKNOWN_DECODING, None)
        with self._journal.transaction():
            self._journal.add_combinations([item.combination])
            self._journal.record(request, Reply(document_of(answer)), origin="imported")
        self._journal.into_one_file()
        attempts.by_number[number] = answer
        return True

    def store_all(self, answers: Mapping[str, HumanAnswer]) -> int:
        """Store answers by text id, and return how many were new; if any answer has a fault, store nothing."""
        with self._journal.transaction():
            new = sum(self.store(self._task.items[own], answer) for own, answer in answers.items())
        self._journal.into_one_file()
        return new


_VOTES = "Give each criterion 1 (yes), 0 (no) or None (unsure)."


def fault_of(item: AnnotationItem, answer: HumanAnswer) -> str | None:
    """Describe why an answer does not fit a text; None if it fits."""
    names = [criterion.name for criterion in item.criteria]
    missing = [name for name in names if name not in answer.votes]
    unknown = [name for name in answer.votes if name not in names]
    if missing or unknown:
        return f"it has no vote on {missing[0]!r}" if missing else f"{unknown[0]!r} is not one of its criteria"
    wrong = next((name for name in names if not is_vote(answer.votes[name])), None)
    if wrong is not None:
        return f"the vote on {wrong!r} is {answer.votes[wrong]!r}"
    if len(answer.comment) > LONGEST_COMMENT:
        return f"the comment has {len(answer.comment)} characters, but at most {LONGEST_COMMENT} are allowed"
    if answer.seconds is not None and not is_duration(answer.seconds):
        return f"{answer.seconds!r} is not a number of seconds"
    return None


def make_task(run: Run, settings: TaskSettings) -> AnnotationTask:
    """Choose the texts of each rater."""
    if run.has_outcomes:
        raise UserError(
            f"The graders of {run.name} assign outcomes, but people are asked about skills, topic and sense.",
            hint="Read the texts with `skillmix texts` or in the run's report.",
        )
    records = run_records(run)
    students = {text.student for text in records.texts}
    for student in settings.students:
        if student not in students:
            listed = f"Its students: {', '.join(sorted(students)) or 'none'}."
            hint = name_hint(student, students, otherwise=listed)
            raise NothingToRead(f"The run {run.name} has no student {student!r}.", hint=hint)
    everything = items_of(records)
    is_whole = not settings.students and not settings.ks
    wanted = everything if is_whole else items_of(records, students=settings.students, ks=settings.ks)
    if not wanted:
        raise NothingToRead(
            f"The run {run.name} has no text for people to read.",
            hint="Run it first, or choose another student or k. Empty answers and refusals are not shown.",
        )
    answers = {rater: stored_answers(run.people, rater) for rater in settings.raters}
    answered = {
        rater: [item.id for item in wanted if attempts_at(own, item.text).latest is not None]
        for rater, own in answers.items()
    }
    texts, n, seed = [item.candidate for item in wanted], settings.texts, settings.seed
    assignment = assign(texts, settings.raters, n=n, overlap=settings.overlap, seed=seed, answered=answered)
    items = {item.id: item for item in (*everything, *wanted)}
    return AnnotationTask(run, settings, items, assignment, answers)


@dataclass(frozen=True, slots=True)
class RaterProgress:
    """The progress of one rater in a step."""

    rater: str
    texts: int
    answered: int
    is_simulated: bool

    @property
    def left(self) -> int:
        """Return the number of texts without an answer."""
        return self.texts - self.answered

    @property
    def in_words(self) -> str:
        """Describe the progress in a clause."""
        kind = " (simulated)" if self.is_simulated else ""
        return f"{self.rater}{kind} has answered {whole(self.answered)} of {plural(self.texts, 'text')}"


def annotate_step_of(run: Run, name: str) -> AnnotateStep:
    """Find an annotate step of a run by name."""
    steps = [step for step in run.experiment.steps if isinstance(step, AnnotateStep)]
    found = next((step for step in steps if step.name == name), None)
    if found is None:
        known = [step.name for step in steps]
        listed = f"Its annotate steps: {', '.join(known)}." if known else "Name the people with --rater instead."
        raise UserError(
            f"The run {run.name} has no annotate step {name!r}.", hint=name_hint(name, known, otherwise=listed)
        )
    return found


def step_task(step: AnnotateStep, run: Run) -> AnnotationTask:
    """Make the annotation task that a step describes."""
    students, ks = tuple(step.read_students or ()), tuple(step.k or ())
    sizes = (step.n, step.width, step.agreement, step.overlap, step.seed)
    return make_task(run, TaskSettings(tuple(step.raters), *sizes, students, ks))


def step_progress(step: AnnotateStep, task: AnnotationTask) -> list[RaterProgress]:
    """Return the progress of each rater in a step."""
    counts = {rater: (len(task.texts(rater)), len(task.open_texts(rater))) for rater in task.raters}
    return [RaterProgress(rater, n, n - left, rater in step.simulated) for rater, (n, left) in counts.items()]


def run_progress(run: Run) -> dict[str, list[RaterProgress]]:
    """Return the progress of the raters in each annotate step; the list is empty for a step without texts."""
    found: dict[str, list[RaterProgress]] = {}
    for step in run.experiment.steps:
        if isinstance(step, AnnotateStep):
            try:
                found[step.name] = step_progress(step, step_task(step, run))
            except NothingToRead:
                found[step.name] = []
    return found


def answer_by_script(step: AnnotateStep, task: AnnotationTask) -> int:
    """Let the simulated raters answer their open texts, and return the number of new answers."""
    stored = 0
    for rater, spec in step.simulated.items():
        with task.answering(rater, model=spec) as store:
            script = scripted_rater(spec)
            answers = {}
            for item in task.open_texts(rater):
                names = [criterion.name for criterion in item.criteria]
                answers[item.id] = HumanAnswer(script.votes(rater, item.combination, item.words, names))
            stored += store.store_all(answers)
    return stored
