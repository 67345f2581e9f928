"""The graded texts of a run, those with the most points first."""

from dataclasses import asdict, dataclass

from skillmix.errors import UserError
from skillmix.grading.answers import AnswerStatus, Rules
from skillmix.grading.ballots import Ballot
from skillmix.grading.outcomes.outcome_points import outcome_of
from skillmix.grading.points import text_score, woven_full_marks
from skillmix.prompts.rubric import OUTCOMES, TextOutcome
from skillmix.render.nearest import name_hint
from skillmix.runs.reading.run_records import RunRecords, run_records
from skillmix.runs.reading.text_facts import TextFacts, TextFactsReader
from skillmix.runs.run import Run, opened


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
    records = run_records(run)
    students = dict.fromkeys(text.student for text in records.texts)
    if student is not None and student not in students:
        raise UserError(
            f"The run {run.name} has no student {student!r}.",
            hint=name_hint(student, students, otherwise=f"Its students: {', '.join(students) or 'none'}."),
        )
    rules = run.rules()
    reader = TextFactsReader(run, rules)
    rows = [
        _row(ballot, records, rules, reader.facts(ballot.text))
        for ballot in records.ballots
        if student in (None, ballot.text.student) and k in (None, ballot.text.combination.k)
    ]
    return sorted(rows, key=lambda t: (-(t.full_marks or 0), -len(t.skills), -sum(map(bool, t.points.values()))))


def _row(ballot: Ballot, records: RunRecords, rules: Rules, facts: TextFacts) -> TextRow:
    text, points = ballot.text, ballot.points(rules, records.run.phrases)
    names = [criterion.name for criterion in ballot.rubric(records.run.phrases).criteria]
    verdict = records.verdict(ballot)
    is_scored = not records.run.has_outcomes
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
        reasons=records.reasons(ballot, points, rules, verdict),
        woven={name: verdict.woven[name] for name, words in quoted.items() if words} if verdict else {},
        full_marks=text_score(points, "full_marks") if is_scored else None,
        skill_fraction=text_score(points, "skill_fraction") if is_scored else None,
        woven_full_marks=None if verdict is None else woven_full_marks(points, ballot.is_woven),
        combination=text.combination.id,
        k=text.combination.k,
        **asdict(facts),
    )
