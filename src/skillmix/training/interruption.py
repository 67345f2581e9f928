"""Ctrl-C, SIGTERM or SIGHUP in the middle of a step: the step is finished first, so that nothing of it is lost."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

from skillmix.training.ranks import Ranks

_SIGNALS: Final = tuple(getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name))
"""Windows has no SIGHUP."""


@dataclass(slots=True)
class Interruption:
    """Whether somebody wants the run to stop."""

    number: int | None = None
    """The signal that said so."""

    @property
    def is_wanted(self) -> bool:
        """Whether to stop after this step."""
        return self.number is not None


@contextmanager
def finishing_steps(ranks: Ranks) -> Iterator[Interruption]:
    """Take note of the first signal, and obey the second at once; several ranks cannot agree on a step, and stop."""
    found = Interruption()
    if ranks.count > 1 or threading.current_thread() is not threading.main_thread():
        yield found
        return
    known = {int(number): signal.getsignal(number) for number in _SIGNALS}
    before = {n: handler for n, handler in known.items() if handler not in (None, signal.SIG_IGN)}  # nohup ignores one

    def note(number: int, _: Any) -> None:
        found.number = number
        signal.signal(number, before[number])

    for number in before:
        signal.signal(number, note)
    try:
        yield found
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
