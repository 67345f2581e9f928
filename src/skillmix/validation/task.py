"""The task of an annotate step: its settings come from the experiment, and simulated raters answer immediately.

A person's list does not depend on the other people, except where two separate lists would contain the same text. A
person's earlier answers still count if the run, the number of texts or the people have changed.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from itertools import combinations, islice
from typing import Final

from skillmix.calls import human_grader
from skillmix.catalog.catalog import Skill
from skillmix.errors import UserError
from skillmix.experiment.steps import AnnotateStep
from skillmix.hashing import ranked
from skillmix.models.scripted import scripted_rater
from skillmix.render import name_hint, plural, whole
from skillmix.runs.people import LONGEST_COMMENT, HumanAnswer, is_duration, is_vote
from skillmix.runs.run import Run
from skillmix.runs.texts import run_records
from skillmix.runs.verdicts import PERSON
from skillmix.validation.rater_answers import Answers, RaterJournal, latest_answer, stored_answers
from skillmix.validation.sample import (
    AnnotationItem,
    AskedQuestion,
    SampleText,
    checked_agreement,
    items_of,
    questions_about,
    sample_order,
    task_in_words,
    texts_for_width,
)

_ROUNDING: Final = 1e-9


@dataclass(frozen=True, slots=True)
class Assignment:
    """The text ids of each person, in the order in which the person sees the texts."""

    texts: Mapping[str, tuple[str, ...]]

    @property
    def shared(self) -> int:
        """Return the smallest number of texts that any two people have in common; 0 for one person."""
        pairs = combinations(map(set, self.texts.values()), 2)
        return min((len(one & other) for one, other in pairs), default=0)

    @property
    def distinct(self) -> int:
        """Return the number of different texts that people read."""
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
    """Assign n texts to each person, some of which are shared; assign fewer if there are not enough texts.

    If the run has too few texts for separate lists, people share more texts. `answered` lists the texts that each
    person has already answered; these replace unanswered texts, so that no answer is lost.
    """
    orders = {rater: sample_order(candidates, "own", seed, rater) for rater in raters}
    for_all = sample_order(candidates, "shared", seed)
    shared, own = list[str](), {rater: list[str]() for rater in raters}
    taken: set[str] = set()

    def next_of(order: Iterator[str]) -> list[str]:
        """Return the next text that nobody has yet; empty if there is none."""
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
        # if there are too few separate texts, people also read texts from other people's lists
        has = {*shared, *own[rater]}
        more = (one for one in sample_order(candidates, "own", seed, rater) if one not in has)
        own[rater] += islice(more, max(0, n - len(has)))
        # Answered texts replace the last separate texts that have no answer.
        done = [one for one in (answered or {}).get(rater, ()) if one in known]
        has = {*shared, *own[rater]}
        extra = [one for one in done if one not in has]
        replaced = [one for one in reversed(own[rater]) if one not in done][: len(extra)]
        kept = [one for one in (*shared, *own[rater]) if one not in replaced]
        texts[rater] = tuple(ranked([*kept, *extra[: len(replaced)]], "annotate", seed, rater))
    return Assignment(texts)


def is_shared(number: int, overlap: float) -> bool:
    """Whether the text with this number, counted from 0, is for all raters; shared texts are spread evenly.

    >>> [is_shared(number, 0.3) for number in range(10)].count(True)
    3
    """
    return int((number + 1) * overlap + _ROUNDING) > int(number * overlap + _ROUNDING)


TEXTS = 50
"""The default number of texts per person."""


class NothingToRead(UserError):
    """The run, or one of its students, has no text that people could read."""


@dataclass(frozen=True, slots=True)
class TaskSettings:
    """Which people read which texts, and how many."""

    raters: tuple[str, ...]
    n: int | None = None
    """The number of texts for each person; if None, as many as `width` requires, or else 50."""
    width: float | None = None
    """The width of the 95% interval of agreement between a person and a grader."""
    agreement: float = 0.5
    """The agreement at which the interval has this width; .5 is the worst case."""
    overlap: float = 0.3
    """The share of a person's texts that all raters read."""
    seed: int = 0
    students: tuple[str, ...] = ()
    """The students whose texts people read; empty means all students."""
    ks: tuple[int, ...] = ()
    """The numbers of skills of the texts that people read; empty means all."""

    def __post_init__(self) -> None:
        for rater in self.raters:
            human_grader(rater)
            if self.raters.count(rater) > 1:
                raise UserError(f"The rater {rater!r} is named twice.", hint="Give each person one name.")
        if not self.raters:
            raise UserError("No raters given.", hint="Name each person with --rater NAME.")
        if not 0 <= self.overlap <= 1:
            raise UserError(f"{self.overlap} is not a share of texts.", hint="Use a number from 0 to 1.")
        if self.n is not None and self.width is not None:
            raise UserError("The number of texts is given twice.", hint="Give --n or --width, not both.")
        if self.n is not None and self.n < 1:
            raise UserError(f"{self.n} is not a number of texts.", hint="Use 1 or more.")
        checked_agreement(self.agreement)
        if self.width is not None:
            texts_for_width(self.width, agreement=self.agreement)

    @property
    def texts(self) -> int:
        """Return the number of texts for each person."""
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
        """Return the people."""
        return self.settings.raters

    def texts(self, rater: str) -> list[AnnotationItem]:
        """Return the texts of a person, in the order in which the person sees them."""
        return [self.items[one] for one in self.assignment.texts[rater]]

    def answer(self, rater: str, item: AnnotationItem) -> HumanAnswer | None:
        """Return a person's answer about a text when the task was made; None if there was no answer."""
        return latest_answer(self._answers[rater], item.text)

    @cached_property
    def _skills(self) -> dict[str, Skill]:
        catalog = self.run.unchanged_catalog
        return {skill.name: skill for skill in catalog.skills} if catalog else {}

    def questions(self, item: AnnotationItem) -> list[AskedQuestion]:
        """Return the questions about a text."""
        return questions_about(item, self._skills)

    def open_texts(self, rater: str) -> list[AnnotationItem]:
        """Return the texts of a person that had no answer when the task was made."""
        return [item for item in self.texts(rater) if self.answer(rater, item) is None]

    @contextmanager
    def answering(self, rater: str, *, model: str = PERSON) -> Iterator["AnswerStore"]:
        """Open the store for answers of a person, or of a simulated rater with this model string.

        Only one process can store answers for the same name at a time.
        """
        with RaterJournal(self.run.people, rater, model=model) as journal:
            yield AnswerStore(self, journal)


