"""Decide many texts by code in worker processes, here or on other machines; few texts are decided in this process."""

import json
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from skillmix.catalog.catalog import Catalog
from skillmix.catalog.combinations import Combination
from skillmix.grading.answers import Answer, Rules
from skillmix.grading.ballots import StudentText
from skillmix.grading.points import text_score
from skillmix.prompts.rubric import Phrases
from skillmix.runs.graders.run_grader import RunGrader
from skillmix.runs.judging.worker_pool import BATCH, VerdictPool, WorkerPool, code_of_worker, shared_pool
from skillmix.runs.reading.conversation_index import IndexedVote
from skillmix.runs.reading.deciding import ballot_of, votes_of
from skillmix.runs.reading.decision_cache import Decision
from skillmix.runs.reading.reply_reader import ReplyReader
from skillmix.runs.rules_grader import RulesGrader

WORTH_IT: Final = 1000
"""Texts that are decided here before workers are started, which takes a worker a second."""


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
        (vote.round, means.reader.read(text, reply, grader=grader.name) if vote.reply else None)
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


def _nowhere() -> None:
    """No other machine decides texts."""


class VerdictWorkers:
    """Decides questions in order; beyond the first ones, worker processes decide those for code alone."""

    def __init__(self, catalog: Catalog | None, elsewhere: Callable[[], VerdictPool | None] = _nowhere) -> None:
        self._here = 0
        """Questions that were decided in this process."""
        shared = None if catalog is None else shared_pool(catalog)
        self._is_shared = shared is not None
        self._pool = shared if shared is not None or catalog is None else WorkerPool(catalog)
        self._elsewhere = elsewhere
        """The processes on other machines, which go before those on this one."""

    def close(self) -> None:
        """End the workers, unless others share them."""
        if self._pool is not None and not self._is_shared:
            self._pool.close()

    def decide(self, questions: Sequence[Question], means: Means) -> list[Decision]:
        """The decisions on these questions, in their order."""
        pool = self._pool_for(questions)
        if pool is None:
            self._here += len(questions)
            return [decide(question, means) for question in questions]
        batches = [questions[start : start + BATCH] for start in range(0, len(questions), BATCH)]
        sent = [pool.submit(_decide_there, list(batch), means.rules, means.phrases) for batch in batches]
        decided = [
            pool.result(future) or [decide(question, means) for question in batch]
            for batch, future in zip(batches, sent, strict=True)
        ]
        return [decision for batch in decided for decision in batch]

    def _pool_for(self, questions: Sequence[Question]) -> VerdictPool | None:
        """The processes that decide these questions; None if this process does."""
        own = self._pool
        if own is None or not all(question.grader.is_code_alone for question in questions):
            return None
        if not own.is_started and self._here + len(questions) < WORTH_IT:
            return None
        others = self._elsewhere()
        if others is not None and (others.is_possible or others.is_starting):
            return others if others.is_possible else None
        return own if own.is_possible else None


def _decide_there(batch: list[Question], rules: Rules, phrases: Phrases) -> list[Decision]:
    means = Means(ReplyReader(phrases), code_of_worker(), rules, phrases)
    return [decide(question, means) for question in batch]
