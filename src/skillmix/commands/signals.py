"""SIGTERM and SIGHUP end a command as Ctrl-C does; the exit status names the signal."""

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from skillmix.errors import Interrupted


@contextmanager
def ending_like_ctrl_c() -> Iterator[None]:
    """Raise `Interrupted` on both signals, unless a signal is ignored (as under nohup) or has another handler."""
    # The ranks of a distributed training cannot agree on a step to stop at; their launcher's signal must end them.
    is_alone = int(os.environ.get("WORLD_SIZE") or 1) == 1
    before = {}
    if is_alone and threading.current_thread() is threading.main_thread():
        for name in ("SIGTERM", "SIGHUP"):
            number = getattr(signal, name, None)  # Windows has no SIGHUP
            if number is not None and signal.getsignal(number) == signal.SIG_DFL:
                before[number] = signal.signal(number, _end)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _end(number: int, _: object) -> None:
    raise Interrupted(number)
