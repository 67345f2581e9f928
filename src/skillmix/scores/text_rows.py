"""The graded texts of a run as rows, with facts about the texts and the graders' reasons for denied points."""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import asdict, dataclass
from functools import cached_property
from heapq import nlargest, nsmallest
from typing import TYPE_CHECKING, Any, NamedTuple

from skillmix.calls import GradeKey, Reply, is_human
from skillmix.errors import UserError
from skillmix.experiment.plan import PlannedCell
from skillmix.grading.answers import AnswerStatus, Rules, count_sentences
from skillmix.grading.points import Ballot, StudentText, outcome_of, text_score, woven_full_marks
from skillmix.grading.reader import outcome_words, read_grades, words_about
from skillmix.prompts.rubric import OUTCOMES, TextOutcome, length_limit, rubric_of
from skillmix.render import name_hint
from skillmix.runs.run import Run, opened
from skillmix.runs.texts import reasons_for, texts_with_ballots, verdict_on

if TYPE_CHECKING:
    from skillmix.checkers.judge import Verdict

IMPORTED = "imported"
"""The setting name of imported texts."""


@dataclass(frozen=True, slots=True)
class TextFacts:
    """Properties of a text other than its points, such as its settings and its length."""

    settings: tuple[str, ...]
    """The settings whose scores include the text, usually one; empty if no score includes the text."""
    categories: tuple[str | None, ...]
    """The category of each skill, in the order of the skills; None if the catalog lacks the skill."""
    status: AnswerStatus
    finish: str | None
    """The finish reason that the provider reported; None if unknown."""
    cut: bool | None
    """Whether the reply was truncated at the token limit; None if unknown."""
    characters: int
    words: int
    sentences: int
    """The number of sentences, counted as in the scoring rules."""
    sentence_limit: int
    """The number of sentences that the student may write or, in an output format, of items, turns or lines."""


class TextFactsReader:
    """Computes the `TextFacts` of the texts of one run."""

    def __init__(self, run: Run, rules: Rules) -> None:
        self._run = run
        self._rules = rules

    def facts(self, text: StudentText) -> TextFacts:
        """Compute the facts about one text."""
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
        """Map each combination id to the indices of its cells; equal tuples share memory, as there may be millions."""
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
    """Return the cells included in scores, from the current experiment and from earlier ones.

    A cell of training data is left out if an evaluation has the same student, setting and k.
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
    """The point for each criterion; None if undecided."""
    evidence: dict[str, str]
    """For each skill that code found, the words that show it."""
    reasons: dict[str, str]
    """For each criterion whose point code denied, the reason."""
    woven: dict[str, bool]
    """For each skill that code found, whether the text applies it to the topic."""
    full_marks: float | None
    skill_fraction: float | None
    woven_full_marks: float | None
    """None if code does not check the skills. If the graders of the run give outcomes, all three scores are None."""
    combination: str
    k: int
    settings: tuple[str, ...]
    """The settings whose scores include the text."""
    categories: tuple[str | None, ...]
    """The category of each skill; None if the catalog lacks the skill."""
    status: AnswerStatus
    finish: str | None
    """The finish reason that the provider reported; None if unknown."""
    cut: bool | None
    """Whether the reply was truncated at the token limit; None if unknown."""
    characters: int
    words: int
    sentences: int
    sentence_limit: int

    @property
    def outcome(self) -> TextOutcome | None:
        """Return the outcome: the student complies, refuses or evades.

        The outcome is None if it is undecided, or if the text has points instead.
        """
        return outcome_of(list(self.points.values())) if self.has_outcome else None

    @property
    def has_outcome(self) -> bool:
        """Whether the graders of the run give outcomes; if so, `points` has one entry for each outcome."""
        return tuple(self.points) == OUTCOMES


class FirstTexts(NamedTuple):
    """Selected graded texts of a run, and the number of texts from which they were selected."""

    rows: list[TextRow]
    total: int


def run_texts(run: Run | str, *, student: str | None = None, k: int | None = None) -> list[TextRow]:
    """Return the graded texts of a run, sorted by full marks first, then by larger k, then by more points."""
    return first_texts(run, None, student=student, k=k).rows


def first_texts(
    run: Run | str, count: int | None, *, student: str | None = None, k: int | None = None, worst: bool = False
) -> FirstTexts:
    """Return the first `count` texts in the order of `run_texts` or, with `worst`, the last ones in reverse order.

    If `count` is None, all texts are returned. Otherwise, only the returned texts are kept in memory.
    """
    run = opened(run)
    rules, total, students = run.rules(), 0, dict[str, None]()

    def placed() -> Iterator[tuple[tuple[float, ...], Ballot]]:
        """Yield every ballot with its sort key; all sort keys are different."""
        nonlocal total
        with run.read() as journal:
            for number, found in enumerate(texts_with_ballots(run, journal)):
                students[found.text.student] = None
                own_k = found.text.combination.k
                if student in (None, found.text.student) and k in (None, own_k):
                    for group, ballots in enumerate(found.groups):
                        total += len(ballots)
                        for index, ballot in enumerate(ballots):
                            points = ballot.points(rules, run.phrases)
                            full_marks = None if run.has_outcomes else text_score(points, "full_marks")
                            rank = -(full_marks or 0), -own_k, -sum(map(bool, points))
                            yield (*rank, group, number, index), ballot

    chosen = sorted(placed()) if count is None else (nlargest if worst else nsmallest)(count, placed())
    if student is not None and student not in students:
        raise UserError(
            f"The run {run.name} has no student {student!r}.",
            hint=name_hint(student, students, otherwise=f"Its students: {', '.join(students) or 'none'}."),
        )
    reader = TextFactsReader(run, rules)
    return FirstTexts([_row(ballot, run, rules, reader.facts(ballot.text)) for _, ballot in chosen], total)


def grades_by_name(ballot: Ballot, run: Run, rules: Rules, verdict: "Verdict | None") -> dict[str, Any]:
    """Return a text's points and the reasons for denied points, by criterion, and the words that show each skill."""
    points = ballot.points(rules, run.phrases)
    names = [criterion.name for criterion in ballot.rubric(run.phrases).criteria]
    quoted = {name: verdict.quote(span) for name, span in verdict.evidence.items()} if verdict else {}
    return {
        "points": dict(zip(names, points, strict=True)),
        "evidence": {name: words for name, words in quoted.items() if words},
        "reasons": reasons_for(run, ballot, points, rules, verdict),
    }


