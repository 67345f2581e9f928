"""A whole run in memory: its texts, and a ballot of every grader on each; replies are dropped once they are read."""

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import chain
from typing import NamedTuple

from skillmix.calls import GradeKey, is_human
from skillmix.checkers.judge import Verdict
from skillmix.grading.answers import Rules
from skillmix.grading.ballots import Ballot, StudentText
from skillmix.grading.points import Points, earns_nothing
from skillmix.grading.reader import Reading
from skillmix.grading.reasons import format_reasons, outcome_reasons, reasons_of
from skillmix.prompts.rubric import Rubric, rubric_of
from skillmix.runs.judging.judged_texts import judged_conversations
from skillmix.runs.reading.deciding import Votes, ballot_of, latest_votes_of, votes_of
from skillmix.runs.reading.graded_conversations import conversations
from skillmix.runs.reading.gradings import GradedConversation
from skillmix.runs.rules_grader import CodeVerdict, RulesGrader, applicable_reasons
from skillmix.runs.run import Run


@dataclass(frozen=True, slots=True)
class RunRecords:
    """The texts and ballots of a run, in key order; ballots of code alone, of earlier graders and of people come last.

    People vote on a sample of the texts, so their ballots belong into no score; `graders_ballots` leaves them out.
    """

    run: Run
    texts: list[StudentText]
    ballots: list[Ballot]

    @property
    def graders_ballots(self) -> Iterator[Ballot]:
        """The ballots of models and code."""
        return (ballot for ballot in self.ballots if not is_human(ballot.grader))

    def rubric_of(self, text: StudentText) -> Rubric:
        """The rubric of one text."""
        return rubric_of(text.combination.skills, text.combination.topic, phrases=self.run.phrases)

    def verdict(self, ballot: Ballot) -> Verdict | None:
        """The verdict of code on a text; None under a grader without code."""
        if self.run.code is None or not self.run.grader(ballot.grader).has_code:
            return None
        return _verdict(self.run.code, ballot.text)

    def reasons(self, ballot: Ballot, points: Points, rules: Rules, verdict: Verdict | None) -> dict[str, str]:
        """Why code denied points of a text, by criterion."""
        is_alone = self.run.grader(ballot.grader).is_code_alone
        by_checkers = applicable_reasons(verdict, is_alone=is_alone) if verdict else {}
        text, phrases = ballot.text, self.run.phrases
        if phrases.outcomes:
            return outcome_reasons(text.answer)
        skills = text.combination.skills
        given = {**by_checkers, **format_reasons(text.answer.text, len(skills), phrases.format)}
        return reasons_of(points, skills, text.answer, rules, given, is_cut=text.is_cut)


def run_records(run: Run) -> RunRecords:
    """The records of a run; they are read once, unless this process is writing to the run."""
    return run.remember("records", lambda: _read_records(run))


def _read_records(run: Run) -> RunRecords:
    builder = RecordsBuilder(run, run.code)
    with run.read() as journal:
        for conversation, judged in judged_conversations(run, conversations(run, journal), run.code):
            builder.add(conversation, judged)
    return builder.records()


class RecordsPart(NamedTuple):
    """The records of some conversations, before a builder has put those of the whole run in order."""

    texts: list[StudentText]
    ballots: list[Ballot]
    code_ballots: list[Ballot]
    earlier_ballots: list[Ballot]
    imported_votes: list[dict[str, Votes]]

    @property
    def all_ballots(self) -> Iterator[Ballot]:
        """The ballots of the part; those of an imported run are made from all its parts together."""
        return chain(self.ballots, self.code_ballots, self.earlier_ballots)


