"""Worker processes that read conversations and judge texts by code; the parts of one command share them.

Workers are spawned: a fork of this process would not survive its threads. They ignore Ctrl-C, which is for the first
process, and end when it ends, however it ends.
"""

import os
import signal
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import ExitStack, contextmanager
from multiprocessing import get_context, parent_process
from multiprocessing.connection import Connection
from typing import Final, ParamSpec, Protocol, TypeVar

from skillmix.catalog.catalog import Catalog
from skillmix.catalog.own_code import Trust, trust_here, trusting_as
from skillmix.runs.helper_process import cores, is_there_a_second_core
from skillmix.runs.rules_grader import RulesGrader

_Result = TypeVar("_Result")
_Arguments = ParamSpec("_Arguments")
_MOST_WORKERS: Final = 16
BATCH: Final = 64
"""Texts that go to a worker together."""


class VerdictPool(Protocol):
    """Processes that decide texts by code, on this machine or on others."""

    @property
    def is_possible(self) -> bool:
        """Whether they can be given work now."""
        ...

    @property
    def is_starting(self) -> bool:
        """Whether none of them has started, but some will soon."""
        ...

    def submit(
        self, function: Callable[_Arguments, _Result], *arguments: _Arguments.args, **named: _Arguments.kwargs
    ) -> "Future[_Result] | None":
        """Have one of them call a function of this package; None if there is none."""
        ...

    def result(self, future: "Future[_Result] | None") -> _Result | None:
        """The result of some work; None if it was lost with its process, and must be done here."""
        ...


class WorkerPool:
    """Processes that can judge the texts of one catalogue, if there is one; they start with the first work."""

    def __init__(self, catalog: Catalog | None) -> None:
        self.catalog = catalog
        self.size = max(1, min(cores() - 1, _MOST_WORKERS))
        self._executor: ProcessPoolExecutor | None = None
        self._line: tuple[Connection, Connection] | None = None
        """A pipe to all workers that carries nothing; workers see when this process closes its end."""
        self._is_possible = is_there_a_second_core()
        self._owner = os.getpid()

    @property
    def is_possible(self) -> bool:
        """Whether workers can be had: a second core, no failure so far, and no fork since."""
        return self._is_possible and self._owner == os.getpid()

    is_starting = False
    """Work is taken at once, and waits for the processes."""

    @property
    def is_started(self) -> bool:
        """Whether workers were started."""
        return self._executor is not None

    def close(self) -> None:
        """End the workers; they stop long work whose result nobody waits for."""
        receiving, sending = self._line or (None, None)
        if sending is not None:
            sending.close()
        if self._executor is not None and self._owner == os.getpid():
            self._executor.shutdown(cancel_futures=True)
        if receiving is not None:
            receiving.close()
        self._executor = self._line = None

    def submit(
        self, function: Callable[_Arguments, _Result], *arguments: _Arguments.args, **named: _Arguments.kwargs
    ) -> "Future[_Result] | None":
        """Have a worker do some work; None if there are no workers (any more)."""
        if not self.is_possible:
            return None
        try:
            with _without_interrupts():  # workers inherit it, also while they start
                if self._executor is None:
                    context = get_context("spawn")
                    self._line = self._line or context.Pipe(duplex=False)
                    self._executor = ProcessPoolExecutor(
                        max_workers=self.size,
                        mp_context=context,
                        initializer=_begin,
                        initargs=(self.catalog, trust_here(), self._line[0]),
                    )
                return self._executor.submit(function, *arguments, **named)
        except (OSError, ImportError, NotImplementedError, BrokenProcessPool):
            # No more processes or files, a system without semaphores, or a lost worker.
            self._is_possible = False
            return None

    def result(self, future: "Future[_Result] | None") -> _Result | None:
        """None if the worker is gone: it was killed, or ran a script that has no main guard, and stopped there."""
        try:
            return None if future is None else future.result()
        except BrokenProcessPool:
            self._is_possible = False
            return None


class _Shared:
    """The pools of the blocks of `shared_workers` that are open."""

    blocks = 0
    pools: Final[list[WorkerPool]] = []
    lock: Final = threading.Lock()


@contextmanager
def shared_workers() -> Iterator[None]:
    """Share worker processes among all parts of a block, so that each of them starts once."""
    with _Shared.lock:
        _Shared.blocks += 1
    try:
        yield
    finally:
        with _Shared.lock:
            _Shared.blocks -= 1
            pools = [] if _Shared.blocks else list(_Shared.pools)
            _Shared.pools[:] = _Shared.pools if _Shared.blocks else []
        for pool in pools:
            pool.close()


def shared_pool(catalog: Catalog | None) -> WorkerPool | None:
    """The pool of the present block for a catalogue or for work without code; None outside of `shared_workers`."""
    with _Shared.lock:
        if not _Shared.blocks:
            return None
        found = next((p for p in _Shared.pools if p.is_possible and p.catalog == catalog), None)
        if found is None:
            found = WorkerPool(catalog)
            _Shared.pools.append(found)
        return found


def started_pool() -> WorkerPool | None:
    """A pool of the present block whose workers have started, for work that needs no catalogue; None without one."""
    with _Shared.lock:
        return next((p for p in _Shared.pools if p.is_possible and p.is_started), None)


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


_code: list[RulesGrader] = []
"""In a worker: what it judges with."""
_trust: Final = ExitStack()
"""In a worker: it trusts what the first process trusts, until it ends."""


_lines: Final[list[Connection]] = []
"""In a worker: its end of the line to the first process."""


def is_wanted() -> bool:
    """Whether somebody waits for the work of this process; a worker is not wanted once its pool closes."""
    try:
        return not any(line.poll() for line in _lines)
    except OSError:  # Windows: the other end is closed
        return False


def code_of_worker() -> RulesGrader:
    """In a worker: the grader of its catalogue."""
    return _code[0]


def _begin(catalog: Catalog | None, trust: Trust, line: Connection) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    _lines.append(line)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    judge_with(catalog, trust)


def judge_with(catalog: Catalog | None, trust: Trust) -> None:
    """In a worker, before its first work: what it judges with."""
    _trust.enter_context(trusting_as(trust))
    if catalog is not None:
        _code.append(RulesGrader(catalog))


def _end_with_parent() -> None:
    """A worker would wait for ever for the next batch of a process that was killed."""
    parent = parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)
