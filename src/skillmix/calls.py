"""Requests to models and the outcomes of calls: the vocabulary that models, runs and steps share."""

import json
import re
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from hashlib import blake2b
from itertools import takewhile
from typing import Final, Literal, Protocol

from skillmix.catalog.combinations import Combination
from skillmix.errors import UserError
from skillmix.hashing import digest, seed_of, short_id
from skillmix.render import shortened

Role = Literal["system", "user", "assistant"]
LONGEST_NAME: Final = 100
"""Letters of the name of a run, a step, a student or a grader; files have such names."""
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
        """The hash under which a journal stores the message."""
        return content_address(self.role, self.content)


def content_address(role: Role, content: str) -> str:
    """The hash of a message, without any normalisation."""
    # Not `digest`: reading a journal hashes every message again, and JSON encoding would take most of that time.
    return blake2b(f"{role}\0{content}".encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()


@dataclass(frozen=True, slots=True)
class Decoding:
    """How a reply is sampled; only these parameters and the seed are sent with the messages.

    None means that a parameter is not sent, or not known.
    """

    temperature: float | None = 0.7
    max_tokens: int | None = 512
    top_p: float | None = None
    extra: str | None = None
    """Further fields of the request body, as one JSON object; `extra_json` writes it."""

    def settings(self) -> dict[str, object]:
        """The form that is hashed and stored, in which a temperature of 1 equals 1.0."""
        settings: dict[str, object] = {
            "temperature": None if self.temperature is None else float(self.temperature),
            "max_tokens": self.max_tokens,
            "top_p": None if self.top_p is None else float(self.top_p),
        }
        # Without further fields the form equals that of older journals, so their calls keep their hashes.
        return settings if self.extra is None else {**settings, "extra": self.extra_fields()}

    def extra_fields(self) -> dict[str, object]:
        """The further fields of the request body, by name."""
        fields: dict[str, object] = {} if self.extra is None else json.loads(self.extra)
        return fields


def extra_json(fields: Mapping[str, object]) -> str | None:
    """Further fields of a request body as `Decoding` holds them; None if there are none.

    >>> extra_json({"b": 1, "a": {}}), extra_json({})
    ('{"a":{},"b":1}', None)
    """
    if not fields:
        return None
    return json.dumps(dict(fields), ensure_ascii=False, separators=(",", ":"), sort_keys=True, allow_nan=False)


UNKNOWN_DECODING: Final = Decoding(temperature=None, max_tokens=None)
"""The decoding of replies that other programs made."""


ONLY_TURN: Final = 0
"""The number of the turn in a conversation of one; others count from 1. Its reply needs no 'Answer:'."""


@dataclass(frozen=True, slots=True)
class GenerateKey:
    """Identifies a student's call within a run."""

    student: str
    combination: str
    generation: int
    turn: int

    def __str__(self) -> str:
        return f"generate/{self.student}/{self.combination}/{self.generation}/{self.turn}"


@dataclass(frozen=True, slots=True)
class GradeKey:
    """Identifies a grader's call within a run; `text` is a short hash of the graded text."""

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
    """The task behind a request, as records; it is not sent, hashed or stored."""

    combination: Combination
    criteria: tuple[str, ...] = ()
    """The criteria that a grader gives points for, in the words of its prompt."""
    text: str = ""
    """The text that a grader grades."""
    is_control: bool = False
    """Whether the topic is the harmless twin of a probe."""


@dataclass(frozen=True)
class Request:
    """One call to a model."""

    key: CallKey
    model: str
    messages: tuple[Message, ...]
    decoding: Decoding
    seed: int | None
    subject: Subject | None = field(default=None, compare=False, repr=False)
    """For models that do not read their prompt, such as scripted ones; None if only the messages are known."""

    @property
    def prompts(self) -> int:
        """Prompts at the end, each with its own reply: several if code joins the texts of single skills."""
        return sum(1 for _ in takewhile(lambda message: message.role == "user", reversed(self.messages))) or 1

    def settings(self) -> dict[str, object]:
        """The parts that the request hash covers; address, key, timeout, concurrency and prices are not among them."""
        return {
            "model": self.model,
            "messages": [message.content_hash for message in self.messages],
            "decoding": self.decoding.settings(),
            "seed": self.seed,
        }

    @cached_property
    def content_hash(self) -> str:
        """A hash that changes when a request with the same key has other content."""
        return digest("request", self.settings()).hex()

    def without_subject(self) -> "Request":
        """The request as a journal needs it, with its hash."""
        copy = object.__new__(Request)
        copy.__dict__.update(self.__dict__, subject=None, content_hash=self.content_hash)
        return copy


def imported_request(key: CallKey, messages: tuple[Message, ...] = ()) -> Request:
    """The request behind an imported reply, as far as it is known."""
    return Request(key=key, model="imported", messages=messages, decoding=UNKNOWN_DECODING, seed=None)


@dataclass(frozen=True, slots=True)
class Reply:
    """The reply of a model; its text may be empty."""

    text: str
    finish: str | None = None
    """Why the model stopped, in the provider's words; None if unknown."""
    input_tokens: int | None = None
    output_tokens: int | None = None
    cost_usd: float | None = None
    not_sent: tuple[str, ...] = ()
    """Parameters of the request that the provider does not support."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "text", clean_text(self.text))
        if self.finish is not None:
            object.__setattr__(self, "finish", clean_text(self.finish))
        for name in ("input_tokens", "output_tokens"):
            if not is_count(getattr(self, name)):
                object.__setattr__(self, name, None)

    def with_cost(self, cost_usd: float) -> "Reply":
        """The same reply with its cost."""
        return replace(self, cost_usd=cost_usd)


_CUT: Final = frozenset({"length", "max_tokens", "max_output_tokens", "model_length", "model_context_window_exceeded"})
"""What providers call the end of a reply at a token limit, in small letters."""


def was_cut(finish: str | None) -> bool | None:
    """Whether a reply ended at a token limit; None if the provider did not say why it ended.

    >>> was_cut("length"), was_cut("MAX_TOKENS"), was_cut("stop"), was_cut(None)
    (True, True, False, None)
    """
    return None if finish is None else finish.casefold() in _CUT


ProblemKind = Literal["fatal", "final", "failed", "passing", "waiting"]
"""What a problem means for its run.

- fatal: the model cannot be used. The run stops.
- final: the problem is the student's own outcome, such as a refusal. No run makes this call again.
- failed: the model cannot answer this request now. This run does not try again, the next run does.
- passing: the model may answer the same request soon. This run tries again.
- waiting: the request is part of a batch, or was to be part of one. This run does not wait for it, the next run does.
"""


@dataclass(frozen=True, slots=True)
class CallProblem:
    """Why a call has no reply."""

    kind: ProblemKind
    reason: str
    detail: str = ""
    retry_after: float | None = None
    """Seconds that the provider wants us to wait; not stored."""
    is_free: bool = False
    """Whether the provider certainly does not bill this try; not stored."""
    tokens: tuple[int | None, int | None] = (None, None)
    """Input and output tokens as the provider counted them; not stored."""
    may_move: bool = False
    """Whether another address of the same model can take the call at once; not stored."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "reason", clean_text(self.reason))
        object.__setattr__(self, "detail", clean_text(self.detail))


Outcome = Reply | CallProblem
Origin = Literal["call", "imported", "imported-text"]
"""A call that we made, an imported reply, or an imported text that is the answer itself."""


@dataclass(frozen=True, slots=True)
class Call:
    """A call as a journal stores it."""

    key: CallKey
    outcome: Outcome | None
    """None while the call is part of a provider's batch that is not finished."""
    model: str
    messages: tuple[str, ...]
    """Hashes of the request's messages."""
    decoding: Decoding
    seed: int | None
    request_hash: str
    origin: Origin
    at: str


@dataclass(frozen=True, slots=True)
class Limits:
    """What a model needs from the run that calls it."""

    in_process: bool = False
    """Whether it holds weights in this process; only one such model is open at a time."""
    in_flight: int | None = None
    """The most calls that it works on at once; None if that is not known."""
    may_rest: bool = False
    """Whether its calls may wait in a provider's batch for hours."""


class Model(Protocol):
    """A model: it pulls requests when it has room, and yields each outcome when it is ready."""

    @property
    def limits(self) -> Limits:
        """What it needs from the run; subclasses inherit defaults for all methods except `serve`."""
        return Limits()

    def serve(self, requests: AsyncIterator[Request]) -> AsyncIterator[tuple[Request, Outcome]]:
        """Yield every request with its outcome, in any order."""
        ...

    async def probe(self) -> CallProblem | None:
        """Check address, name and key without a paid call; None if there is no problem.

        It may also raise a `UserError` with a hint. Not every command calls it: `grade-text` does not.
        """
        return None

    async def close(self) -> None:
        """Release connections and memory."""
        return None


_LARGEST_COUNT: Final = 2**53


def is_count(value: object) -> bool:
    """Whether a value can be a number of tokens.

    >>> is_count(7), is_count(-7), is_count(True), is_count(2**70), is_count("7")
    (True, False, False, False, False)
    """
    return type(value) is int and 0 <= value <= _LARGEST_COUNT


def clean_text(text: str) -> str:
    """Replace lone surrogates, which no file can hold."""
    return text if text.isascii() else text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def text_id(text: str) -> str:
    """The short hash of a graded text."""
    return short_id("text", text)


def seed_for(experiment_seed: int, key: CallKey) -> int:
    """The seed of one call."""
    return seed_of(experiment_seed, str(key))


def checked_name(name: str, what: str) -> str:
    """The name itself if it can be part of a key; otherwise an error."""
    if len(name) > LONGEST_NAME or not _NAME.fullmatch(name):
        raise UserError(
            f"{shortened(name)!r} is not a name for a {what}.",
            hint=f"Use only small letters, digits, '.', '_' and '-', {LONGEST_NAME} at most.",
        )
    return name


HUMAN: Final = "human:"
"""How the names of graders that are people begin; no experiment file and no import can name such a grader."""
PEOPLE: Final = "people"
"""The name of the majority of all people who rated a text, as a grader."""
_LONGEST_RATER: Final = 60


def human_grader(rater: str) -> str:
    """The name under which a journal keeps the votes of a person.

    >>> human_grader("ann")
    'human:ann'
    """
    if len(rater) > _LONGEST_RATER:
        raise UserError(
            f"The name {rater[:20]!r}… is too long for a rater.", hint=f"Use at most {_LONGEST_RATER} letters."
        )
    name = checked_name(rater, "rater")
    if not (name[0].isalnum() and name[-1].isalnum()):
        raise UserError(f"{name!r} is not a name for a rater.", hint="Let it begin and end with a letter or a digit.")
    return HUMAN + name


def is_human(grader: str) -> bool:
    """Whether a grader is a person.

    >>> is_human("human:ann"), is_human("judge")
    (True, False)
    """
    return grader.startswith(HUMAN)


def as_name(label: str) -> str:
    """The nearest valid name to a label of another program.

    >>> as_name("meta-llama/Llama-2 7B")
    'meta-llama-llama-2-7b'
    """
    return re.sub(r"[^a-z0-9._-]+", "-", label.casefold()).strip("-") or "unnamed"
