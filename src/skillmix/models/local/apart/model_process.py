"""Local models in a process of their own, beside the process that journals and grades.

On a GPU a model needs the interpreter for a third of a millisecond a call, and the event loop, the journal and the
verdicts of a run need it for as long. In one process they would take turns.
"""

import os
import pickle
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from multiprocessing.connection import Connection
from pathlib import Path
from queue import SimpleQueue
from typing import Final

from skillmix.calls import Outcome, Request
from skillmix.errors import UserError
from skillmix.models.local.apart.letters import (
    Announce,
    Answers,
    Ask,
    Letter,
    MakeRoom,
    NoMore,
    Open,
    Question,
    ReadAhead,
    ReadAnnounced,
    RoomMade,
    Stop,
)
from skillmix.models.local.importing import is_lean
from skillmix.models.specs import ModelSpec

Put = Callable[[tuple[Request, Outcome] | BaseException | None], None]
"""Takes outcomes, an error that ends the work, and None after the last item."""

_SWITCH: Final = "SKILLMIX_MODEL_PROCESS"
_GPU_FILES: Final = ("/dev/nvidiactl", "/dev/kfd", "/dev/dxg")
"""Files of which one is there if Linux has a GPU that torch may use."""
_CHILD: Final = "skillmix.models.local.apart.child"
_MOST_TOGETHER: Final = 256
"""Requests in one letter."""
GATHER_S: Final = 0.004
"""Seconds for which requests wait for others: a letter costs as much as several requests, whatever it holds."""


def is_wanted() -> bool:
    """Whether local models work in a process of their own: with a GPU, unless the environment decides otherwise."""
    switch = os.environ.get(_SWITCH, "auto")
    if switch not in ("auto", "on", "off"):
        raise UserError(f"{_SWITCH} is {switch!r}.", hint="It may be on, off or auto.")
    if os.name != "posix" or switch == "off":
        return False
    if switch == "on":
        return True
    return os.environ.get("SKILLMIX_DEVICE") != "cpu" and any(Path(file).exists() for file in _GPU_FILES)


class RemoteWork:
    """A model that the other process serves."""

    def __init__(self, number: int, process: "ModelProcess", put: Put) -> None:
        self.slots: int | None = None
        self._number, self._process, self._put = number, process, put
        self._open: dict[int, Request] = {}
        self._asked = 0
        self._has_stopped = False
        self._is_over = threading.Event()

    def add(self, request: Request) -> None:
        """Send a request."""
        self._asked += 1
        self._open[self._asked] = request
        self._process.send((self._number, (self._asked, request.without_subject())))

    def end(self) -> None:
        """No more requests come."""
        self._process.send(NoMore(self._number))

    def stop(self) -> None:
        """Want no more answers."""
        if not self._has_stopped:
            self._has_stopped = True
            self._process.send(Stop(self._number))

    def join(self) -> None:
        """Wait until the model has ended its present round."""
        self._is_over.wait()

    def take(self, letter: Answers) -> None:
        """Hand over what a letter holds."""
        self.slots = letter.slots
        for number, outcome in letter.outcomes:
            self._put((self._open.pop(number), outcome))
        if letter.is_last:
            self.finish(letter.error)

    def finish(self, error: BaseException | None) -> None:
        """End the work; nothing comes after it."""
        if not self._is_over.is_set():
            if error is not None:
                self._put(error)
            self._put(None)
            self._is_over.set()


