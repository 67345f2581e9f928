"""What a model is asked and what it answers: the vocabulary that engine, models and stages share."""

import re
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from functools import cached_property
from hashlib import blake2b
from typing import Final, Literal, Protocol

from skillmix.catalog.combinations import Combination
from skillmix.errors import UserError
from skillmix.hashing import digest, seed_of, short_id

Role = Literal["system", "user", "assistant"]
_NAME = re.compile(r"[._-]*[a-z0-9][a-z0-9._-]*")


@dataclass(frozen=True)
class Message:
    """One turn of a conversation."""

    role: Role
    content: str

    def __post_init__(self) -> None:
        object.__setattr__(self, "content", clean_text(self.content))

    @cached_property
    def content_hash(self) -> str:
        """The address under which a journal keeps the message."""
        return content_address(self.role, self.content)


def content_address(role: Role, content: str) -> str:
    """The hash of a message, of its words as they are."""
    # Not `digest`: every message is hashed again whenever a journal is read, and JSON would take most of it.
    return blake2b(f"{role}\0{content}".encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()


@dataclass(frozen=True, slots=True)
class Decoding:
    """How a reply is sampled; nothing else about sampling is ever sent. None is: not sent, or not known."""

    temperature: float | None = 0.7
    max_tokens: int | None = 512
    top_p: float | None = None

    def settings(self) -> dict[str, float | int | None]:
        """As hashed and stored: a temperature of 1 is one of 1.0."""
        return {
            "temperature": None if self.temperature is None else float(self.temperature),
            "max_tokens": self.max_tokens,
            "top_p": None if self.top_p is None else float(self.top_p),
        }


UNKNOWN_DECODING: Final = Decoding(temperature=None, max_tokens=None)
"""Of replies that were made elsewhere."""


@dataclass(frozen=True, slots=True)
class GenerateKey:
    """What a student's call is for."""

    student: str
    combination: str
    generation: int
    turn: int

    def __str__(self) -> str:
        return f"generate/{self.student}/{self.combination}/{self.generation}/{self.turn}"


@dataclass(frozen=True, slots=True)
class GradeKey:
    """What a grader's call is for; `text` is a short hash of the graded text."""

    student: str
    combination: str
    generation: int
    text: str
    grader: str
    round: int
    attempt: int

    def __str__(self) -> str:
        return (
            f"grade/{self.student}/{self.combination}/{self.generation}/{self.text}"
            f"/{self.grader}/{self.round}/{self.attempt}"
        )


CallKey = GenerateKey | GradeKey


@dataclass(frozen=True, slots=True)
class Subject:
    """What a request is about, as records; it is neither sent nor hashed nor stored."""

    combination: Combination
    criteria: tuple[str, ...] = ()
    """What a grader is asked to give points for, in the words of its prompt."""
    text: str = ""
    """The text that a grader is asked about."""


@dataclass(frozen=True)
class Request:
    """One call to a model."""

    key: CallKey
    model: str
    messages: tuple[Message, ...]
    decoding: Decoding
    seed: int | None
    subject: Subject | None = field(default=None, compare=False, repr=False)
    """For models that do not read their prompt; None if only the messages are known."""

    def settings(self) -> dict[str, object]:
        """What the request hash covers, by name; not address, key, timeouts, concurrency or prices."""
        return {
            "model": self.model,
            "messages": [message.content_hash for message in self.messages],
            "decoding": self.decoding.settings(),
            "seed": self.seed,
        }

    @cached_property
    def content_hash(self) -> str:
        """Changes when the same key would be asked something else."""
        return digest("request", self.settings()).hex()


@dataclass(frozen=True, slots=True)
class Reply:
    """What came back, also when it is empty."""

    text: str
    finish: str | None = None
    """Why the model stopped, in its provider's words; None if unknown."""
    input_tokens: int | None = None
    output_tokens: int | None = None
    cost_usd: float | None = None
    not_sent: tuple[str, ...] = ()
    """Parameters that the provider could not take."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "text", clean_text(self.text))
        if self.finish is not None:
            object.__setattr__(self, "finish", clean_text(self.finish))
        for name in ("input_tokens", "output_tokens"):
            if not is_count(getattr(self, name)):
                object.__setattr__(self, name, None)


ProblemKind = Literal["fatal", "final", "failed", "passing"]
"""What a problem means for its run.

- fatal: the model cannot be used, and the run stops.
- final: the student's own outcome, such as a refusal. It is never asked again.
- failed: this request cannot be answered now. It is not tried again in this run, and the next run asks it again.
- passing: the same request may be answered soon. It is tried again.
"""


@dataclass(frozen=True, slots=True)
class CallProblem:
    """Why there is no reply."""

    kind: ProblemKind
    reason: str
    detail: str = ""
    retry_after: float | None = None
    """Seconds that the provider asks to wait; not stored."""
    is_free: bool = False
    """Whether it is known that nobody bills this try; not stored."""
    tokens: tuple[int | None, int | None] = (None, None)
    """Input and output tokens that the provider counted, if it did; not stored."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "reason", clean_text(self.reason))
        object.__setattr__(self, "detail", clean_text(self.detail))


Outcome = Reply | CallProblem
Origin = Literal["call", "imported", "imported-text"]
"""A call of ours; a reply made elsewhere; a text made elsewhere, which is the answer itself."""


@dataclass(frozen=True, slots=True)
class Call:
    """A call as a journal keeps it."""

    key: CallKey
    outcome: Outcome | None
    """None while it is submitted to a provider's batch."""
    model: str
    messages: tuple[str, ...]
    """Hashes of the request's messages."""
    decoding: Decoding
    seed: int | None
    request_hash: str
    origin: Origin
    at: str


class Model(Protocol):
    """Anything that answers: it pulls requests when it has room and yields outcomes as they finish."""

    def serve(self, requests: AsyncIterator[Request]) -> AsyncIterator[tuple[Request, Outcome]]:
        """Answer requests, in any order."""
        ...

    async def probe(self) -> CallProblem | None:
        """What is wrong with its address, its name or the key, found out without a paid call; None if nothing is."""
        ...

    async def close(self) -> None:
        """Give back what it holds."""
        ...


_LARGEST_COUNT: Final = 2**53


def is_count(value: object) -> bool:
    """Whether a value can be a number of tokens.

    >>> is_count(7), is_count(-7), is_count(True), is_count(2**70), is_count("7")
    (True, False, False, False, False)
    """
    return type(value) is int and 0 <= value <= _LARGEST_COUNT


def clean_text(text: str) -> str:
    """Text from outside without the half characters that no file can hold."""
    return text if text.isascii() else text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def text_id(text: str) -> str:
    """The short hash of a graded text."""
    return short_id("text", text)


def seed_for(experiment_seed: int, key: CallKey) -> int:
    """The seed of one call."""
    return seed_of(experiment_seed, str(key))


def checked_name(name: str, what: str) -> str:
    """A name that can stand in a key."""
    if not _NAME.fullmatch(name):
        raise UserError(
            f"{name!r} is not a name for a {what}.",
            hint="Use small letters, digits, '.', '_' and '-' only.",
        )
    return name


def as_name(label: str) -> str:
    """The nearest name to a label from elsewhere.

    >>> as_name("meta-llama/Llama-2 7B")
    'meta-llama-llama-2-7b'
    """
    return re.sub(r"[^a-z0-9._-]+", "-", label.casefold()).strip("-") or "unnamed"
