"""When a call that failed for a passing reason is tried again: how often, and after how many seconds."""

from typing import Final

from skillmix.calls import CallKey, CallProblem, Request
from skillmix.hashing import digest

TRIES: Final = 12
FIRST_WAIT: Final = 0.5
LONGEST_WAIT: Final = 60.0
LONGEST_ASKED_WAIT: Final = 600.0
"""Seconds; a server that asks for a longer wait is called again after this time."""


class Retries:
    """Counts the tries of each call and decides how long to wait before the next one."""

    def __init__(self, *, tries: int | None = None, first_wait: float | None = None) -> None:
        self._tries = TRIES if tries is None else tries
        self._first_wait = FIRST_WAIT if first_wait is None else first_wait
        self._attempts: dict[CallKey, int] = {}
        self._moves: dict[CallKey, int] = {}
        self._announced: set[str] = set()

    def wait_after(self, request: Request, problem: CallProblem) -> float | None:
        """Seconds to wait before the next try; None if the call has had all its tries.

        A call that another address can take does not wait, and its next wait is not longer for it.
        """
        attempt = self._attempts[request.key] = self._attempts.get(request.key, 0) + 1
        if attempt >= self._tries:
            return None
        if problem.may_move:
            self._moves[request.key] = self._moves.get(request.key, 0) + 1
            return 0.0
        waits = attempt - self._moves.get(request.key, 0)
        return max(self._own_wait(request.key, waits), min(problem.retry_after or 0.0, LONGEST_ASKED_WAIT))

    def announcement(self, request: Request, problem: CallProblem) -> str | None:
        """A line for the user when a server first asks for more than the longest wait; None otherwise."""
        asked = problem.retry_after or 0.0
        if asked <= LONGEST_ASKED_WAIT or problem.may_move or request.model in self._announced:
            return None
        self._announced.add(request.model)
        return (
            f"{request.model} asks to wait for {asked:.3g} s ({problem.reason}); "
            f"it is asked again after {LONGEST_ASKED_WAIT:g} s"
        )

    def forget(self, key: CallKey) -> None:
        """Drop the count of a call that is over."""
        self._attempts.pop(key, None)
        self._moves.pop(key, None)

    def _own_wait(self, key: CallKey, attempt: int) -> float:
        """Doubling, with a jitter that depends on the key, so that calls do not return together."""
        jitter = int.from_bytes(digest("wait", str(key), attempt, size=2)) / 2**16
        doubled = self._first_wait * float(2 ** (attempt - 1))
        return min(LONGEST_WAIT, doubled) * (0.5 + jitter)
