"""`skillmix texts`: the sentences behind the numbers, those that earned most first."""

from skillmix.commands.pages.text import TextRow
from skillmix.grading.answers import Rules
from skillmix.grading.ballots import Ballot
from skillmix.grading.points import text_score
from skillmix.runs.reading.records import RunRecords, run_records
from skillmix.runs.run import open_run


def run_texts(run_name: str, *, student: str | None = None, k: int | None = None) -> list[TextRow]:
    """Graded texts of a run: full marks first, then by how many skills they show, then the harder ones."""
    run = open_run(run_name)
    records = run_records(run)
    rules = run.rules()
    found = [
        _graded(ballot, records, rules)
        for ballot in records.ballots
        if student in (None, ballot.text.student) and k in (None, ballot.text.combination.k)
    ]
    return sorted(found, key=lambda t: (-(t.full_marks or 0), -len(t.skills), -sum(map(bool, t.points.values()))))


def _graded(ballot: Ballot, records: RunRecords, rules: Rules) -> TextRow:
    text, points = ballot.text, ballot.points(rules, records.run.phrases)
    names = [criterion.name for criterion in ballot.rubric(records.run.phrases).criteria]
    verdict = records.verdict(ballot)
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
        full_marks=text_score(points, "full_marks"),
        skill_fraction=text_score(points, "skill_fraction"),
    )