class ModelProcess:
    """The other process, and the threads that write letters to it and read its answers."""

    def __init__(self) -> None:
        here, there = socket.socketpair()
        with there, _without_interrupts():
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", _CHILD, str(there.fileno())],
                pass_fds=[there.fileno()],
                stdin=subprocess.DEVNULL,
                env=_environment(),
            )
        self._connection = Connection(here.detach())
        self._lock = threading.Lock()
        self._works: dict[int, RemoteWork] = {}
        self._opened = 0
        self._outgoing: SimpleQueue[Letter] = SimpleQueue()
        self._is_lost = threading.Event()
        self._has_room = threading.Event()
        self.gpu: str | None = None
        """The identifier of the GPU that the process uses; None if it uses none yet."""
        for target in (self._write_all, self._read_all):
            threading.Thread(target=target, name="skillmix-letters", daemon=True).start()

    @property
    def is_lost(self) -> bool:
        """Whether the process has ended."""
        return self._is_lost.is_set()

    def open(self, spec: ModelSpec, concurrency: int | None, put: Put) -> RemoteWork:
        """Let the process serve a model."""
        with self._lock:
            self._opened += 1
            number = self._opened
            work = self._works[number] = RemoteWork(number, self, put)
        self.send(Open(number, spec, concurrency))
        if self.is_lost:
            self._finish_all()
        return work

    def send(self, letter: Letter) -> None:
        """Send a letter; a pair of a work's number and a question goes out with others like it."""
        self._outgoing.put(letter)

    def read_ahead(self, spec: ModelSpec) -> None:
        """Let the process begin to read a checkpoint."""
        self.send(ReadAhead(spec))

    def announce(self, spec: ModelSpec) -> None:
        """Note which model is used after the present one."""
        self.send(Announce(spec))

    def read_announced(self) -> None:
        """Let the process begin to read the announced model."""
        self.send(ReadAnnounced())

    def make_room(self) -> None:
        """Wait until the process has freed memory for training."""
        self._has_room.clear()
        self.send(MakeRoom())
        while not self._has_room.wait(0.1):
            if self.is_lost:
                return

    def close(self) -> None:
        """End the process; it holds nothing that anyone needs."""
        self._process.kill()
        self._process.wait()
        self._is_lost.wait()
        self._outgoing.put(None)

    def _write_all(self) -> None:
        waiting: Letter = None
        try:
            while True:
                letter, waiting = waiting or self._outgoing.get(), None
                if letter is None:
                    return
                if isinstance(letter, tuple):
                    letter, waiting = self._with_others(*letter)
                self._connection.send_bytes(pickle.dumps(letter, pickle.HIGHEST_PROTOCOL))
        except (OSError, ValueError):  # the process is gone, which the other thread sees
            return

    def _with_others(self, work: int, question: Question) -> tuple[Ask, Letter]:
        """All questions to the same model that wait, and the letter after them."""
        questions = [question]
        time.sleep(GATHER_S)
        while len(questions) < _MOST_TOGETHER and not self._outgoing.empty():
            letter = self._outgoing.get()
            if not isinstance(letter, tuple) or letter[0] != work:
                return Ask(work, questions), letter
            questions.append(letter[1])
        return Ask(work, questions), None

    def _read_all(self) -> None:
        with suppress(EOFError, OSError):
            while True:
                self._take(pickle.loads(self._connection.recv_bytes()))  # from a process that this one started
        self._is_lost.set()
        self._finish_all()
        self._connection.close()

    def _take(self, letter: Letter) -> None:
        if isinstance(letter, RoomMade):
            self._has_room.set()
            return
        assert isinstance(letter, Answers)
        with self._lock:
            work = self._works.get(letter.work)
            if letter.is_last:
                self._works.pop(letter.work, None)
        if work is not None:
            work.take(letter)

    def _finish_all(self) -> None:
        with self._lock:
            works, self._works = list(self._works.values()), {}
        for work in works:
            work.finish(self._loss())

    def _loss(self) -> UserError:
        status = self._process.wait()
        ending = f"signal {-status}" if status < 0 else f"exit status {status}"
        return UserError(
            f"The process of the local model ended with {ending}.",
            hint="The same command goes on. Signal 9 often means that the memory of the machine was full.",
        )


def _environment() -> Mapping[str, str]:
    paths = [str(Path(path).absolute()) for path in sys.path]
    return {
        **os.environ,
        _SWITCH: "off",
        "PYTHONPATH": os.pathsep.join(dict.fromkeys(paths)),
        **({"SKILLMIX_LEAN_IMPORTS": "1"} if is_lean() else {}),
    }


@contextmanager
def _without_interrupts() -> Iterator[None]:
    """Let a child start that ignores Ctrl-C from its first moment."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