class AnswerStore:
    """Stores the answers of one person, each in one transaction that ends before the answer is reported as stored."""

    def __init__(self, task: AnnotationTask, journal: RaterJournal) -> None:
        self._task = task
        self._journal = journal

    def latest(self, item: AnnotationItem) -> HumanAnswer | None:
        """Return the answer about a text that counts; None if there is none yet."""
        return self._journal.latest(item.text)

    def answered(self, items: Sequence[AnnotationItem]) -> list[bool]:
        """Return, for each of these texts, whether it has an answer."""
        return [self.latest(item) is not None for item in items]

    def store(self, item: AnnotationItem, answer: HumanAnswer) -> bool:
        """Store an answer, and return False if it is already stored; raise an error if the answer has a fault."""
        fault = fault_of(item, answer)
        if fault is not None:
            raise UserError(f"The answer about the text {item.id} cannot be stored: {fault}.", hint=_VOTES)
        return self._journal.store(item.text, task_in_words(item, self._task.questions(item)), answer)

    def store_all(self, answers: Mapping[str, HumanAnswer]) -> int:
        """Store answers by text id, and return how many were new; if any answer has a fault, store nothing."""
        with self._journal.transaction():
            return sum(self.store(self._task.items[own], answer) for own, answer in answers.items())


_VOTES = "Give each criterion 1 (yes), 0 (no) or None (unsure)."


def fault_of(item: AnnotationItem, answer: HumanAnswer) -> str | None:
    """Return why an answer does not fit a text; None if it fits."""
    names = [criterion.name for criterion in item.criteria]
    missing = [name for name in names if name not in answer.votes]
    unknown = [name for name in answer.votes if name not in names]
    if missing or unknown:
        return f"it has no vote on {missing[0]!r}" if missing else f"{unknown[0]!r} is not a criterion of it"
    wrong = next((name for name in names if not is_vote(answer.votes[name])), None)
    if wrong is not None:
        return f"the vote on {wrong!r} is {answer.votes[wrong]!r}"
    if len(answer.comment) > LONGEST_COMMENT:
        return f"the comment has {len(answer.comment)} characters where {LONGEST_COMMENT} are allowed"
    if answer.seconds is not None and not is_duration(answer.seconds):
        return f"{answer.seconds!r} is not a number of seconds"
    return None


def make_task(run: Run, settings: TaskSettings) -> AnnotationTask:
    """Choose the texts of each person, reading the run only once."""
    if run.has_outcomes:
        raise UserError(
            f"The graders of {run.name} give outcomes, but people are asked about skills, topic and sense.",
            hint="Read its texts with skillmix texts or in its report.",
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
            f"The run {run.name} has no text that people could read.",
            hint="Run it first, or choose another student or k. Empty answers and refusals are not shown.",
        )
    answers = {rater: stored_answers(run.people, rater) for rater in settings.raters}
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
        """Describe the rater and how many texts have an answer."""
        kind = " (simulated)" if self.is_simulated else ""
        return f"{self.rater}{kind} has answered {whole(self.answered)} of {plural(self.texts, 'text')}"


def annotate_step_of(run: Run, name: str) -> AnnotateStep:
    """Return the annotate step of a run by name."""
    steps = [step for step in run.experiment.steps if isinstance(step, AnnotateStep)]
    found = next((step for step in steps if step.name == name), None)
    if found is None:
        known = [step.name for step in steps]
        listed = f"Its annotate steps: {', '.join(known)}." if known else "Name people with --rater instead."
        raise UserError(
            f"The run {run.name} has no annotate step {name!r}.", hint=name_hint(name, known, otherwise=listed)
        )
    return found


def step_task(step: AnnotateStep, run: Run) -> AnnotationTask:
    """Make the task of a step, with the answers so far."""
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
