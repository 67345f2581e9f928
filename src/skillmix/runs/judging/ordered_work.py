"""Divide work among this process and the workers of a pool; the results come in the order of the work."""

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Final, Generic, TypeVar

from skillmix.runs.judging.worker_pool import WorkerPool
from skillmix.runs.progress.terminal import say

_Part = TypeVar("_Part")
_Result = TypeVar("_Result")
_Answer = TypeVar("_Answer")
_FOR_EACH_WORKER: Final = 2
"""Parts that a worker has, so that it can begin the next one at once."""


@dataclass(slots=True)
class _Share(Generic[_Part, _Result]):
    """A part of the work; without a future and a result, this process does it when its turn comes."""

    part: _Part
    future: "Future[_Result] | None" = None
    result: _Result | None = None

    @property
    def is_with_worker(self) -> bool:
        return self.future is not None and not self.future.done()


class OrderedWork(Generic[_Part, _Result]):
    """Work in parts: `there` does a part in a worker, `here` in this process. No result may be None."""

    def __init__(
        self, pool: WorkerPool, *, there: Callable[[_Part], _Result], here: Callable[[_Part], _Result]
    ) -> None:
        self._pool = pool
        self._there = there
        self._here = here
        self._waiting: deque[_Share[_Part, _Result]] = deque()

    def results(self, parts: Iterable[_Part], *, workers: int) -> Iterator[_Result]:
        """The result of each part, in order, with up to so many workers.

        This process does a part itself while the next result is not ready. It does all parts that remain once a worker
        is lost, because whatever ended that worker may end the next one. Results that wait for their turn are as many
        as the workers need, however many parts there are.
        """
        # A pool starts a process for each piece of work that finds no idle one.
        most = workers * (_FOR_EACH_WORKER if workers >= self._pool.size else 1)
        source = iter(parts)
        self._send(source, most)
        while self._waiting:
            is_idle = self._waiting[0].is_with_worker and len(self._waiting) < 2 * most
            own = next(source, None) if is_idle else None
            if own is not None:
                self._waiting.append(_Share(own, None, self._here(own)))
            else:
                yield self._finished(self._waiting.popleft())
            self._send(source, most)

    def _send(self, source: Iterator[_Part], most: int) -> None:
        """Give the workers more to do; without workers, take the next part for this process."""
        waiting, pool = self._waiting, self._pool
        while len(waiting) < (2 * most if pool.is_possible else 1) and sum(s.is_with_worker for s in waiting) < most:
            part = next(source, None)
            if part is None:
                return
            waiting.append(_Share(part, self._with_notice(pool.submit, self._there, part)))

    def _finished(self, share: _Share[_Part, _Result]) -> _Result:
        if share.result is not None:
            return share.result
        result = self._with_notice(self._pool.result, share.future)
        return self._here(share.part) if result is None else result

    def _with_notice(self, act: Callable[..., _Answer], *arguments: object) -> _Answer:
        had_workers = self._pool.is_possible
        answer = act(*arguments)
        if had_workers and not self._pool.is_possible:
            say("a worker process ended before its work was done; this process does the rest")
        return answer
