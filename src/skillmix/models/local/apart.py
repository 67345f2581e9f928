"""Local models in a second process, beside the process that journals and grades.

On a GPU a model needs the interpreter for a third of a millisecond a call, and the event loop, the journal and the
verdicts of a run need it for as long. In one process they would take turns. The processes send each other lists of
tuples that begin with a word, through a connection that closes when one of them ends:

    to the model    ("open", work, spec, concurrency), ("ask", work, request), ("end", work), ("stop", work), ("drop",)
    to the command  ("answer", work, key, outcome, slots), ("error", work, error), ("over", work), ("dropped",)

The other process runs `serve_command`.
"""

import os
import pickle
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from multiprocessing.connection import Connection
from pathlib import Path
from queue import SimpleQueue
from typing import Any, Final

from skillmix.calls import CallKey, Outcome, Request
from skillmix.errors import UserError
from skillmix.models.specs import ModelSpec

Put = Callable[[tuple[Request, Outcome] | BaseException | None], None]
"""Receives outcomes, an error that ends the work, and None after the last item."""

_GPU_FILES: Final = ("/dev/nvidiactl", "/dev/kfd", "/dev/dxg")
"""Linux has one of these files if it has a GPU that torch may use."""
_SERVER: Final = "skillmix.models.local.model"
_GATHER_S: Final = 0.004
"""Seconds for which requests and outcomes wait for others: a message costs as much as several requests."""


def has_gpu() -> bool:
    """Whether local models write on a GPU of this machine, as far as this shows without torch."""
    return os.environ.get("SKILLMIX_DEVICE", "cuda") == "cuda" and any(Path(file).exists() for file in _GPU_FILES)


def gathered(queue: "SimpleQueue[Any]") -> list[Any]:
    """Return the next item of a queue, with all that follow it soon."""
    items = [queue.get()]
    time.sleep(_GATHER_S)
    while not queue.empty():
        items.append(queue.get())
    return items


class RemoteWork:
    """A model that runs in the other process."""

    def __init__(self, number: int, send: Callable[[Any], None], put: Put) -> None:
        self.slots: int | None = None
        self._number, self._send, self._put = number, send, put
        self._open: dict[CallKey, Request] = {}
        self._has_stopped = False
        self._is_over = threading.Event()
        self.join = self._is_over.wait

    def add(self, request: Request) -> None:
        """Send a request."""
        self._open[request.key] = request
        self._send(("ask", self._number, request.without_subject()))

    def end(self) -> None:
        """Announce that no more requests come."""
        self._send(("end", self._number))

    def stop(self) -> None:
        """Cancel the remaining answers."""
        if not self._has_stopped:
            self._has_stopped = True
            self._send(("stop", self._number))

    def take(self, key: CallKey, outcome: Outcome, slots: int | None) -> None:
        """Hand over an outcome."""
        self.slots = slots
        self._put((self._open.pop(key), outcome))

    def fail(self, error: BaseException) -> None:
        """Hand over an error."""
        self._put(error)

    def finish(self) -> None:
        """End the work; nothing comes after it."""
        self._put(None)
        self._is_over.set()


class ModelProcess:
    """The other process, and the threads that send messages to it and read its answers."""

    def __init__(self) -> None:
        here, there = socket.socketpair()
        paths = [str(Path(path).absolute()) for path in sys.path]
        with there:
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-c", f"from {_SERVER} import serve_command; serve_command({there.fileno()})"],
                pass_fds=[there.fileno()],
                stdin=subprocess.DEVNULL,
                start_new_session=True,  # Ctrl-C is for the command, which ends the process
                env={**os.environ, "PYTHONPATH": os.pathsep.join(dict.fromkeys(paths))},
            )
        self._connection = Connection(here.detach())
        self._lock = threading.Lock()
        self._works: dict[int, RemoteWork] = {}
        self._opened = 0
        self._outgoing: SimpleQueue[Any] = SimpleQueue()
        self._is_lost = threading.Event()
        self._has_dropped = threading.Event()

        def write_all() -> None:
            with suppress(OSError, ValueError):  # the process is gone, which the other thread sees
                while None not in (letters := gathered(self._outgoing)):
                    self._connection.send_bytes(pickle.dumps(letters, pickle.HIGHEST_PROTOCOL))

        for target in (write_all, self._read_all):
            threading.Thread(target=target, name="skillmix-letters", daemon=True).start()

    @property
    def is_lost(self) -> bool:
        """Whether the process has ended."""
        return self._is_lost.is_set()

    def open(self, spec: ModelSpec, concurrency: int | None, put: Put) -> RemoteWork:
        """Make the process serve a model."""
        with self._lock:
            self._opened += 1
            number = self._opened
            work = self._works[number] = RemoteWork(number, self._outgoing.put, put)
        self._outgoing.put(("open", number, spec, concurrency))
        if self.is_lost:
            self._finish_all()
        return work

    def drop(self) -> None:
        """Wait until the process has freed the memory of its model."""
        self._has_dropped.clear()
        self._outgoing.put(("drop",))
        while not self._has_dropped.wait(0.1) and not self.is_lost:
            pass

    def close(self) -> None:
        """End the process; it has no state to lose."""
        self._process.kill()
        self._process.wait()
        self._is_lost.wait()
        self._outgoing.put(None)

    def _read_all(self) -> None:
        with suppress(EOFError, OSError):
            while True:
                for letter in pickle.loads(self._connection.recv_bytes()):  # from a process that this one started
                    self._take(letter)
        self._is_lost.set()
        self._finish_all()
        self._connection.close()

    def _take(self, letter: tuple[Any, ...]) -> None:
        if letter == ("dropped",):
            self._has_dropped.set()
            return
        word, number, *rest = letter
        with self._lock:
            work = self._works.pop(number, None) if word == "over" else self._works.get(number)
        if work is not None:
            hands_over: dict[str, Callable[..., None]] = {"answer": work.take, "error": work.fail, "over": work.finish}
            hands_over[word](*rest)

    def _finish_all(self) -> None:
        with self._lock:
            works, self._works = list(self._works.values()), {}
        status = self._process.wait()
        ending = f"signal {-status}" if status < 0 else f"exit status {status}"
        for work in works:
            work.fail(
                UserError(
                    f"The process of the local model ended with {ending}.",
                    hint="Rerun the command to continue. Signal 9 often means that the machine ran out of memory.",
                )
            )
            work.finish()
