"""A run's journal, read into texts and ballots."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from skillmix.checkers.judge import Verdict
from skillmix.grading.answers import Rules
from skillmix.grading.ballots import Ballot, ReadCall, Rounds, StudentText, ballots, read_calls, student_texts
from skillmix.grading.points import Points
from skillmix.grading.reasons import reasons_of
from skillmix.prompts.rubric import Phrases, Rubric, rubric_of
from skillmix.runs.rules_grader import RulesGrader, applicable_reasons
from skillmix.runs.run import Run


@dataclass(frozen=True, slots=True)
class OldRecords:
    """What a run's journal says, read anew: texts, and every grader's ballot on each."""

    texts: list[StudentText]
    ballots: list[Ballot]
    phrases: Phrases
    rounds: Rounds | None = None
    """Votes that count, by grader; None for an imported run, where all do."""
    code: RulesGrader | None = None
    graders_with_code: Mapping[str, bool] = field(default_factory=dict)
    """Graders of which code is a part, and whether it decides alone."""

    def rubric_of(self, text: StudentText) -> Rubric:
        """The rubric of one text."""
        return rubric_of(text.combination.skills, text.combination.topic, phrases=self.phrases)

    def verdict(self, ballot: Ballot) -> Verdict | None:
        """What code found in a text; nothing is known under graders without code."""
        if self.code is None or ballot.grader not in self.graders_with_code:
            return None
        text = ballot.text
        return self.code.verdict(text.answer.text, skills=text.combination.skills, topic=text.combination.topic)

    def reasons(self, ballot: Ballot, points: Points, rules: Rules, verdict: Verdict | None) -> dict[str, str]:
        """Why code denied points of a text, by criterion."""
        is_alone = self.graders_with_code.get(ballot.grader, False)
        found = applicable_reasons(verdict, is_alone=is_alone) if verdict else {}
        return reasons_of(points, ballot.text.combination.skills, ballot.text.answer, rules, found)


def run_records(run: Run) -> OldRecords:
    """Read a run; replies are dropped once they are read, so that memory does not grow with their length."""
    rounds = None if run.is_imported else {name: grader.votes or 0 for name, grader in run.graders.items()}
    with run.read() as journal:
        calls = journal.calls("generate")
        texts = student_texts(calls, journal.combinations(), turns=run.turns)
        read = read_calls(texts, journal.calls("grade"), phrases=run.phrases, rounds=rounds)
        found = ballots(texts, read, rounds=rounds)
    if run.code is None:
        return OldRecords(texts, found, run.phrases, rounds)
    judged = run.code.ballots(found, run.experiment.graders, texts)
    with_code = {grader.name: grader.is_code_alone for grader in run.graders_with_code}
    return OldRecords(texts, judged, run.phrases, rounds, run.code, with_code)


def run_gradings(run: Run, records: OldRecords) -> Iterator[ReadCall]:
    """Every grading of a run that counts, with its reply and its reading, one at a time."""
    with run.read() as journal:
        yield from read_calls(records.texts, journal.calls("grade"), phrases=records.phrases, rounds=records.rounds)
