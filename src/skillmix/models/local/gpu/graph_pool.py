"""Capture device work as CUDA graphs so that torch stays usable after a failed capture.

Torch does not notice the end of a failed capture. Its allocator then rejects further captures in the same pool and no
longer frees memory. The next call of `empty_cache`, perhaps minutes later, raises an internal error.
"""

import gc
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import torch


class NotCaptured(Exception):
    """Raised if work cannot be captured as a graph, or if another thread disturbed the capture."""


class GraphPool:
    """The memory of graphs that never run at the same time, and the stream on which they are captured."""

    def __init__(self, stream: Any = None) -> None:
        """Capture on a stream, by default on a new one."""
        self._stream = stream
        self._handle = torch.cuda.graph_pool_handle()
        self._broken: list[Any] = []
        """Graphs whose captures did not end; torch may still query which memory belongs to them."""

    @property
    def stream(self) -> Any:
        """The stream on which graphs are captured; work that ran on it before has already allocated its workspaces."""
        self._stream = self._stream or torch.cuda.Stream()
        return self._stream

    def renew(self) -> None:
        """Switch to a new pool, because torch rejects a pool whose graphs are all dropped but not yet freed."""
        self._handle = torch.cuda.graph_pool_handle()

    def capture(self, work: Callable[[], None]) -> Any:
        """Capture `work` without running it; raise NotCaptured on failure, OutOfMemoryError if memory runs out."""
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        was_collecting = gc.isenabled()
        gc.disable()  # a collection could free events or graphs, which a capture does not allow
        try:
            with torch.cuda.stream(self.stream):
                # Other threads may allocate pinned memory or copy data meanwhile, because training prepares its next
                # step.
                graph.capture_begin(pool=self._handle, capture_error_mode="thread_local")
                try:
                    work()
                except BaseException:
                    with suppress(RuntimeError):  # the error raised by the work is more informative
                        graph.capture_end()
                    raise
                graph.capture_end()
        except BaseException as error:
            # The capture may have ended, or this version of torch may lack the function.
            with suppress(RuntimeError, AttributeError):
                torch._C._cuda_endAllocateToPool(torch.cuda.current_device(), self._handle)
                self._broken.append(graph)
            self.renew()
            if isinstance(error, RuntimeError) and not isinstance(error, torch.OutOfMemoryError):
                raise NotCaptured(str(error).partition("\n")[0]) from error
            raise
        finally:
            if was_collecting:
                gc.enable()
        return graph
