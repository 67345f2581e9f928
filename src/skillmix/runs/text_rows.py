"""The graded texts of a run as rows for readers: facts about texts, and why graders denied points."""

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from functools import cached_property
from heapq import nlargest, nsmallest
from typing import NamedTuple

from skillmix.calls import GradeKey, Reply, is_human
from skillmix.catalog.combinations import Combination
from skillmix.errors import UserError
from skillmix.experiment.plan import PlannedCell
from skillmix.grading.answers import AnswerStatus, Rules, count_sentences
from skillmix.grading.points import Ballot, StudentText, outcome_of, text_score, woven_full_marks
from skillmix.grading.reader import outcome_words, read_grades, words_about
from skillmix.prompts.rubric import OUTCOMES, TextOutcome, length_limit, rubric_of
from skillmix.render import name_hint
from skillmix.runs.run import Run, opened
from skillmix.runs.texts import reasons_for, texts_with_ballots, verdict_on

IMPORTED = "imported"
"""The setting of texts that were imported."""


@dataclass(frozen=True, slots=True)
class TextFacts:
    """What an analysis of a text needs besides its points."""

    settings: tuple[str, ...]
    """Settings whose scores count the text; mostly one. Empty for texts that no score counts."""
    categories: tuple[str | None, ...]
    """The category of each skill, in the order of the skills; None if the catalog does not have the skill."""
    status: AnswerStatus
    finish: str | None
    """Why the reply ended, in the provider's words; None if unknown."""
    cut: bool | None
    """Whether the reply ended at the token limit; None if unknown."""
    characters: int
    words: int
    sentences: int
    """Counted as the scoring rules count them."""
    sentence_limit: int
    """Sentences that the student may write; in an output format its items, turns or lines."""


class TextFactsReader:
    """Works out the facts about the texts of one run."""

    def __init__(self, run: Run, rules: Rules) -> None:
        self._run = run
        self._rules = rules

    def facts(self, text: StudentText) -> TextFacts:
        """The facts about one text."""
        words = text.answer.text
        cells = (self._cells[index] for index in self._by_combination.get(text.combination.id, ()))
        own = (cell for cell in cells if cell.student == text.student and text.generation in cell.numbers)
        settings = (IMPORTED,) if self._run.is_imported else tuple(dict.fromkeys(cell.label for cell in own))
        return TextFacts(
            settings=settings,
            categories=tuple(self._categories.get(skill) for skill in text.combination.skills),
            status=text.answer.status,
            finish=text.finish,
            cut=text.is_cut,
            characters=len(words),
            words=len(words.split()),
            sentences=count_sentences(words, self._rules.counter),
            sentence_limit=length_limit(text.combination.k, self._run.phrases.format),
        )

    @cached_property
    def _cells(self) -> list[PlannedCell]:
        now, before = counted_cells(self._run)
        return [*now, *before]

    @cached_property
    def _by_combination(self) -> dict[str, tuple[int, ...]]:
        """The indices of the cells of each combination; equal ones are in memory once, as a run may have millions."""
        found: dict[str, tuple[int, ...]] = {}
        once: dict[tuple[int, ...], tuple[int, ...]] = {}
        for index, cell in enumerate(self._cells):
            for combination in cell.combinations:
                indices = (*found.get(combination.id, ()), index)
                found[combination.id] = once.setdefault(indices, indices)
        return found

    @cached_property
    def _categories(self) -> dict[str, str]:
        catalog = self._run.unchanged_catalog
        return {skill.name: skill.category for skill in catalog.skills} if catalog else {}


def counted_cells(run: Run) -> tuple[list[PlannedCell], list[PlannedCell]]:
    """The cells that scores count, of the present experiment and of earlier ones.

    Texts that were written for training data do not stand for an evaluation.
    """
    evaluated = {(c.student, c.label, c.k) for c in (*run.cells, *run.earlier_cells) if c.purpose == "evaluation"}
    now, before = (
        [c for c in cells if c.purpose == "evaluation" or (c.student, c.label, c.k) not in evaluated]
        for cells in (run.cells, run.earlier_cells)
    )
    return now, before


