"""The process of the local models of a command: `python -m skillmix.models.local.apart.child FILE_NUMBER`.

It ends when the other end of its connection is closed, so also when the command is killed.
"""

import os
import pickle
import signal
import sys
import threading
import time
from collections import deque
from multiprocessing.connection import Connection
from queue import SimpleQueue
from typing import Any

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
    ReadAhead,
    ReadAnnounced,
    RoomMade,
    Stop,
)
from skillmix.models.local.apart.model_process import GATHER_S
from skillmix.models.local.importing import import_lean
from skillmix.models.local.model import LocalModel
from skillmix.models.local.resident import MODELS
from skillmix.models.specs import ModelOptions


class _Outbox:
    """Sends letters from a thread of its own, so that a model never waits for the reader of its answers."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._letters: SimpleQueue[Letter] = SimpleQueue()
        threading.Thread(target=self._send_all, name="skillmix-outbox", daemon=True).start()

    def put(self, letter: "Letter | _Work") -> None:
        """Send a letter, or the answers of a work that wait at the time of sending."""
        self._letters.put(letter)

    def _send_all(self) -> None:
        try:
            while True:
                letter = self._letters.get()
                if isinstance(letter, _Work):
                    time.sleep(GATHER_S)
                    letter = letter.answers()
                self._connection.send_bytes(_pickled(letter))
        except OSError:  # the command is gone
            os._exit(1)


class _Work:
    """A model that answers requests in a thread of its own."""

    def __init__(self, letter: Open, outbox: _Outbox) -> None:
        self._number = letter.work
        self._outbox = outbox
        self._model = LocalModel(letter.spec, ModelOptions(letter.concurrency))
        self._incoming: SimpleQueue[Request] = SimpleQueue()
        self._is_over = threading.Event()
        self._number_of: dict[int, int] = {}
        """The numbers of open requests by the identity of the request."""
        self._ready: deque[tuple[int, Outcome]] = deque()
        self._is_announced = threading.Event()
        self._is_last = False
        self._error: BaseException | None = None
        threading.Thread(target=self._run, name="skillmix-model", daemon=True).start()

    def ask(self, letter: Ask) -> None:
        """Add requests."""
        for number, request in letter.questions:
            self._number_of[id(request)] = number
            self._incoming.put(request)

    def end(self) -> None:
        """No more requests come."""
        self._is_over.set()

    def stop(self) -> None:
        """Answer no more requests."""
        self._model.stop()

    def answers(self) -> Answers:
        """All outcomes since the last letter."""
        self._is_announced.clear()
        is_last, error = self._is_last, self._error  # before the outcomes: the last letter holds all of them
        outcomes = [self._ready.popleft() for _ in range(len(self._ready))]
        return Answers(self._number, outcomes, self._model.limits.in_flight, is_last, error)

    def _run(self) -> None:
        self._model.work(self._incoming, self._is_over, self._put)

    def _put(self, item: Any) -> None:
        if isinstance(item, tuple):
            request, outcome = item
            self._ready.append((self._number_of.pop(id(request)), outcome))
        elif isinstance(item, BaseException):
            self._error = item
        else:
            self._is_last = True
            self._outbox.put(self)
            return
        if not self._is_announced.is_set():
            self._is_announced.set()
            self._outbox.put(self)


def _pickled(letter: Letter) -> bytes:
    """A letter as bytes; an error that cannot travel is replaced by one with its words."""
    try:
        sent = pickle.dumps(letter, pickle.HIGHEST_PROTOCOL)
        if isinstance(letter, Answers) and letter.error is not None:
            pickle.loads(sent)
        return sent
    except Exception:  # noqa: BLE001  # anything may go wrong with an unknown error
        error = UserError(f"The local model failed: {type(letter.error).__name__}: {letter.error}")
        return pickle.dumps(Answers(letter.work, letter.outcomes, letter.slots, letter.is_last, error))


class _Desk:
    """Does what letters ask for."""

    def __init__(self, outbox: _Outbox) -> None:
        self._outbox = outbox
        self._works: dict[int, _Work] = {}

    def take(self, letter: Letter) -> None:
        """Do what a letter asks for."""
        match letter:
            case Ask():
                self._works[letter.work].ask(letter)
            case Open():
                self._works[letter.work] = _Work(letter, self._outbox)
            case NoMore():
                self._works[letter.work].end()
            case Stop():  # the last letter about a work
                self._works.pop(letter.work).stop()
            case _:
                self._take_about_memory(letter)

    def _take_about_memory(self, letter: Letter) -> None:
        match letter:
            case ReadAhead():
                MODELS.read_ahead(letter.spec)
            case Announce():
                MODELS.announce(letter.spec)
            case ReadAnnounced():
                MODELS.read_announced()
            case MakeRoom():
                MODELS.make_room()
                self._outbox.put(RoomMade())


def main() -> None:
    """Serve local models until the command that started this process closes the connection."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the command, which ends this process
    if os.environ.pop("SKILLMIX_LEAN_IMPORTS", None):
        import_lean()
    with MODELS.keeping():
        try:
            connection = Connection(int(sys.argv[1]))
            desk = _Desk(_Outbox(connection))
            while True:
                desk.take(pickle.loads(connection.recv_bytes()))  # from the command that started this process
        except (EOFError, OSError):
            os._exit(0)  # at once: threads may hold a GPU that the next command wants


if __name__ == "__main__":
    main()
