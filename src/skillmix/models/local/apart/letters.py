"""What a command and the process of its local models send each other.

Requests travel as plain tuples: pickle takes a tenth of a millisecond to restore the dataclasses of one request, which
is a quarter of what a small model on a GPU needs for a call.
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from operator import attrgetter
from typing import Any, Final

from skillmix.calls import Decoding, GenerateKey, GradeKey, Message, Outcome, Request, Role
from skillmix.models.local.startup import StartupSeconds
from skillmix.models.specs import ModelSpec

_KEYS: Final[dict[str, type[GenerateKey] | type[GradeKey]]] = {"generate": GenerateKey, "grade": GradeKey}
_KEY_FIELDS: Final = {kind: attrgetter(*(field.name for field in fields(kind))) for kind in _KEYS.values()}
_DECODING_FIELDS: Final = attrgetter(*(field.name for field in fields(Decoding)))

Question = tuple[int, str, tuple[Any, ...], str, tuple[tuple[Role, str], ...], tuple[Any, ...], int | None]
"""A request with its number, without the records that are not sent to models."""


def question_of(number: int, request: Request) -> Question:
    """The form in which a request travels."""
    key = request.key
    name = "generate" if isinstance(key, GenerateKey) else "grade"
    messages = tuple((message.role, message.content) for message in request.messages)
    decoding = _DECODING_FIELDS(request.decoding)
    return number, name, _KEY_FIELDS[type(key)](key), request.model, messages, decoding, request.seed


def requests_of(questions: Sequence[Question]) -> list[Request]:
    """The requests of questions; equal messages and decodings are made once."""
    known: dict[tuple[Role, str], Message] = {}
    decodings: dict[tuple[Any, ...], Decoding] = {}
    requests = []
    for _, name, key, model, messages, decoding, seed in questions:
        for message in messages:
            if message not in known:
                known[message] = Message(*message)
        if decoding not in decodings:
            decodings[decoding] = Decoding(*decoding)
        turns = tuple([known[message] for message in messages])
        requests.append(Request(_KEYS[name](*key), model, turns, decodings[decoding], seed))
    return requests


@dataclass(frozen=True, slots=True)
class Open:
    """Begin to serve a model; all letters about it have the same `work`."""

    work: int
    spec: ModelSpec
    concurrency: int | None


@dataclass(frozen=True, slots=True)
class Ask:
    """More requests for a model."""

    work: int
    questions: Sequence[Question]


@dataclass(frozen=True, slots=True)
class NoMore:
    """The last request was sent."""

    work: int


@dataclass(frozen=True, slots=True)
class Stop:
    """Answer no more requests."""

    work: int


@dataclass(frozen=True, slots=True)
class ReadAhead:
    """Begin to read a checkpoint."""

    spec: ModelSpec


@dataclass(frozen=True, slots=True)
class Announce:
    """Note which model is used after the present one."""

    spec: ModelSpec


@dataclass(frozen=True, slots=True)
class ReadAnnounced:
    """Begin to read the announced model."""


@dataclass(frozen=True, slots=True)
class MakeRoom:
    """Free memory for training, and answer with `RoomMade`."""


@dataclass(frozen=True, slots=True)
class WorkState:
    """What the other process knows of a model that it serves."""

    startup: StartupSeconds
    slots: int | None
    gpu: str | None
    """The identifier of the GPU on which the model works; None on a CPU, or as long as it is unknown."""


@dataclass(frozen=True, slots=True)
class Answers:
    """Outcomes of requests by their numbers, and the error that ended the work."""

    work: int
    outcomes: Sequence[tuple[int, Outcome]]
    state: WorkState
    is_last: bool = False
    error: BaseException | None = None


@dataclass(frozen=True, slots=True)
class RoomMade:
    """Memory was freed."""


Letter = Any
"""One of the classes above."""