@dataclass(frozen=True, slots=True)
class TextRow:
    """One text of a student, graded by one grader."""

    student: str
    grader: str
    skills: tuple[str, ...]
    topic: str
    generation: int
    text: str
    points: dict[str, bool | None]
    """By criterion; None is undecided."""
    evidence: dict[str, str]
    """The words that show a skill, where code found them."""
    reasons: dict[str, str]
    """Why code denied a point, by criterion."""
    woven: dict[str, bool]
    """Whether the text shows a skill about the topic, where code found the skill."""
    full_marks: float | None
    skill_fraction: float | None
    woven_full_marks: float | None
    """None if no code checks the skills. In a run whose graders name outcomes, no text has any of these scores."""
    combination: str
    k: int
    settings: tuple[str, ...]
    """Settings whose scores count the text."""
    categories: tuple[str | None, ...]
    """The category of each skill; None if the catalog does not have the skill."""
    status: AnswerStatus
    finish: str | None
    """Why the reply ended, in the provider's words; None if unknown."""
    cut: bool | None
    """Whether the reply ended at the token limit; None if unknown."""
    characters: int
    words: int
    sentences: int
    sentence_limit: int

    @property
    def outcome(self) -> TextOutcome | None:
        """Whether the student complies, refuses or evades; None if undecided, or if the text has points instead."""
        return outcome_of(list(self.points.values())) if self.has_outcome else None

    @property
    def has_outcome(self) -> bool:
        """Whether the graders of the run name outcomes; `points` then has one entry for each of the three."""
        return tuple(self.points) == OUTCOMES


def run_texts(run: Run | str, *, student: str | None = None, k: int | None = None) -> list[TextRow]:
    """Graded texts of a run: full marks first, then larger k, then more points."""
    run = opened(run)
    rules = run.rules()
    ballots = _PlacedBallots(run, rules, student, k)
    found = sorted(ballots.read())
    _require_student(run, student, ballots.students)
    reader = TextFactsReader(run, rules)
    return [_row(ballot, run, rules, reader.facts(ballot.text)) for _, ballot in found]


class FirstTexts(NamedTuple):
    """Some graded texts of a run, and how many there are."""

    rows: list[TextRow]
    total: int


def first_texts(
    run: Run | str, count: int, *, student: str | None = None, k: int | None = None, worst: bool = False
) -> FirstTexts:
    """The first of the texts that `run_texts` gives, or the last ones, the last first; no others stay in memory."""
    run = opened(run)
    rules = run.rules()
    ballots = _PlacedBallots(run, rules, student, k)
    chosen = (nlargest if worst else nsmallest)(count, ballots.read())
    _require_student(run, student, ballots.students)
    reader = TextFactsReader(run, rules)
    return FirstTexts([_row(own, run, rules, reader.facts(own.text)) for _, own in chosen], ballots.total)


class _PlacedBallots:
    """The ballots on the texts of one student and k, or of all, with what puts them into the order of `run_texts`."""

    def __init__(self, run: Run, rules: Rules, student: str | None, k: int | None) -> None:
        self._run = run
        self._rules = rules
        self._student = student
        self._k = k
        self.students: dict[str, None] = {}
        """The students whose texts were read, also those that are not asked for."""
        self.total = 0
        """The number of ballots that were read."""

    def read(self) -> Iterator[tuple[tuple[float, ...], Ballot]]:
        """Every ballot, in the order of the journal; no two have the same place."""
        with self._run.read() as journal:
            for number, found in enumerate(texts_with_ballots(self._run, journal)):
                self.students[found.text.student] = None
                text = found.text
                if self._student in (None, text.student) and self._k in (None, text.combination.k):
                    for group, ballots in enumerate(found.groups):
                        self.total += len(ballots)
                        yield from (((*self._rank(b), group, number, i), b) for i, b in enumerate(ballots))

    def _rank(self, ballot: Ballot) -> tuple[float, int, int]:
        points = ballot.points(self._rules, self._run.phrases)
        full_marks = None if self._run.has_outcomes else text_score(points, "full_marks")
        return _rank(full_marks, ballot.text.combination.k, points)


