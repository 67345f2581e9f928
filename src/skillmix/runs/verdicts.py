"""Grade a text by a model's votes, by code or by both, and run the code on all cores in parallel.

With the grader `rules:`, code awards all points. With `rules:MODEL`, code awards the points for skills that have a
checker, and a model awards the rest. A verdict is not a call, because it is computed from the text whenever a run is
read.

Only `on_all_cores` distributes skillmix's own work over processes. A verdict is a pure function of a text and its
catalog, so the results are the same for any number of workers.
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
from dataclasses import dataclass, replace
from functools import cache
from importlib.metadata import entry_points
from itertools import chain, islice
from multiprocessing import current_process, get_context, parent_process
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple, TypeVar

from skillmix.calls import ONLY_TURN
from skillmix.catalog.catalog import Catalog, remember_figures
from skillmix.catalog.own_code import Trust, remember_trusted, require_trust, trust_here, trusting_as
from skillmix.errors import UserError
from skillmix.grading.answers import Answer, extract_answer, plain_answer
from skillmix.grading.points import Ballot, StudentText
from skillmix.grading.reader import Reading
from skillmix.hashing import digest

if TYPE_CHECKING:  # the checkers are loaded only by a run whose texts code checks
    from skillmix.checkers.judge import Judge, Verdict
    from skillmix.checkers.passage import Span

READER_VERSION: Final = 7
"""Increase this number whenever a change could alter the grade for the same replies. A test detects changed code."""
PERSON: Final = "person"
"""The model name that the journal stores for a grader who is a person."""


@dataclass(frozen=True, slots=True)
class RunGrader:
    """The fields of a grader that are needed to read a run."""

    name: str
    model: str
    votes: int | None = None
    """The number of rounds that count; None for an imported grader, because all its rounds count."""
    has_code: bool = False
    """Whether code awards the points for skills that have a checker."""
    asks_model: bool = True
    """Whether a model votes; False if only code grades."""

    @property
    def is_code_alone(self) -> bool:
        """Whether code awards every point."""
        return self.has_code and not self.asks_model

    def counts(self, number: int) -> bool:
        """Whether a round, numbered from 0, counts. Surplus rounds from an earlier experiment do not count.

        >>> RunGrader("judge", "m", votes=1).counts(0), RunGrader("judge", "m", votes=1).counts(1)
        (True, False)
        """
        return self.votes is None or number < self.votes


@cache
def code_version() -> str:
    """Hash the code that parses replies and checks texts, including checkers from other packages."""
    from skillmix.checkers.registry import ENTRY_POINTS

    checkers = sorted((e.name, e.value, e.dist.version if e.dist else "") for e in entry_points(group=ENTRY_POINTS))
    return digest(READER_VERSION, checkers).hex()


@dataclass(frozen=True, slots=True)
class JudgedText:
    """The code's verdict on a text, without the text itself, so that processes can exchange it cheaply."""

    evidence: Mapping[str, bool]
    """For each requested skill that has a checker, whether the skill earns its point."""
    topic: "Span | None"
    nonsense: str | None
    reasons: Mapping[str, str]
    all_woven: bool | None
    words: tuple[str | None, ...] = ()
    """The words that show each requested skill."""
    masked: tuple[str | None, ...] = ()
    """The words that show each requested skill, with the topic's words masked."""
    woven: tuple[bool | None, ...] = ()
    """For each requested skill, whether the text shows it about the topic; None if the text does not show the skill."""
    unrequested: tuple[str, ...] = ()

    def earns(self, skill: str) -> bool | None:
        """Whether code awards the point for a skill; None for a skill without a checker."""
        return self.evidence.get(skill)

    def is_woven(self, skills: Sequence[str]) -> bool | None:
        """Whether the text shows all requested skills about the topic; None if a skill has no checker."""
        return self.all_woven


def judge_of(catalog: Catalog) -> "Judge":
    """Return the judge for a catalog's texts; raise an error if the catalog contains code that is not trusted."""
    from skillmix.checkers.judge import Judge
    from skillmix.checkers.sense import prompt_texts

    require_trust(catalog.code)
    remember_trusted(catalog.code)  # a worker process receives the code with the catalog
    remember_figures(catalog.name, catalog.figures)
    requires_woven = catalog.woven == "required"
    shown = prompt_texts(catalog.skills)
    return Judge(catalog.vocabulary, shown, requires_woven=requires_woven, figures=catalog.figures)


class RulesGrader:
    """Grades texts for the skills of one catalog."""

    def __init__(self, catalog: Catalog) -> None:
        self.judge = judge_of(catalog)

    def verdict(self, text: str, *, skills: Iterable[str], topic: str) -> "Verdict":
        """Grade a text, and return its points together with the words that earn them."""
        return self.judge.judge(text, skills=skills, topic=topic)


