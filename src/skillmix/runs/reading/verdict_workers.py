"""Decide many texts by code in worker processes; few texts are decided in this one.

Workers are spawned: a fork of this process would not survive its threads. They ignore Ctrl-C, which is for the first
process, and end when it ends, however it ends.
"""

import json
import os
import signal
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from multiprocessing import get_context, parent_process
from typing import Final, NamedTuple

from skillmix.catalog.catalog import Catalog
from skillmix.catalog.combinations import Combination
from skillmix.grading.answers import Answer, Rules
from skillmix.grading.ballots import StudentText
from skillmix.grading.points import text_score
from skillmix.prompts.rubric import Phrases
from skillmix.runs.helper_process import cores, is_there_a_second_core
from skillmix.runs.reading.conversation_index import IndexedVote
from skillmix.runs.reading.deciding import ballot_of, votes_of
from skillmix.runs.reading.decision_cache import Decision
from skillmix.runs.reading.reply_reader import ReplyReader
from skillmix.runs.rules_grader import RulesGrader
from skillmix.runs.run import RunGrader

WORTH_IT: Final = 4000
"""Texts that are decided here before workers are started: a worker takes as long to start as 3,000 verdicts."""
_BATCH: Final = 64
"""Texts that go to a worker together."""
_MOST_WORKERS: Final = 16


class Question(NamedTuple):
    """One text under one grader, with the replies of the grader's model."""

    grader: RunGrader
    combination: Combination
    answer: Answer
    votes: Sequence[tuple[IndexedVote, str]]


class Means(NamedTuple):
    """What turns replies and texts into decisions."""

    reader: ReplyReader
    code: RulesGrader | None
    rules: Rules
    phrases: Phrases


def decide(question: Question, means: Means) -> Decision:
    """The decision on a text; votes on another text (of an older extraction) do not count."""
    grader, combination, answer, votes = question
    text = StudentText("", combination, 0, answer)
    address = text.id
    attempts = [
        (vote.round, means.reader.read(text, reply) if vote.reply else None)
        for vote, reply in votes
        if vote.text == address and grader.counts(vote.round)
    ]
    verdict = None
    if grader.has_code and means.code is not None:
        verdict = means.code.verdict(answer.text, skills=combination.skills, topic=combination.topic)
    ballot = ballot_of(text, grader, votes_of(attempts), verdict)
    earned = text_score(ballot.points(means.rules, means.phrases), "full_marks")
    points = [reading.points if reading else None for reading in ballot.readings]
    return Decision(None if earned is None else int(earned), address, answer.status, json.dumps(points))


class VerdictWorkers:
    """Decides questions in order; beyond the first ones, worker processes decide those for code alone."""

    def __init__(self, catalog: Catalog | None) -> None:
        self._catalog = catalog
        self._here = 0
        self._pool: ProcessPoolExecutor | None = None
        self._is_possible = catalog is not None and is_there_a_second_core()

    def close(self) -> None:
        """End the workers."""
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True)
            self._pool = None

    def decide(self, questions: Sequence[Question], means: Means) -> list[Decision]:
        """The decisions on these questions, in their order."""
        if not self._is_possible or not all(question.grader.is_code_alone for question in questions):
            return [decide(question, means) for question in questions]
        if self._pool is None and self._here + len(questions) < WORTH_IT:
            self._here += len(questions)
            return [decide(question, means) for question in questions]
        batches = [questions[start : start + _BATCH] for start in range(0, len(questions), _BATCH)]
        decided = [
            self._result(future) or [decide(question, means) for question in batch]
            for batch, future in [(batch, self._sent(batch, means)) for batch in batches]
        ]
        return [decision for batch in decided for decision in batch]

    def _sent(self, batch: Sequence[Question], means: Means) -> "Future[list[Decision]] | None":
        """A batch on its way to a worker; None if there are no workers (any more)."""
        if not self._is_possible or self._catalog is None:
            return None
        try:
            with _without_interrupts():  # workers inherit it, also while they start
                if self._pool is None:
                    self._pool = ProcessPoolExecutor(
                        max_workers=max(1, min(cores() - 1, _MOST_WORKERS)),
                        mp_context=get_context("spawn"),
                        initializer=_begin,
                        initargs=(self._catalog, means.rules, means.phrases),
                    )
                return self._pool.submit(_decide_there, list(batch))
        except (OSError, ImportError, BrokenProcessPool):  # no more processes, no semaphores, or a lost worker
            self._is_possible = False
            return None

    def _result(self, future: "Future[list[Decision]] | None") -> list[Decision] | None:
        """None if the worker is gone: it was killed, or ran a script that has no main guard, and stopped there."""
        try:
            return None if future is None else future.result()
        except BrokenProcessPool:
            self._is_possible = False
            return None


@contextmanager
def _without_interrupts() -> Iterator[None]:
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


_means: list[Means] = []
"""In a worker: what it decides with."""


def _begin(catalog: Catalog, rules: Rules, phrases: Phrases) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    _means.append(Means(ReplyReader(phrases), RulesGrader(catalog), rules, phrases))


def _end_with_parent() -> None:
    """A worker would wait for ever for the next batch of a process that was killed."""
    parent = parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


def _decide_there(batch: list[Question]) -> list[Decision]:
    return [decide(question, _means[0]) for question in batch]
