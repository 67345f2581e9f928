"""The texts of a run, and a ballot of every grader on each; replies are dropped once they are read.

`run_records` keeps the whole run in memory. `texts_with_ballots` gives the same texts and ballots one text at a time.
"""

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import NamedTuple

from skillmix.calls import is_human
from skillmix.checkers.judge import Verdict
from skillmix.grading.answers import Rules
from skillmix.grading.ballots import Ballot, StudentText
from skillmix.grading.points import Points, earns_nothing
from skillmix.grading.reader import Reading
from skillmix.grading.reasons import format_reasons, outcome_reasons, reasons_of
from skillmix.prompts.rubric import Rubric, rubric_of
from skillmix.runs.journal.journal import JournalReader
from skillmix.runs.judging.judged_texts import judged_conversations
from skillmix.runs.reading.deciding import Votes, ballot_of, latest_votes_of, votes_of
from skillmix.runs.reading.graded_conversations import (
    ConversationKey,
    conversations,
    in_blocks,
    ungraded_conversations,
)
from skillmix.runs.reading.gradings import GradedConversation, grade_key
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


def verdict_on(run: Run, ballot: Ballot) -> Verdict | None:
    """The verdict of code on a text; None under a grader without code."""
    if run.code is None or not run.grader(ballot.grader).has_code:
        return None
    return _verdict(run.code, ballot.text)


def reasons_for(run: Run, ballot: Ballot, points: Points, rules: Rules, verdict: Verdict | None) -> dict[str, str]:
    """Why code denied points of a text, by criterion."""
    is_alone = run.grader(ballot.grader).is_code_alone
    by_checkers = applicable_reasons(verdict, is_alone=is_alone) if verdict else {}
    text, phrases = ballot.text, run.phrases
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


class TextWithBallots(NamedTuple):
    """One text of a run with the ballots on it."""

    text: StudentText
    groups: tuple[Sequence[Ballot], ...]
    """The ballots in the groups that `RunRecords` lists one after the other, each for all texts."""

    @property
    def ballots(self) -> Iterator[Ballot]:
        """The ballots in the order of `RunRecords`."""
        return chain.from_iterable(self.groups)


def texts_with_ballots(
    run: Run, journal: JournalReader, *, combinations: Iterable[str] | None = None
) -> Iterator[TextWithBallots]:
    """Every text in key order with the ballots that `RunRecords` has on it; only a few texts are in memory at once.

    With `combinations`, only their texts are read, and the journal gives no others from then on.
    """
    builder = RecordsBuilder(run, run.code)
    voters = _Voters(run)
    if run.is_imported or any(is_unknown(run, name) for name in journal.graders()):
        # The ballots on a text depend on who voted on other texts, so a first pass looks for them.
        for text, calls in ungraded_conversations(run, journal):
            voters.add(text, {grade_key(call).grader for call in calls})
    if combinations is not None:
        journal.limit_calls(combinations)
    source = judged_conversations(run, conversations(run, journal), run.code)
    yield from in_blocks(builder.with_ballots(*conversation, voters) for conversation in source)


def is_unknown(run: Run, grader: str) -> bool:
    """Whether no known experiment of the run names a grader; people are in no experiment, and are known."""
    return grader not in run.known_graders and not is_human(grader)


class _Voters:
    """Graders who stand on texts without a vote of theirs: those of an import, and those that no experiment names."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._by_student: dict[str, set[str]] = defaultdict(set)
        self._gradeable: set[str] = set()
        self._unknown: dict[tuple[str, int], set[str]] = defaultdict(set)

    @property
    def has_unknown(self) -> bool:
        """Whether a grader voted that no experiment of the run names."""
        return bool(self._unknown)

    def add(self, text: StudentText, graders: Iterable[str]) -> None:
        """Note who voted on a text."""
        if self._run.is_imported:
            self._by_student[text.student].update(name for name in graders if not is_human(name))
            if text.answer.text:
                self._gradeable.add(text.student)
        elif unknown := [name for name in graders if is_unknown(self._run, name)]:
            self._unknown[text.student, text.combination.k].update(unknown)

    def of_import(self, student: str) -> list[str]:
        """The graders under which all texts of a student stand.

        A student who earned nothing with every text was never given to a grader, and stands under each of them.
        """
        if student in self._gradeable:
            return sorted(self._by_student[student])
        return sorted(set[str]().union(*self._by_student.values()))

    def unknown(self, text: StudentText) -> list[str]:
        """The graders that no experiment names and that voted on texts of the same student and k."""
        return sorted(self._unknown.get((text.student, text.combination.k), ()))


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
        self._rules = run.rules()
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

    def with_ballots(
        self, conversation: GradedConversation, verdict: CodeVerdict | None, voters: _Voters
    ) -> TextWithBallots:
        """A text with all ballots on it, which need not be added."""
        text, votes = conversation.text, _votes_by_grader(conversation)
        if self._run.is_imported:
            return TextWithBallots(text, self._imported(text, votes, voters))
        earlier = list(self._by_earlier_graders(text, votes, verdict))
        unasked = self._unasked(text, {ballot.grader for ballot in earlier}, voters)
        groups = (self._by_models(text, votes, verdict), self._by_code(text, verdict), earlier, unasked)
        return TextWithBallots(text, groups)

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
        """The ballots on texts that earn nothing under graders that no known experiment names."""
        voters = _Voters(self._run)
        asked: dict[ConversationKey, set[str]] = defaultdict(set)
        for ballot in self._earlier_ballots:
            voters.add(ballot.text, [ballot.grader])
            asked[ballot.text.conversation].add(ballot.grader)
        for text in self._texts if voters.has_unknown else ():
            yield from self._unasked(text, asked.get(text.conversation, ()), voters)

    def _unasked(self, text: StudentText, asked: Collection[str], voters: _Voters) -> list[Ballot]:
        """Ballots on a text that earns nothing: nobody asks a grader about it."""
        if not earns_nothing(text.answer, self._rules):
            return []
        names = [name for name in voters.unknown(text) if name not in asked]
        return [ballot_of(text, self._run.grader(name), {}, None) for name in names]

    def _imported_ballots(self) -> list[Ballot]:
        voters = _Voters(self._run)
        for text, votes in zip(self._texts, self._imported_votes, strict=True):
            voters.add(text, votes)
        both = [self._imported(*own, voters) for own in zip(self._texts, self._imported_votes, strict=True)]
        by_graders, by_people = zip(*both, strict=True) if both else ((), ())
        return list(chain(*by_graders, *by_people))

    def _imported(
        self, text: StudentText, votes: Mapping[str, Votes], voters: _Voters
    ) -> tuple[list[Ballot], list[Ballot]]:
        """The ballots on a text of every grader of its student, and of the people who voted on it."""
        graders = [self._run.graders[name] for name in voters.of_import(text.student)]
        people = [self._run.grader(name) for name in sorted(filter(is_human, votes))]
        by_graders = [ballot_of(text, grader, votes.get(grader.name, {}), None) for grader in graders]
        return by_graders, [ballot_of(text, person, votes[person.name], None) for person in people]


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
        key = grade_key(call)
        attempts.setdefault(key.grader, []).append((key.round, reading))
    return {grader: (latest_votes_of if is_human(grader) else votes_of)(own) for grader, own in attempts.items()}


def _verdict(code: RulesGrader, text: StudentText) -> Verdict:
    return code.verdict(text.answer.text, skills=text.combination.skills, topic=text.combination.topic)