def reading_of(verdict: "Verdict | JudgedText", skills: Iterable[str]) -> Reading:
    """Convert a verdict to a parsed grade. The length point stays empty, because it is computed elsewhere."""
    shown = [_point(verdict, skill) for skill in skills]
    if None in shown:
        return Reading(None, "a skill has no checker")
    points = (*shown, float(verdict.topic is not None), float(verdict.nonsense is None), None)
    return Reading(points, None, (verdict.nonsense,) if verdict.nonsense else ())


def applicable_reasons(verdict: "Verdict | JudgedText", *, is_alone: bool) -> Mapping[str, str]:
    """Return the code's reasons for denied points; if a model votes too, only the reasons for skills with a checker."""
    return {name: why for name, why in verdict.reasons.items() if is_alone or name in verdict.evidence}


def has_checker(skill: str) -> bool:
    """Whether code can check a skill."""
    from skillmix.checkers.registry import checker_of

    return checker_of(skill) is not None


def require_checkers(catalog: Catalog, skills: Iterable[str], grader: str) -> None:
    """Raise an error for `rules:` if a skill has no checker, or if the catalog's own checkers are not trusted."""
    require_trust(catalog.code)
    skills = [skill.name for skill in catalog.require_skills(skills)]
    unknown = [name for name in skills if not has_checker(name)]
    if unknown:
        first = repr(unknown[0])
        lacking = f"the skill {first}" if len(unknown) == 1 else f"{len(unknown)} skills ({first} is one)"
        raise UserError(
            f"The grader {grader!r} is `rules:`, but no checker exists for {lacking} of catalog {catalog.name!r}.",
            hint="Use the catalog verifiable, install your own checkers, or add a model: rules:MODEL.",
        )


def with_verdict(reading: Reading, skills: Sequence[str], verdict: "Verdict | JudgedText") -> Reading:
    """Combine a model's grade with the points that code awards for skills with a checker."""
    if reading.points is None:
        return reading
    own = [_point(verdict, skill) for skill in skills]
    decided = [model if code is None else code for code, model in zip(own, reading.points, strict=False)]
    return replace(reading, points=(*decided, *reading.points[len(decided) :]))


def _point(verdict: "Verdict | JudgedText", skill: str) -> float | None:
    """Return the point for a skill as 1 or 0; None for a skill without a checker."""
    earned = verdict.earns(skill)
    return None if earned is None else float(earned)


Votes = Mapping[int, Reading | None]
"""The vote in each round; None if the round has no reply."""


def is_over(*, turn: int, origin: str, has_reply: bool, problem: str | None, turns: int | None) -> bool:
    """Whether a conversation is finished after this latest call, by a reply to its last turn or by a refusal.

    A final problem counts as the student's outcome. An imported conversation is always finished.

    >>> is_over(turn=1, origin="call", has_reply=True, problem=None, turns=2)
    False
    >>> is_over(turn=1, origin="call", has_reply=False, problem="final", turns=2)
    True
    >>> is_over(turn=ONLY_TURN, origin="call", has_reply=True, problem=None, turns=2)
    True
    """
    if problem is not None:
        return problem == "final"
    return has_reply and (turns is None or turn in (turns, ONLY_TURN) or origin != "call")


def answer_of(reply: str | None, origin: str, turn: int) -> Answer:
    """Extract the graded text from the latest reply. An imported text is itself the answer, and no reply is a refusal.

    In a conversation with one turn, the prompt does not request 'Answer:', so the reply is valid without it.
    """
    if reply is None:
        return Answer("", "refused")
    answer = plain_answer(reply) if origin == "imported-text" else extract_answer(reply)
    return Answer(answer.text, "fine") if turn == ONLY_TURN and answer.status == "no marker" else answer


def votes_of(attempts: Iterable[tuple[int, Reading | None]]) -> dict[int, Reading | None]:
    """Return the vote of each round, which is the first parseable attempt, or else the latest attempt with a reply.

    Attempts are pairs of round and parsed grade. The attempts of each round are in order.
    """
    votes: dict[int, Reading | None] = {}
    for number, reading in attempts:
        earlier = votes.get(number)
        if earlier is None or earlier.points is None:
            votes[number] = reading or earlier
    return votes


def latest_votes_of(attempts: Iterable[tuple[int, Reading | None]]) -> dict[int, Reading | None]:
    """Return a person's vote in each round, which is the latest answer because a later attempt is a correction."""
    votes: dict[int, Reading | None] = {}
    for number, reading in attempts:
        votes[number] = reading or votes.get(number)
    return votes


def ballot_of(text: StudentText, grader: RunGrader, votes: Votes, verdict: "Verdict | JudgedText | None") -> Ballot:
    """Make a grader's ballot on a text from a model's votes, the code's verdict, or both.

    If a grader uses code, code awards the points for skills that have a checker, and the model's votes the rest.
    """
    skills = text.combination.skills
    is_woven = verdict.is_woven(skills) if verdict is not None and grader.has_code else None
    if verdict is not None and grader.is_code_alone:
        return Ballot(text, grader.name, 1, (reading_of(verdict, skills),), is_woven)
    readings = tuple([votes[number] for number in sorted(votes)])
    if verdict is not None and grader.has_code:
        readings = tuple([reading and with_verdict(reading, skills, verdict) for reading in readings])
    rounds = max(1, len(votes)) if grader.votes is None else grader.votes
    return Ballot(text, grader.name, rounds, readings, is_woven)