class RecordsBuilder:
    """Makes the records of a run from its conversations."""

    def __init__(self, run: Run, code: RulesGrader | None) -> None:
        self._run = run
        self._texts: list[StudentText] = []
        self._ballots: list[Ballot] = []
        self._code_ballots: list[Ballot] = []
        self._earlier_ballots: list[Ballot] = []
        self._earlier_plan = _earlier_plan(run)
        self._imported_votes: list[dict[str, Votes]] = []
        alone = [grader for grader in run.graders.values() if code is not None and grader.is_code_alone]
        self._code_alone = alone
        self._asked = sorted((g for g in run.graders.values() if g not in alone), key=lambda grader: grader.name)

    def add(self, conversation: GradedConversation, verdict: CodeVerdict | None) -> None:
        """Take in a conversation, with the verdict of code on its text if some grader has code."""
        text = conversation.text
        votes = _votes_by_grader(conversation)
        self._texts.append(text)
        if self._run.is_imported:
            self._imported_votes.append(votes)
            return
        self._ballots += self._by_models(text, votes, verdict)
        self._code_ballots += self._by_code(text, verdict)
        self._earlier_ballots += self._by_earlier_graders(text, votes, verdict)

    def take(self) -> RecordsPart:
        """What was added since the last call; the builder goes on without it."""
        part = RecordsPart(self._texts, self._ballots, self._code_ballots, self._earlier_ballots, self._imported_votes)
        self._texts, self._imported_votes = [], []
        self._ballots, self._code_ballots, self._earlier_ballots = [], [], []
        return part

    def join(self, part: RecordsPart) -> None:
        """Add what another builder of the run has taken in; parts come in key order."""
        self._texts += part.texts
        self._ballots += part.ballots
        self._code_ballots += part.code_ballots
        self._earlier_ballots += part.earlier_ballots
        self._imported_votes += part.imported_votes

    def ballots_on(self, conversation: GradedConversation, verdict: CodeVerdict | None) -> list[Ballot]:
        """All ballots on one text, which need not be added; only for runs that were not imported."""
        text, votes = conversation.text, _votes_by_grader(conversation)
        own = (*self._by_models(text, votes, verdict), *self._by_code(text, verdict))
        return [*own, *self._by_earlier_graders(text, votes, verdict)]

    def _by_models(self, text: StudentText, votes: Mapping[str, Votes], verdict: CodeVerdict | None) -> list[Ballot]:
        return [ballot_of(text, grader, votes.get(grader.name, {}), verdict) for grader in self._asked]

    def _by_code(self, text: StudentText, verdict: CodeVerdict | None) -> list[Ballot]:
        return [ballot_of(text, grader, {}, verdict) for grader in self._code_alone]

    def _by_earlier_graders(
        self, text: StudentText, votes: Mapping[str, Votes], verdict: CodeVerdict | None
    ) -> Iterator[Ballot]:
        """Ballots of graders that the experiment does not name: those who voted, and those planned by earlier ones."""
        planned = self._earlier_plan.get((text.student, text.combination.id), ())
        for name in sorted({*votes, *planned} - self._run.graders.keys()):
            grader = self._run.grader(name)
            if not (grader.is_code_alone and verdict is None):
                yield ballot_of(text, grader, votes.get(name, {}), verdict)

    def records(self) -> RunRecords:
        """The records of all conversations that were added."""
        if self._run.is_imported:
            return RunRecords(self._run, self._texts, self._imported_ballots())
        earlier = [*self._earlier_ballots, *self._unasked_ballots()]
        return RunRecords(self._run, self._texts, [*self._ballots, *self._code_ballots, *earlier])

    def _unasked_ballots(self) -> Iterator[Ballot]:
        """Texts that earn nothing, under graders that no known experiment names; nobody asks a grader about them."""
        known = self._run.known_graders
        unknown = [b for b in self._earlier_ballots if b.grader not in known and not is_human(b.grader)]
        graders: dict[tuple[str, int], set[str]] = defaultdict(set)
        for ballot in unknown:
            graders[ballot.text.student, ballot.text.combination.k].add(ballot.grader)
        asked = {(ballot.text.conversation, ballot.grader) for ballot in unknown}
        rules = self._run.rules()
        for text in self._texts if unknown else ():
            if earns_nothing(text.answer, rules):
                for name in sorted(graders.get((text.student, text.combination.k), ())):
                    if (text.conversation, name) not in asked:
                        yield ballot_of(text, self._run.grader(name), {}, None)

    def _imported_ballots(self) -> list[Ballot]:
        """Every text under every grader of its student, and under the people who voted on it.

        A student who earned nothing with every text was never given to a grader, and stands under each of them.
        """
        graders: dict[str, set[str]] = defaultdict(set)
        for text, votes in zip(self._texts, self._imported_votes, strict=True):
            graders[text.student].update(name for name in votes if not is_human(name))
        everyone = set[str]().union(*graders.values())
        gradeable = {text.student for text in self._texts if text.answer.text}
        by_graders = [
            ballot_of(text, self._run.graders[name], votes.get(name, {}), None)
            for text, votes in zip(self._texts, self._imported_votes, strict=True)
            for name in sorted(graders[text.student] if text.student in gradeable else everyone)
        ]
        by_people = [
            ballot_of(text, self._run.grader(name), votes[name], None)
            for text, votes in zip(self._texts, self._imported_votes, strict=True)
            for name in sorted(filter(is_human, votes))
        ]
        return [*by_graders, *by_people]


def _earlier_plan(run: Run) -> dict[tuple[str, str], set[str]]:
    """The graders that earlier experiments planned, by student and combination."""
    plan: dict[tuple[str, str], set[str]] = defaultdict(set)
    for cell in run.earlier_cells:
        for combination in cell.combinations:
            plan[cell.student, combination.id].update(cell.graders)
    return plan


def _votes_by_grader(conversation: GradedConversation) -> dict[str, Votes]:
    attempts: dict[str, list[tuple[int, Reading | None]]] = {}
    for call, reading in zip(conversation.calls, conversation.readings, strict=True):
        key = call.key
        assert isinstance(key, GradeKey)  # conversations join grading calls only
        attempts.setdefault(key.grader, []).append((key.round, reading))
    return {grader: (latest_votes_of if is_human(grader) else votes_of)(own) for grader, own in attempts.items()}


def _verdict(code: RulesGrader, text: StudentText) -> Verdict:
    return code.verdict(text.answer.text, skills=text.combination.skills, topic=text.combination.topic)
