"""The process of the local models of a command: `python -m skillmix.models.local.child FILE_NUMBER`."""

import os
import pickle
import sys
import threading
from itertools import groupby
from multiprocessing.connection import Connection
from operator import itemgetter
from queue import SimpleQueue
from typing import Any

from skillmix.errors import UserError
from skillmix.models.local.apart import Put, gathered
from skillmix.models.local.model import MODELS, LocalModel, ThreadWork
from skillmix.models.specs import ModelOptions


def main() -> None:
    """Serve local models until the command that started this process closes the connection."""
    connection = Connection(int(sys.argv[1]))
    works: dict[int, ThreadWork] = {}
    numbers: dict[int, int] = {}  # of open requests, by the identity of the request
    outgoing: SimpleQueue[Any] = SimpleQueue()
    sending = threading.Thread(target=_send_answers, args=(connection, outgoing, numbers), daemon=True)
    sending.start()

    def put_from(work: int, model: LocalModel) -> Put:
        return lambda item: outgoing.put(((work, model), item))

    with MODELS.keeping():
        try:
            while True:
                match pickle.loads(connection.recv_bytes()):  # from the command that started this process
                    case "open", work, spec, concurrency:
                        model = LocalModel(spec, ModelOptions(concurrency))
                        works[work] = ThreadWork(model, put_from(work, model))
                    case "ask", work, questions:
                        for number, request in questions:
                            numbers[id(request)] = number
                            works[work].add(request)
                    case "end", work:
                        works[work].end()
                    case "stop", work:  # the last letter about a work
                        works.pop(work).stop()
                    case ("drop",):
                        MODELS.drop()
                        outgoing.put((None, None))
        except (EOFError, OSError):
            os._exit(0)  # at once: threads may hold a GPU that the next command wants


def _send_answers(connection: Connection, outgoing: "SimpleQueue[Any]", numbers: dict[int, int]) -> None:
    """Send what models put, from a thread, so that no model waits for the reader of its answers."""
    try:
        while True:
            for place, group in groupby(gathered(outgoing), key=itemgetter(0)):
                if place is None:
                    connection.send_bytes(pickle.dumps(("dropped",)))
                    continue
                number, model = place
                found = [item for _, item in group]
                outcomes = [(numbers.pop(id(item[0])), item[1]) for item in found if isinstance(item, tuple)]
                error = next((item for item in found if isinstance(item, BaseException)), None)
                answers = ("answers", number, outcomes, model.limits.in_flight, None in found, error)
                connection.send_bytes(_pickled(answers))
    except OSError:  # the command is gone
        os._exit(1)


def _pickled(answers: tuple[Any, ...]) -> bytes:
    """Answers as bytes; an error that cannot travel is replaced by one with its words."""
    *others, error = answers
    try:
        sent = pickle.dumps(answers, pickle.HIGHEST_PROTOCOL)
        if error is not None:
            pickle.loads(sent)
        return sent
    except Exception:  # noqa: BLE001  # anything may go wrong with an unknown error
        told = UserError(f"The local model failed: {type(error).__name__}: {error}")
        return pickle.dumps((*others, told))


if __name__ == "__main__":
    main()
