"""The decisions behind data sets: which conversations in a run have full marks, and from which graders."""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import NamedTuple

from skillmix.grading.points import FULL_MARKS, Ballot, text_score
from skillmix.runs.run import Run
from skillmix.runs.texts import (
    WrittenConversation,
    graded_conversations,
    judged_conversations,
    votes_by_grader,
    written_conversations,
)
from skillmix.runs.verdicts import ballot_of


class DecidedConversation(NamedTuple):
    """A conversation with each grader's ballot and decision, which are empty while the conversation is unfinished."""

    conversation: WrittenConversation
    ballots: tuple[Ballot, ...] = ()
    earned: tuple[float | None, ...] = ()
    """The result from each grader: 1 for full marks, 0 for less, None if undecided."""


class Decisions(AbstractContextManager["Decisions"]):
    """Determines which conversations of a run have full marks from each grader, under the run's rules or other rules.

    The journal stays open, so that further conversations can be decided without rereading the earlier ones.
    """

    def __init__(self, run: Run, *, graders: Sequence[str] | None = None, rules: str | None = None) -> None:
        self.names = [name for name in (run.graders if graders is None else graders) if name in run.graders]
        """The names of the graders."""
        self._run, self.rules = run, run.rules(rules)
        self._graders = [run.graders[name] for name in self.names]
        # Do this first, because it rejects a catalog with untrusted code before any file is open.
        self._code = run.code if any(grader.has_code for grader in self._graders) else None
        self._journal = run.read()

    def __exit__(self, *problem: object) -> None:
        self._journal.close()

    def every(self, *, students: Iterable[str] | None = None) -> Iterator[DecidedConversation]:
        """Yield the finished conversations in key order, then the unfinished ones; `students` restricts both."""
        chosen = None if students is None else frozenset(students)
        written = written_conversations(self._run, self._journal)
        return self._decided(one for one in written if chosen is None or one.key[0] in chosen)

    def of(self, student: str, keys: Iterable[tuple[str, int]]) -> Iterator[DecidedConversation]:
        """Yield a student's conversations with these combinations and samples, if they have begun."""
        wanted = {(student, *key) for key in keys}
        self._journal.limit_calls({combination for _, combination, _ in wanted})
        written = written_conversations(self._run, self._journal, student=student, with_uncounted=True)
        return self._decided((one for one in written if one.key in wanted), student=student, workers=1)

    def _decided(
        self, written: Iterable[WrittenConversation], *, student: str | None = None, workers: int | None = None
    ) -> Iterator[DecidedConversation]:
        unfinished: list[WrittenConversation] = []

        def over() -> Iterator[WrittenConversation]:
            for one in written:
                if one.text is not None:
                    yield one
                else:
                    # Drop the turns, because a whole run may have many unfinished conversations.
                    unfinished.append(one if student else one._replace(turns=()))

        graded = graded_conversations(self._run, self._journal, over(), student=student)
        for one in judged_conversations(self._run, graded, self._code, workers=workers):
            text, votes = one.text, votes_by_grader(one)
            ballots = tuple(
                [ballot_of(text, g, votes.get(g.name, {}), one.judged if g.has_code else None) for g in self._graders]
            )
            points = [ballot.points(self.rules, self._run.phrases) for ballot in ballots]
            earned = tuple([text_score(own, FULL_MARKS) for own in points])
            yield DecidedConversation(WrittenConversation(text.conversation, one.turns, text), ballots, earned)
        yield from map(DecidedConversation, unfinished)
