"""Ctrl-C, SIGTERM or SIGHUP during calls: the first lets those in flight finish, the second leaves them."""

import asyncio
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from skillmix.runs.progress.terminal import say
from skillmix.runs.scheduler import Scheduler

_SIGNALS: Final = {
    why: getattr(signal, name)
    for why, name in (("interrupted", "SIGINT"), ("terminated", "SIGTERM"), ("hung up", "SIGHUP"))
    if hasattr(signal, name)  # Windows has no SIGHUP
}
"""What a tally says if a signal stopped it, and the signal."""


def signal_of(stopped: str | None) -> int | None:
    """The signal that stopped a step; None if it was something else, or nothing."""
    return _SIGNALS.get(stopped) if stopped else None


@contextmanager
def stopping_on_interrupt(scheduler: Scheduler) -> Iterator[None]:
    """Handle signals where this thread may; elsewhere, as in a notebook's helper thread, leave them as they are."""
    loop = asyncio.get_running_loop()
    working = asyncio.current_task()

    is_asked = False

    def stop(why: str) -> None:
        nonlocal is_asked
        if is_asked and working is not None:
            working.cancel()
            return
        is_asked = True
        scheduler.stop(why)
        say(f"\nstopping: {scheduler.in_flight} calls in flight are waited for; press Ctrl-C again to leave them")

    before = {}
    for why, number in _SIGNALS.items():
        handler = signal.getsignal(number)
        if number != signal.SIGINT and handler == signal.SIG_IGN:
            continue  # as under nohup
        try:
            loop.add_signal_handler(number, stop, why)
        except (NotImplementedError, RuntimeError, ValueError):
            break
        before[number] = handler
    try:
        yield
    finally:
        for number, handler in before.items():
            loop.remove_signal_handler(number)
            if handler is not None:
                signal.signal(number, handler)
