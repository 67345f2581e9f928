"""Captures of CUDA graphs on a stand-in for torch's allocator, which forgets no capture that failed."""

import gc
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="the extra `local` is not installed")

from skillmix.models.local.gpu.graph_pool import GraphPool, NotCaptured  # noqa: E402


class Allocator:
    """The rules of torch's allocator: one capture for each pool, and no freeing while a capture goes on."""

    def __init__(self) -> None:
        self.underway: list[int] = []
        self.handles = 0
        self.is_spoilt = False
        """Whether another thread has spoilt the capture that goes on."""

    def handle(self) -> int:
        self.handles += 1
        return self.handles

    def end(self, device: int, pool: int) -> None:
        if pool not in self.underway:
            raise RuntimeError("endAllocatePool: not currently recording to mempool_id")
        self.underway.remove(pool)

    def empty_cache(self) -> None:
        assert not self.underway, "captures_underway.empty() INTERNAL ASSERT FAILED"

    def graph(self) -> "Graph":
        return Graph(self)


class Graph:
    def __init__(self, allocator: Allocator) -> None:
        self._allocator = allocator

    def capture_begin(self, *, pool: int, capture_error_mode: str) -> None:
        assert capture_error_mode == "thread_local"
        if pool in self._allocator.underway:
            raise RuntimeError("beginAllocateToPool: already recording to mempool_id")
        self._allocator.is_spoilt = False
        self._pool = pool
        self._allocator.underway.append(pool)

    def capture_end(self) -> None:
        if self._allocator.is_spoilt:
            raise RuntimeError("operation failed due to a previous error during capture\nmore lines")
        self._allocator.end(0, self._pool)


@pytest.fixture
def allocator(monkeypatch: pytest.MonkeyPatch) -> Iterator[Allocator]:
    allocator = Allocator()

    def on_stream(stream: object) -> AbstractContextManager[None]:
        return nullcontext()

    for name, value in {
        "synchronize": lambda: None,
        "stream": on_stream,
        "CUDAGraph": allocator.graph,
        "graph_pool_handle": allocator.handle,
        "current_device": lambda: 0,
    }.items():
        monkeypatch.setattr(torch.cuda, name, value)
    monkeypatch.setattr(torch._C, "_cuda_endAllocateToPool", allocator.end, raising=False)
    yield allocator
    allocator.empty_cache()


def spoiling(allocator: Allocator, *, times: int) -> Callable[[], None]:
    """Work that another thread spoils when it is captured the first times."""
    left = [times]

    def work() -> None:
        allocator.is_spoilt = left[0] > 0
        left[0] -= 1

    return work


def test_a_spoilt_capture_is_ended_and_another_one_succeeds(allocator: Allocator) -> None:
    pool = GraphPool("a stream")
    work = spoiling(allocator, times=1)

    with pytest.raises(NotCaptured, match=r"^operation failed due to a previous error during capture$"):
        pool.capture(work)

    allocator.empty_cache()
    assert isinstance(pool.capture(work), Graph)


def test_the_error_of_the_work_is_raised_even_if_its_capture_was_spoilt(allocator: Allocator) -> None:
    def work() -> None:
        allocator.is_spoilt = True
        raise torch.OutOfMemoryError("no memory")

    with pytest.raises(torch.OutOfMemoryError, match="no memory"):
        GraphPool("a stream").capture(work)


@pytest.mark.parametrize("error", [torch.OutOfMemoryError("no memory"), KeyboardInterrupt()])
def test_a_capture_that_ended_is_not_ended_again(error: BaseException, allocator: Allocator) -> None:
    def work() -> None:
        raise error

    with pytest.raises(type(error)):
        GraphPool("a stream").capture(work)


@pytest.mark.parametrize("times", [0, 1])
def test_python_collects_no_garbage_during_a_capture(times: int, allocator: Allocator) -> None:
    spoil, seen = spoiling(allocator, times=times), []

    def work() -> None:
        seen.append(gc.isenabled())
        spoil()

    with nullcontext() if not times else pytest.raises(NotCaptured):
        GraphPool("a stream").capture(work)

    assert seen == [False] and gc.isenabled()


def test_graphs_share_memory_until_one_fails(allocator: Allocator) -> None:
    pool = GraphPool("a stream")
    graphs: list[Any] = [pool.capture(lambda: None), pool.capture(lambda: None)]
    with pytest.raises(NotCaptured):
        pool.capture(spoiling(allocator, times=1))
    graphs.append(pool.capture(lambda: None))

    first, second, last = (graph._pool for graph in graphs)
    assert first == second != last
