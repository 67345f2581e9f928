"""Requests on their way to tokens: at once, or in a thread while the device and the generator work."""

from collections import deque
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Final, Protocol

from skillmix.calls import Request
from skillmix.models.local.chat import Renderer

_TOGETHER: Final = 256
"""Requests of one task of the thread; the first rows start when the first task is done."""

Tokenised = list[tuple[Request, list[int]]]


class Tokeniser(Protocol):
    """Takes requests and gives them back with their prompts' tokens, in the same order."""

    @property
    def is_empty(self) -> bool:
        """Whether every request has been given back."""

    def add(self, requests: Sequence[Request]) -> None:
        """Add requests."""

    def take(self, *, wait: bool) -> Tokenised:
        """The requests that are tokenised by now; with `wait` at least one, unless there is none."""


class DirectTokeniser:
    """Tokenises requests when they are taken."""

    def __init__(self, renderer: Renderer) -> None:
        self._renderer = renderer
        self._new: list[Request] = []

    @property
    def is_empty(self) -> bool:
        """Whether every request has been given back."""
        return not self._new

    def add(self, requests: Sequence[Request]) -> None:
        """Add requests."""
        self._new.extend(requests)

    def take(self, *, wait: bool) -> Tokenised:
        """All requests."""
        del wait
        requests, self._new = self._new, []
        return _tokenised(self._renderer, requests) if requests else []


class ThreadedTokeniser:
    """Tokenises in a thread; the library does most of it without the interpreter's lock."""

    def __init__(self, renderer: Renderer) -> None:
        self._renderer = renderer
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="tokenise")
        self._tasks: deque[Future[Tokenised]] = deque()

    @property
    def is_empty(self) -> bool:
        """Whether every request has been given back."""
        return not self._tasks

    def add(self, requests: Sequence[Request]) -> None:
        """Add requests."""
        for first in range(0, len(requests), _TOGETHER):
            part = list(requests[first : first + _TOGETHER])
            self._tasks.append(self._thread.submit(_tokenised, self._renderer, part))

    def take(self, *, wait: bool) -> Tokenised:
        """The requests that are tokenised by now; with `wait` at least one, unless there is none."""
        taken: Tokenised = []
        while self._tasks and (self._tasks[0].done() or (wait and not taken)):
            taken += self._tasks.popleft().result()
        return taken


def _tokenised(renderer: Renderer, requests: list[Request]) -> Tokenised:
    prompts = renderer.tokens([r.messages for r in requests], [r.decoding.extra for r in requests])
    return list(zip(requests, prompts, strict=True))
