"""Which conversations of a run have full marks, and from which graders: what data sets are made of."""

import json
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import NamedTuple

from skillmix.grading.answers import Rules
from skillmix.grading.points import text_score
from skillmix.runs.run import Run
from skillmix.runs.texts import (
    JudgedConversation,
    WrittenConversation,
    graded_conversations,
    judged_conversations,
    votes_by_grader,
    written_conversations,
)
from skillmix.runs.verdicts import RunGrader, ballot_of


class Decision(NamedTuple):
    """A grader's decision on a text."""

    earned: int | None
    """1 for full marks, 0 for less, None if undecided."""
    text: str
    """The text's id."""
    status: str
    votes: str
    """The points of each round, as JSON."""


class DecidedConversation(NamedTuple):
    """A conversation with what each grader decided about it, in the order of the graders."""

    conversation: WrittenConversation
    decisions: tuple[Decision, ...]
    """Empty if the conversation is not over."""

    @property
    def is_over(self) -> bool:
        """Whether the student has written the text, or never will."""
        return bool(self.decisions)

    @property
    def is_ungraded(self) -> bool:
        """Whether full marks are undecided: no grader denies them, and not all grant them."""
        earned = [decision.earned for decision in self.decisions]
        return bool(earned) and 0 not in earned and None in earned

    @property
    def is_kept(self) -> bool:
        """Whether every grader gives full marks."""
        return bool(self.decisions) and all(decision.earned == 1 for decision in self.decisions)


@dataclass(frozen=True)
class DecisionRules:
    """Everything that turns replies into decisions, for one run."""

    run: Run
    graders: Sequence[RunGrader]
    rules: Rules

    @property
    def names(self) -> list[str]:
        """The names of the graders."""
        return [grader.name for grader in self.graders]

    def decide(self, judged: JudgedConversation) -> tuple[Decision, ...]:
        """The decision of each grader on a conversation that is over."""
        (text, *_), verdict = judged
        votes = votes_by_grader(judged.conversation)
        address = text.id
        decisions = []
        for grader in self.graders:
            ballot = ballot_of(text, grader, votes.get(grader.name, {}), verdict if grader.has_code else None)
            earned = text_score(ballot.points(self.rules, self.run.phrases), "full_marks")
            points = json.dumps([reading.points if reading else None for reading in ballot.readings])
            decisions.append(Decision(None if earned is None else int(earned), address, text.answer.status, points))
        return tuple(decisions)


def decision_rules(run: Run, *, graders: Sequence[str] | None = None, rules: str | None = None) -> DecisionRules:
    """What decides in a run: all of its graders, or those named, under its own rules or others."""
    names = run.graders if graders is None else [name for name in graders if name in run.graders]
    return DecisionRules(run, [run.graders[name] for name in names], run.rules(rules))


def decided_conversations(
    rules: DecisionRules, *, students: Iterable[str] | None = None
) -> Iterator[DecidedConversation]:
    """Every conversation of a run in key order, decided; of these students if any are named."""
    run, chosen = rules.run, None if students is None else frozenset(students)
    code = run.code if any(grader.has_code for grader in rules.graders) else None
    unfinished: list[WrittenConversation] = []
    with run.read() as journal:

        def over() -> Iterator[WrittenConversation]:
            for written in written_conversations(run, journal):
                if chosen is None or written.key[0] in chosen:
                    if written.text is None:
                        unfinished.append(written._replace(turns=()))
                    else:
                        yield written

        source = judged_conversations(run, graded_conversations(run, journal, over()), code)
        for judged in source:
            graded = judged.conversation
            yield DecidedConversation(
                WrittenConversation(graded.text.conversation, graded.turns, graded.text), rules.decide(judged)
            )
    yield from (DecidedConversation(written, ()) for written in unfinished)


class OpenDecisions(AbstractContextManager["OpenDecisions"]):
    """A run's journal, open, so that a few more conversations cost only themselves."""

    def __init__(self, rules: DecisionRules) -> None:
        self._rules = rules
        # First, because a catalog whose code is not trusted is refused here, with nothing open yet.
        self._code = rules.run.code if any(grader.has_code for grader in rules.graders) else None
        self.journal = rules.run.read()

    def __exit__(self, *problem: object) -> None:
        self.journal.close()

    @property
    def names(self) -> list[str]:
        """The names of the graders that decide."""
        return self._rules.names

    def of(self, student: str, keys: Iterable[tuple[str, int]]) -> list[DecidedConversation]:
        """The conversations of a student with these combinations and generations, as far as they have begun."""
        run, wanted = self._rules.run, {(student, *key) for key in keys}
        self.journal.limit_calls({combination for _, combination, _ in wanted})
        source = written_conversations(run, self.journal, student=student, with_uncounted=True)
        begun = [one for one in source if one.key in wanted]
        graded = graded_conversations(run, self.journal, begun, student=student)
        judged = judged_conversations(run, graded, self._code, workers=1)
        decided = {one.conversation.text.conversation: self._rules.decide(one) for one in judged}
        return [DecidedConversation(written, decided.get(written.key, ())) for written in begun]
