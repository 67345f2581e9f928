"""A run's journal, read into texts and ballots."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace

from skillmix.catalog.files import load_catalog
from skillmix.checkers.judge import Verdict
from skillmix.errors import UserError
from skillmix.grading.answers import RULES, Rules
from skillmix.grading.ballots import Ballot, ReadCall, Rounds, StudentText, ballots, read_calls, student_texts
from skillmix.grading.points import Points
from skillmix.grading.reasons import reasons_of
from skillmix.prompts.files import load_prompts
from skillmix.prompts.rubric import Phrases, Rubric, rubric_of
from skillmix.runs.conversations import TURNS
from skillmix.runs.experiment_copy import criteria_of, experiment_of_run, read_experiment
from skillmix.runs.rules_grader import RulesGrader, applicable_reasons, graders_with_code
from skillmix.runs.run import RunFolder


@dataclass(frozen=True, slots=True)
class RunRecords:
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


def rules_named(name: str) -> Rules:
    """The rules that decide numbers, by name."""
    if name not in RULES:
        raise UserError(f"There are no rules {name!r}.", hint=f"Known: {', '.join(RULES)}.")
    return RULES[name]


def run_rules(run: RunFolder, name: str | None = None) -> Rules:
    """The rules of that name, or the run's own."""
    experiment = experiment_of_run(read_experiment(run))
    chosen = rules_named(name or (experiment.rules if experiment else "default"))
    return replace(chosen, missing_marker=experiment.answer.missing_marker) if experiment else chosen


def run_records(run: RunFolder) -> RunRecords:
    """Read a run; replies are dropped once they are read, so that memory does not grow with their length."""
    document = read_experiment(run)
    experiment = experiment_of_run(document)
    phrases = load_prompts(experiment.prompts).phrases if experiment else criteria_of(document)
    rounds = {name: settings.votes for name, settings in experiment.graders.items()} if experiment else None
    with run.read() as journal:
        calls = journal.calls("generate")
        texts = student_texts(calls, journal.combinations(), turns=TURNS if experiment else None)
        read = read_calls(texts, journal.calls("grade"), phrases=phrases, rounds=rounds)
        found = ballots(texts, read, rounds=rounds)
    with_code = graders_with_code(experiment.graders) if experiment else {}
    if not experiment or not with_code:
        return RunRecords(texts, found, phrases, rounds)
    code = RulesGrader(load_catalog(experiment.catalog))
    judged = code.ballots(found, experiment.graders, texts)
    return RunRecords(texts, judged, phrases, rounds, code, with_code)


def run_gradings(run: RunFolder, records: RunRecords) -> Iterator[ReadCall]:
    """Every grading of a run that counts, with its reply and its reading, one at a time."""
    with run.read() as journal:
        yield from read_calls(records.texts, journal.calls("grade"), phrases=records.phrases, rounds=records.rounds)
