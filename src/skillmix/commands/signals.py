"""SIGTERM and SIGHUP end a command as Ctrl-C does; the exit status names the signal."""

import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from skillmix.errors import Interrupted

if TYPE_CHECKING:
    from sys import UnraisableHookArgs

_SOON_S: Final = 0.01


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
    hook = sys.unraisablehook
    if before:
        sys.unraisablehook = _sending_again(hook)
    try:
        yield
    finally:
        sys.unraisablehook = hook
        for number, handler in before.items():
            signal.signal(number, handler)


def _end(number: int, _: object) -> None:
    raise Interrupted(number)


def _sending_again(hook: "Callable[[UnraisableHookArgs], object]") -> "Callable[[UnraisableHookArgs], object]":
    """A hook for errors that nobody can catch: a signal that came while an object was finalized comes again soon."""

    def send_again(problem: "UnraisableHookArgs") -> None:
        if not isinstance(problem.exc_value, KeyboardInterrupt):
            hook(problem)
            return
        number = getattr(problem.exc_value, "number", signal.SIGINT)
        again = threading.Timer(_SOON_S, os.kill, (os.getpid(), number))
        again.daemon = True
        again.start()

    return send_again