def _row(ballot: Ballot, run: Run, rules: Rules, facts: TextFacts) -> TextRow:
    text, points, verdict = ballot.text, ballot.points(rules, run.phrases), verdict_on(run, ballot)
    is_scored = not run.has_outcomes
    grades = grades_by_name(ballot, run, rules, verdict)
    return TextRow(
        student=text.student,
        grader=ballot.grader,
        skills=text.combination.skills,
        topic=text.combination.topic,
        generation=text.generation,
        text=text.answer.text,
        **grades,
        woven={name: woven for name, woven in verdict.woven.items() if name in grades["evidence"]} if verdict else {},
        full_marks=text_score(points, "full_marks") if is_scored else None,
        skill_fraction=text_score(points, "skill_fraction") if is_scored else None,
        woven_full_marks=None if verdict is None else woven_full_marks(points, ballot.is_woven),
        combination=text.combination.id,
        k=text.combination.k,
        **asdict(facts),
    )


class TextUnderGrader(NamedTuple):
    """The identity of a text and of one grader that graded it."""

    student: str
    combination: str
    generation: int
    grader: str


def denial_words(run: Run, denied: Mapping[TextUnderGrader, Collection[str]]) -> dict[TextUnderGrader, dict[str, str]]:
    """Return the graders' comments on points that they denied, by text and criterion.

    `denied` lists the criteria of interest. Criteria without a comment are absent from the result. Call this function
    once for all texts, because each call reads all keys of the journal.
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
            assert isinstance(key, GradeKey)  # the stage contains only grading calls
            text = TextUnderGrader(key.student, key.combination, key.generation, key.grader)
            if text in denied and isinstance(call.outcome, Reply) and not is_human(key.grader):
                combination, reply = combinations[key.combination], call.outcome.text
                rubric = rubric_of(combination.skills, combination.topic, phrases=run.phrases)
                points = read_grades(rubric, reply).by_name(rubric) or {}
                if rubric.has_outcomes:
                    about = outcome_words(reply)
                    found = {name: about for name in denied[text] if points.get(name) == 1.0}
                else:
                    found = {
                        criterion.name: words_about(rubric, index, reply)
                        for index, criterion in enumerate(rubric.criteria)
                        if criterion.name in denied[text] and points.get(criterion.name) == 0.0
                    }
                words[text] = {**{name: own for name, own in found.items() if own}, **words.get(text, {})}
    return words
