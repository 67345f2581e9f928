"""Ctrl-C in the middle of calls: the first lets those in flight finish, the second leaves them."""

import asyncio
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from skillmix.engine.scheduler import Scheduler
from skillmix.stages.progress import say

INTERRUPTED: Final = "interrupted"


@contextmanager
def stopping_on_interrupt(scheduler: Scheduler) -> Iterator[None]:
    """Handle SIGINT where this thread may; elsewhere, as in a notebook's helper thread, leave it as it is."""
    loop = asyncio.get_running_loop()
    working = asyncio.current_task()

    is_pressed = False

    def stop() -> None:
        nonlocal is_pressed
        if is_pressed and working is not None:
            working.cancel()
            return
        is_pressed = True
        scheduler.stop(INTERRUPTED)
        say(f"\nstopping: {scheduler.in_flight} calls in flight are waited for; press Ctrl-C again to leave them")

    try:
        loop.add_signal_handler(signal.SIGINT, stop)
    except (NotImplementedError, RuntimeError, ValueError):
        yield
        return
    try:
        yield
    finally:
        loop.remove_signal_handler(signal.SIGINT)
