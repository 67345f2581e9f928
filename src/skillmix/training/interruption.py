"""Ctrl-C in the middle of a step: the step is finished first, so that nothing of it is lost."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

from skillmix.training.ranks import Ranks

_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM)


@dataclass(slots=True)
class Interruption:
    """Whether somebody wants the run to stop."""

    is_wanted: bool = False


@contextmanager
def finishing_steps(ranks: Ranks) -> Iterator[Interruption]:
    """Take note of the first signal, and obey the second at once; several ranks cannot agree on a step, and stop."""
    found = Interruption()
    if ranks.count > 1 or threading.current_thread() is not threading.main_thread():
        yield found
        return
    before = {int(number): signal.getsignal(number) for number in _SIGNALS}

    def note(number: int, _: Any) -> None:
        found.is_wanted = True
        signal.signal(number, before[number])

    for number in _SIGNALS:
        signal.signal(number, note)
    try:
        yield found
    finally:
        for number in _SIGNALS:
            signal.signal(number, before[number])
