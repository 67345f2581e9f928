"""Handle Ctrl-C, SIGTERM and SIGHUP: the first signal waits for calls in flight, the second leaves them."""

import asyncio
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

from skillmix.render import plural
from skillmix.runs.progress import say
from skillmix.runs.scheduler import Scheduler, StopReason

_SIGNALS: Final[dict[StopReason, signal.Signals]] = {
    reason: getattr(signal, name)
    for reason, name in (
        (StopReason.INTERRUPTED, "SIGINT"),
        (StopReason.TERMINATED, "SIGTERM"),
        (StopReason.HUNG_UP, "SIGHUP"),
    )
    if hasattr(signal, name)  # Windows has no SIGHUP
}


def signal_of(stopped: StopReason | None) -> int | None:
    """The signal that stopped a step; None if another reason did, or none."""
    return _SIGNALS.get(stopped) if stopped else None


@contextmanager
def stopping_on_interrupt(scheduler: Scheduler) -> Iterator[None]:
    """Stop a scheduler on the first signal, and leave its calls on the second."""
    working = asyncio.current_task()
    is_asked = False

    def stop(reason: StopReason) -> None:
        nonlocal is_asked
        if is_asked and working is not None:
            working.cancel()
            return
        is_asked = True
        scheduler.stop(reason)
        say(f"\nstopping: waiting for {plural(scheduler.awaited, 'call')} in flight; press Ctrl-C again to leave them")

    with reacting_to_signals(stop):
        yield


@contextmanager
def reacting_to_signals(react: Callable[[StopReason], None]) -> Iterator[None]:
    """Call a function of the event loop for each signal, so that no signal breaks into the middle of other work.

    In other threads than the first, such as a notebook's, signals are left as they are.
    """
    loop = asyncio.get_running_loop()
    before = {}
    for reason, number in _SIGNALS.items():
        handler = signal.getsignal(number)
        if number != signal.SIGINT and handler == signal.SIG_IGN:
            continue  # as under nohup
        try:
            loop.add_signal_handler(number, react, reason)
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
