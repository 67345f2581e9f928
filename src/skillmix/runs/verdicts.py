"""Judge the texts of a whole run by code, in order: in this process, or on all cores if there are many.

`on_all_cores` is the only place where skillmix spreads its own work over processes. A verdict is a pure function of a
text and its catalogue, so the results are the same for any number of workers.
"""

import math
import os
import signal
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from itertools import chain, islice
from multiprocessing import current_process, get_context, parent_process
from pathlib import Path
from typing import Final, NamedTuple, TypeVar

from skillmix.catalog.catalog import Catalog
from skillmix.catalog.own_code import Trust, trust_here, trusting_as
from skillmix.checkers.passage import Span
from skillmix.runs.reading.graded_conversations import GradedConversation
from skillmix.runs.rules_grader import RulesGrader
from skillmix.runs.run import Run

_Item = TypeVar("_Item")
_Result = TypeVar("_Result")
WORTH_IT: Final = 20_000
"""Texts from which on workers share the work: fewer are judged before workers have paid for their start."""
_BATCH: Final = 64
_AHEAD: Final = 4
"""Batches under way for each worker: enough to keep all busy, few enough to hold in memory."""
_MOST_WORKERS: Final = 16
_CONTROL_GROUP: Final = Path("/sys/fs/cgroup")


def cores() -> int:
    """The number of cores that this process may use: those it may run on, or the share of them that a container has."""
    affinity = getattr(os, "sched_getaffinity", None)  # not on every system
    allowed = len(affinity(0)) if affinity is not None else os.cpu_count() or 1
    return max(1, math.ceil(min(allowed, _container_cores())))


def _container_cores() -> float:
    """Cores' worth of time that a container on Linux gives its processes; infinite without a limit."""
    with suppress(OSError, ValueError):  # ValueError: the quota is "max"
        quota, period = (_CONTROL_GROUP / "cpu.max").read_text(encoding="ascii").split()
        return int(quota) / int(period)
    with suppress(OSError, ValueError):
        quota, period = (
            (_CONTROL_GROUP / "cpu" / name).read_text(encoding="ascii")
            for name in ("cpu.cfs_quota_us", "cpu.cfs_period_us")
        )
        return int(quota) / int(period) if int(quota) > 0 else math.inf
    return math.inf


def on_all_cores(
    function: Callable[[RulesGrader, _Item], _Result],
    items: Iterable[_Item],
    catalog: Catalog,
    code: RulesGrader,
    *,
    workers: int | None = None,
) -> Iterator[_Result]:
    """The result for each item in order; this process works alone on the first items, or on all with one worker."""
    source = iter(items)
    size = min(cores(), _MOST_WORKERS) if workers is None else workers
    is_alone = size < 2 or current_process().daemon
    yield from (function(code, item) for item in (source if is_alone else islice(source, WORTH_IT)))
    if is_alone or not (first := list(islice(source, 1))):
        return
    source = chain(first, source)
    context = get_context("spawn")  # a fork of this process would not survive its threads
    executor = ProcessPoolExecutor(size, context, _begin, (catalog, trust_here()))

    def sent(batch: list[_Item]) -> "Future[list[_Result]] | None":
        with suppress(BrokenProcessPool, OSError):  # the system may start no more processes
            return executor.submit(_results_there, function, batch)
        return None

    def received(batch: list[_Item], future: "Future[list[_Result]] | None") -> list[_Result]:
        if future is not None:
            with suppress(BrokenProcessPool):  # a worker was killed
                return future.result()
        return [function(code, item) for item in batch]

    waiting: deque[tuple[list[_Item], Future[list[_Result]] | None]] = deque()
    try:
        while batch := list(islice(source, _BATCH)):
            waiting.append((batch, sent(batch)))
            if len(waiting) > _AHEAD * size:
                yield from received(*waiting.popleft())
        while waiting:
            yield from received(*waiting.popleft())
    finally:
        executor.shutdown(cancel_futures=True)


_code: list[RulesGrader] = []
"""In a worker: what it judges with."""
_trust: Final = ExitStack()
"""In a worker: it trusts what the first process trusts, until it ends."""


def _begin(catalog: Catalog, trust: Trust) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the first process, which ends this one
    threading.Thread(target=_end_with_parent, daemon=True).start()
    _trust.enter_context(trusting_as(trust))
    _code.append(RulesGrader(catalog))


def _end_with_parent() -> None:
    """A worker would wait for ever for the next batch of a process that was killed."""
    parent = parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


def _results_there(function: Callable[[RulesGrader, _Item], _Result], batch: Sequence[_Item]) -> list[_Result]:
    return [function(_code[0], item) for item in batch]


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


class TextToJudge(NamedTuple):
    """A text, and what it was asked for."""

    text: str
    skills: tuple[str, ...]
    topic: str


def judged_conversations(
    run: Run,
    source: Iterable[GradedConversation],
    code: RulesGrader | None,
    *,
    with_words: bool = False,
    workers: int | None = None,
) -> Iterator[JudgedConversation]:
    """Conversations in their order, judged by code."""
    if code is None:
        yield from (JudgedConversation(conversation, None) for conversation in source)
        return
    waiting: deque[GradedConversation] = deque()

    def texts() -> Iterator[TextToJudge]:
        for graded in source:
            waiting.append(graded)
            combination = graded.text.combination
            yield TextToJudge(graded.text.answer.text, combination.skills, combination.topic)

    judge = judged_with_words if with_words else judged
    for found in on_all_cores(judge, texts(), run.catalog, code, workers=workers):
        yield JudgedConversation(waiting.popleft(), found)


def judged(code: RulesGrader, task: TextToJudge) -> JudgedText:
    """What code decides on a text."""
    verdict = code.verdict(task.text, skills=task.skills, topic=task.topic)
    earned = {skill: bool(verdict.earns(skill)) for skill in verdict.evidence}
    return JudgedText(earned, verdict.topic, verdict.nonsense, {}, verdict.is_woven(task.skills))


def judged_with_words(code: RulesGrader, task: TextToJudge) -> JudgedText:
    """The same with the evidence in words, the reasons, and the skills that were not requested."""
    verdict = code.verdict(task.text, skills=task.skills, topic=task.topic)
    spans = [verdict.evidence.get(skill) for skill in task.skills]
    words = tuple(verdict.quote(span) for span in spans)
    shown = zip(task.skills, words, strict=True)
    return JudgedText(
        {skill: bool(verdict.earns(skill)) for skill in verdict.evidence},
        verdict.topic,
        verdict.nonsense,
        verdict.reasons,
        verdict.is_woven(task.skills),
        words=words,
        masked=tuple([verdict.masked_quote(span) for span in spans]),
        woven=tuple([verdict.woven.get(skill) if quoted else None for skill, quoted in shown]),
        unrequested=verdict.unrequested,
    )
