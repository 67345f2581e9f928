"""The decisions behind data sets: which conversations in a run have full marks, and from which graders."""

import json
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import NamedTuple

from skillmix.grading.points import text_score
from skillmix.runs.run import Run
from skillmix.runs.texts import (
    WrittenConversation,
    graded_conversations,
    judged_conversations,
    votes_by_grader,
    written_conversations,
)
from skillmix.runs.verdicts import ballot_of


class Decision(NamedTuple):
    """A grader's decision on a text."""

    earned: int | None
    """1 for full marks, 0 for less, None if undecided."""
    text: str
    """The text's id."""
    status: str
    votes: str
    """The points from each round, as JSON."""


class DecidedConversation(NamedTuple):
    """A conversation with each grader's decision, in the order of the graders."""

    conversation: WrittenConversation
    decisions: tuple[Decision, ...]
    """The graders' decisions; empty if the conversation is unfinished."""

    @property
    def is_over(self) -> bool:
        """Return whether the student has written the text or will never write it."""
        return bool(self.decisions)

    @property
    def is_ungraded(self) -> bool:
        """Return whether full marks are undecided, because no grader withholds them but not all graders give them."""
        earned = [decision.earned for decision in self.decisions]
        return bool(earned) and 0 not in earned and None in earned

    @property
    def is_kept(self) -> bool:
        """Return whether every grader gives full marks."""
        return bool(self.decisions) and all(decision.earned == 1 for decision in self.decisions)


class Decisions(AbstractContextManager["Decisions"]):
    """The decisions of all or some of a run's graders about its conversations, under the run's rules or others.

    The journal stays open, so that deciding a few more conversations does not require reading the others again.
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
        """Yield every conversation in key order, then the unfinished ones; only from `students` if that is given."""
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
                    unfinished.append(one if student else one._replace(turns=()))  # a whole run may have many of these

        graded = graded_conversations(self._run, self._journal, over(), student=student)
        for one in judged_conversations(self._run, graded, self._code, workers=workers):
            text, votes, address = one.text, votes_by_grader(one), one.text.id
            decisions = []
            for grader in self._graders:
                ballot = ballot_of(text, grader, votes.get(grader.name, {}), one.judged if grader.has_code else None)
                earned = text_score(ballot.points(self.rules, self._run.phrases), "full_marks")
                points = json.dumps([reading.points if reading else None for reading in ballot.readings])
                decisions.append(Decision(None if earned is None else int(earned), address, text.answer.status, points))
            yield DecidedConversation(WrittenConversation(text.conversation, one.turns, text), tuple(decisions))
        yield from (DecidedConversation(one, ()) for one in unfinished)