def _rank(full_marks: float | None, k: int, points: Iterable[bool | None]) -> tuple[float, int, int]:
    return -(full_marks or 0), -k, -sum(map(bool, points))


def _require_student(run: Run, student: str | None, known: Collection[str]) -> None:
    if student is not None and student not in known:
        raise UserError(
            f"The run {run.name} has no student {student!r}.",
            hint=name_hint(student, known, otherwise=f"Its students: {', '.join(known) or 'none'}."),
        )


def _row(ballot: Ballot, run: Run, rules: Rules, facts: TextFacts) -> TextRow:
    text, points = ballot.text, ballot.points(rules, run.phrases)
    names = [criterion.name for criterion in ballot.rubric(run.phrases).criteria]
    verdict = verdict_on(run, ballot)
    is_scored = not run.has_outcomes
    quoted = {name: verdict.quote(span) for name, span in verdict.evidence.items()} if verdict else {}
    return TextRow(
        student=text.student,
        grader=ballot.grader,
        skills=text.combination.skills,
        topic=text.combination.topic,
        generation=text.generation,
        text=text.answer.text,
        points=dict(zip(names, points, strict=True)),
        evidence={name: words for name, words in quoted.items() if words},
        reasons=reasons_for(run, ballot, points, rules, verdict),
        woven={name: woven for name, woven in verdict.woven.items() if quoted.get(name)} if verdict else {},
        full_marks=text_score(points, "full_marks") if is_scored else None,
        skill_fraction=text_score(points, "skill_fraction") if is_scored else None,
        woven_full_marks=None if verdict is None else woven_full_marks(points, ballot.is_woven),
        combination=text.combination.id,
        k=text.combination.k,
        **asdict(facts),
    )


class TextUnderGrader(NamedTuple):
    """A text under one grader."""

    student: str
    combination: str
    generation: int
    grader: str


def denial_words(run: Run, denied: Mapping[TextUnderGrader, Collection[str]]) -> dict[TextUnderGrader, dict[str, str]]:
    """By text and criterion, what a grader wrote about a point that it denied; criteria without such words are absent.

    `denied` has the criteria of interest. The keys of the journal are read to the end, so call this once for all texts.
    """
    words: dict[TextUnderGrader, dict[str, str]] = {}
    if not any(denied.values()):
        return words
    with run.read() as journal:
        wanted = {text.combination for text in denied}
        combinations = journal.combinations_of(wanted)
        journal.limit_calls(wanted)
        for call in journal.calls("grade"):
            key = call.key
            assert isinstance(key, GradeKey)  # the stage holds grading calls only
            text = TextUnderGrader(key.student, key.combination, key.generation, key.grader)
            if text in denied and isinstance(call.outcome, Reply) and not is_human(key.grader):
                found = _words_in(run, combinations[key.combination], call.outcome.text, denied[text])
                words[text] = {**found, **words.get(text, {})}
    return words


def _words_in(run: Run, combination: Combination, reply: str, denied: Collection[str]) -> dict[str, str]:
    """What one reply says about the denied criteria that it denies itself, or about the outcome that it names."""
    rubric = rubric_of(combination.skills, combination.topic, phrases=run.phrases)
    points = read_grades(rubric, reply).by_name(rubric) or {}
    if rubric.has_outcomes:
        words = outcome_words(reply)
        return {name: words for name in denied if words and points.get(name) == 1.0}
    about = {
        criterion.name: words_about(rubric, index, reply)
        for index, criterion in enumerate(rubric.criteria)
        if criterion.name in denied and points.get(criterion.name) == 0.0
    }
    return {name: words for name, words in about.items() if words}
