"""Run a generator in a second process while this one goes on."""

import math
import os
import pickle
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from multiprocessing import current_process, get_context
from multiprocessing.connection import Connection
from pathlib import Path
from queue import Empty, Queue
from threading import Thread
from typing import Any, Final, TypeVar

from skillmix.catalog.own_code import Trust, trust_here, trusting_as

Item = TypeVar("Item")
_CONTROL_GROUP: Final = Path("/sys/fs/cgroup")
_AHEAD: Final = 4
"""Items that wait to be consumed: enough to keep both processes busy, few enough to hold in memory."""


MOST_HELPERS: Final = 16
"""The most processes that read a run together: each takes some 200 MB and scans the calls of the whole journal."""


class LostHelper(Exception):
    """The second process ended before its work was done."""


def is_there_a_second_core() -> bool:
    """Whether a second process may be started and has a core of its own."""
    return not current_process().daemon and cores() > 1


def cores() -> int:
    """The number of cores that this process may use: those it may run on, or the share of them that a container has."""
    affinity = getattr(os, "sched_getaffinity", None)  # not on every system
    allowed = len(affinity(0)) if affinity is not None else os.cpu_count() or 1
    return max(1, math.ceil(min(allowed, _container_cores())))


def _container_cores() -> float:
    """Cores' worth of time that a container on Linux gives its processes; infinite without a limit."""
    with suppress(OSError, ValueError):  # ValueError: the quota is "max"
        quota, period = (_CONTROL_GROUP / "cpu.max").read_text(encoding="ascii").split()
        return int(quota) / int(period)
    with suppress(OSError, ValueError):
        quota, period = (
            (_CONTROL_GROUP / "cpu" / name).read_text(encoding="ascii")
            for name in ("cpu.cfs_quota_us", "cpu.cfs_period_us")
        )
        return int(quota) / int(period) if int(quota) > 0 else math.inf
    return math.inf


@contextmanager
def in_helper(function: Callable[..., Iterator[Item]], *arguments: object) -> Iterator[Iterator[Item]]:
    """Start a generator in a second process; its items come in order, and its errors are raised here.

    The process is spawned: a fork of this one would not survive its threads.
    """
    context = get_context("spawn")
    try:
        receiving, sending = context.Pipe(duplex=False)
    except OSError as error:  # no more files may be open
        raise LostHelper from error
    process = context.Process(target=_send_all, args=(sending, function, arguments, trust_here()), daemon=True)
    try:
        process.start()
    except (OSError, ImportError) as error:  # a system that starts no more processes, or has no semaphores
        receiving.close()
        raise LostHelper from error
    finally:
        sending.close()
    waiting: Queue[bytes | None] = Queue(_AHEAD)
    # Items are unpickled only when they are consumed, so that this thread takes no time from the work.
    thread = Thread(target=_receive_all, args=(receiving, waiting), daemon=True)
    thread.start()
    try:
        yield _received(waiting)
    finally:
        process.kill()
        while thread.is_alive():
            with suppress(Empty):
                waiting.get(timeout=0.1)
        process.join()
        receiving.close()


def _send_all(
    sending: Connection, function: Callable[..., Iterator[Item]], arguments: tuple[object, ...], trust: Trust
) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the first process, which ends this one
    try:
        with trusting_as(trust):
            for item in function(*arguments):
                sending.send_bytes(pickle.dumps(("item", item), pickle.HIGHEST_PROTOCOL))
        last: tuple[str, object] = ("end", None)
    except BrokenPipeError:  # the first process wants no more
        return
    except Exception as error:  # noqa: BLE001  # the first process raises it
        last = ("error", error)
    sending.send_bytes(pickle.dumps(last))


def _receive_all(receiving: Connection, waiting: "Queue[bytes | None]") -> None:
    with suppress(EOFError, OSError):
        while True:
            waiting.put(receiving.recv_bytes())
    waiting.put(None)


def _received(waiting: "Queue[bytes | None]") -> Iterator[Any]:
    while True:
        sent = waiting.get()
        if sent is None:
            raise LostHelper
        kind, value = pickle.loads(sent)  # from a process that this one started
        if kind == "error":
            raise value
        if kind == "end":
            return
        yield value
