"""Judge the texts of a whole run by code, in order; worker processes judge most texts of a large run."""

from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from itertools import islice
from typing import Final, NamedTuple

from skillmix.checkers.judge import Verdict
from skillmix.checkers.passage import Span
from skillmix.grading.ballots import StudentText
from skillmix.runs.judging.worker_pool import BATCH, WorkerPool, code_of_worker, shared_pool
from skillmix.runs.reading.gradings import GradedConversation
from skillmix.runs.rules_grader import RulesGrader
from skillmix.runs.run import Run

WORTH_IT: Final = 1000
"""Texts that are judged here before workers are started: starting takes a worker as long as judging them."""
_AHEAD: Final = 4
"""Batches under way for each worker: enough to keep all busy, few enough to hold in memory."""


@dataclass(frozen=True, slots=True)
class JudgedText:
    """What code decided on a text, without the text's words, so that it can cross process borders."""

    evidence: Mapping[str, bool]
    """Whether each requested skill with a checker earns its point."""
    topic: Span | None
    nonsense: str | None
    reasons: Mapping[str, str]
    all_woven: bool | None
    words: tuple[str | None, ...] = ()
    """The words that show each requested skill."""
    masked: tuple[str | None, ...] = ()
    """The same words with the topic's words masked."""
    woven: tuple[bool | None, ...] = ()
    """Whether the text shows each requested skill about the topic; None if it does not show the skill."""
    unrequested: tuple[str, ...] = ()

    def earns(self, skill: str) -> bool | None:
        """Whether code gives the point for a skill; None for a skill without a checker."""
        return self.evidence.get(skill)

    def is_woven(self, skills: Sequence[str]) -> bool | None:
        """Whether the text shows all its skills about the topic; None if a skill without a checker leaves it open."""
        return self.all_woven


class JudgedConversation(NamedTuple):
    """A conversation with what code decided on its text; None if no code decides."""

    conversation: GradedConversation
    judged: JudgedText | None


class _Task(NamedTuple):
    """A text to judge."""

    text: str
    skills: tuple[str, ...]
    topic: str


def judged_conversations(
    run: Run, source: Iterable[GradedConversation], code: RulesGrader | None
) -> Iterator[JudgedConversation]:
    """Conversations in their order, judged by code."""
    conversations = iter(source)
    if code is None:
        yield from (JudgedConversation(conversation, None) for conversation in conversations)
        return
    for conversation in islice(conversations, WORTH_IT):
        yield JudgedConversation(conversation, _judged(code, _task(conversation.text)))
    pool = shared_pool(run.catalog)
    ahead = _AHEAD * pool.size if pool is not None and pool.is_possible else 0
    waiting: deque[_Batch] = deque()
    while batch := list(islice(conversations, BATCH)):
        tasks = [_task(conversation.text) for conversation in batch]
        sent = pool.submit(_judge_there, tasks) if pool is not None else None
        waiting.append(_Batch(batch, tasks, sent))
        if len(waiting) > ahead:
            yield from _received(waiting.popleft(), pool, code)
    while waiting:
        yield from _received(waiting.popleft(), pool, code)


class _Batch(NamedTuple):
    conversations: list[GradedConversation]
    tasks: list[_Task]
    future: "Future[list[JudgedText]] | None"


def _received(batch: _Batch, pool: WorkerPool | None, code: RulesGrader) -> Iterator[JudgedConversation]:
    judged = pool.result(batch.future) if pool is not None else None
    if judged is None:
        judged = [_judged(code, task) for task in batch.tasks]
    return map(JudgedConversation, batch.conversations, judged)


def _task(text: StudentText) -> _Task:
    return _Task(text.answer.text, text.combination.skills, text.combination.topic)


def _judge_there(tasks: Sequence[_Task]) -> list[JudgedText]:
    return [_judged(code_of_worker(), task) for task in tasks]


def _judged(code: RulesGrader, task: _Task) -> JudgedText:
    return _plain(code.verdict(task.text, skills=task.skills, topic=task.topic), task.skills)


def _plain(verdict: Verdict, skills: Sequence[str]) -> JudgedText:
    earned = {skill: bool(verdict.earns(skill)) for skill in verdict.evidence}
    return JudgedText(earned, verdict.topic, verdict.nonsense, {}, verdict.is_woven(skills))


def judged_with_words(code: RulesGrader, text: StudentText) -> JudgedText:
    """What code decides on a text, with the evidence in words and the skills that were not requested."""
    skills = text.combination.skills
    verdict = code.verdict(text.answer.text, skills=skills, topic=text.combination.topic)
    plain = _plain(verdict, skills)
    spans = [verdict.evidence.get(skill) for skill in skills]
    words = tuple(verdict.quote(span) for span in spans)
    return JudgedText(
        plain.evidence,
        plain.topic,
        plain.nonsense,
        verdict.reasons,
        plain.all_woven,
        words=words,
        masked=tuple([verdict.masked_quote(span) for span in spans]),
        woven=tuple(verdict.woven.get(skill) if quoted else None for skill, quoted in zip(skills, words, strict=True)),
        unrequested=verdict.unrequested,
    )