_Item = TypeVar("_Item")
_Result = TypeVar("_Result")
WORTH_IT: Final = 20_000
"""The number of texts above which worker processes start. Fewer texts are graded before the workers would be ready."""
_BATCH: Final = 64
_AHEAD: Final = 4
"""Batches queued per worker: enough to keep all workers busy, and few enough to fit into memory."""
_MOST_WORKERS: Final = 16
_CONTROL_GROUP: Final = Path("/sys/fs/cgroup")


def cores() -> int:
    """Return the number of cores that this process may use, according to its affinity and its container's quota."""
    affinity = getattr(os, "sched_getaffinity", None)  # not available on every system
    allowed: float = len(affinity(0)) if affinity is not None else os.cpu_count() or 1
    with suppress(OSError, ValueError):  # ValueError: the quota is not a number but "max"
        quota, period = (_CONTROL_GROUP / "cpu.max").read_text(encoding="ascii").split()
        allowed = min(allowed, int(quota) / int(period))
    return max(1, math.ceil(allowed))


def on_all_cores(
    function: Callable[[RulesGrader, _Item], _Result],
    items: Iterable[_Item],
    catalog: Catalog,
    code: RulesGrader,
    *,
    workers: int | None = None,
) -> Iterator[_Result]:
    """Yield the result for each item in order.

    The first items are processed in this process, as are all items if there is only one worker.
    """
    source = iter(items)
    size = min(cores(), _MOST_WORKERS) if workers is None else workers
    is_alone = size < 2 or current_process().daemon
    yield from (function(code, item) for item in (source if is_alone else islice(source, WORTH_IT)))
    if is_alone or not (first := list(islice(source, 1))):
        return
    source = chain(first, source)
    context = get_context("spawn")  # a fork of this process would lack its threads
    executor = ProcessPoolExecutor(size, context, _begin, (catalog, trust_here()))

    waiting: deque[tuple[list[_Item], Future[list[_Result]] | None]] = deque()
    try:
        batches = iter(lambda: list(islice(source, _BATCH)), [])
        while (batch := next(batches, None)) or waiting:
            if batch:
                future = None
                with suppress(BrokenProcessPool, OSError):  # the system may not allow more processes
                    future = executor.submit(_results, function, batch)
                waiting.append((batch, future))
            if not batch or len(waiting) > _AHEAD * size:
                asked, future = waiting.popleft()
                try:
                    results = _results(function, asked, code) if future is None else future.result()
                except BrokenProcessPool:  # a worker has been killed
                    results = _results(function, asked, code)
                yield from results
    finally:
        executor.shutdown(cancel_futures=True)


_code: list[RulesGrader] = []
"""Contains the grader of a worker process."""
_trust: Final = ExitStack()
"""Makes a worker trust the same code as the parent process until the worker exits."""


def _begin(catalog: Catalog, trust: Trust) -> None:
    """Prepare a worker process and make it exit with its parent; otherwise, it would wait forever for a batch."""

    def end_with_parent() -> None:
        if parent := parent_process():
            parent.join()
            os._exit(1)

    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent handles Ctrl-C and ends this process
    threading.Thread(target=end_with_parent, daemon=True).start()
    _trust.enter_context(trusting_as(trust))
    _code.append(RulesGrader(catalog))


def _results(
    function: Callable[[RulesGrader, _Item], _Result], batch: Sequence[_Item], code: RulesGrader | None = None
) -> list[_Result]:
    """Return the results of a batch. Without `code`, the worker's copy of the grader is used."""
    return [function(code or _code[0], item) for item in batch]


class TextToJudge(NamedTuple):
    """A text and the request that it answers."""

    text: str
    skills: tuple[str, ...]
    topic: str


def judged(code: RulesGrader, task: TextToJudge, *, with_words: bool = False) -> JudgedText:
    """Return the code's verdict on a text; `with_words` adds quoted words, reasons and unrequested skills."""
    verdict = code.verdict(task.text, skills=task.skills, topic=task.topic)
    earned = {skill: bool(verdict.earns(skill)) for skill in verdict.evidence}
    found = JudgedText(earned, verdict.topic, verdict.nonsense, {}, verdict.is_woven(task.skills))
    if not with_words:
        return found
    spans = [verdict.evidence.get(skill) for skill in task.skills]
    words = tuple(verdict.quote(span) for span in spans)
    shown = zip(task.skills, words, strict=True)
    return replace(
        found,
        reasons=verdict.reasons,
        words=words,
        masked=tuple([verdict.masked_quote(span) for span in spans]),
        woven=tuple([verdict.woven.get(skill) if quoted else None for skill, quoted in shown]),
        unrequested=verdict.unrequested,
    )
