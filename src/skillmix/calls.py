"""Requests to models and outcomes of calls: the types that models, runs and steps share."""

import json
import re
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from hashlib import blake2b
from itertools import takewhile
from typing import Final, Literal, Protocol, TypeGuard

from skillmix.catalog.combinations import Combination
from skillmix.errors import UserError
from skillmix.hashing import digest, seed_of, short_id
from skillmix.render import shortened

Role = Literal["system", "user", "assistant"]
LONGEST_NAME: Final = 100
"""The maximum length of the names of runs, steps, students and graders, which become file names."""
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
        """Return the hash under which journals store the message."""
        return content_address(self.role, self.content)


def content_address(role: Role, content: str) -> str:
    """Hash a message's role and content without normalization."""
    # Not `digest`, because its JSON encoding would slow down reading a journal, which hashes every message again.
    return blake2b(f"{role}\0{content}".encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()


@dataclass(frozen=True, slots=True)
class Decoding:
    """The sampling parameters of a reply; None for a parameter that is not sent or not known."""

    temperature: float | None = 0.7
    max_tokens: int | None = 512
    top_p: float | None = None
    extra: str | None = None
    """Additional fields of the request body, as JSON from `extra_json`."""

    def settings(self) -> dict[str, object]:
        """Return the parameters as they are hashed and stored; the temperatures 1 and 1.0 become equal."""
        settings: dict[str, object] = {
            "temperature": None if self.temperature is None else float(self.temperature),
            "max_tokens": self.max_tokens,
            "top_p": None if self.top_p is None else float(self.top_p),
        }
        # Leave out an empty `extra`, so that calls in older journals keep their hashes.
        return settings if self.extra is None else {**settings, "extra": self.extra_fields()}

    def extra_fields(self) -> dict[str, object]:
        """Return the additional fields of the request body by name."""
        fields: dict[str, object] = {} if self.extra is None else json.loads(self.extra)
        return fields


def extra_json(fields: Mapping[str, object]) -> str | None:
    """Encode additional fields of a request body for `Decoding`; None if there are none.

    >>> extra_json({"b": 1, "a": {}}), extra_json({})
    ('{"a":{},"b":1}', None)
    """
    if not fields:
        return None
    return json.dumps(dict(fields), ensure_ascii=False, separators=(",", ":"), sort_keys=True, allow_nan=False)


UNKNOWN_DECODING: Final = Decoding(temperature=None, max_tokens=None)
"""The sampling parameters of replies from other programs, which are unknown."""
ONLY_TURN: Final = 0
"""The number of the turn in a one-turn conversation, whose reply needs no 'Answer:'. Other turns count from 1."""


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
    """The combination and text that a request is about; neither is sent, hashed or stored."""

    combination: Combination
    criteria: tuple[str, ...] = ()
    """The criteria in the words of the grader's prompt."""
    text: str = ""
    """The text to grade."""
    is_control: bool = False
    """Whether the topic is the harmless counterpart of a probe."""


@dataclass(frozen=True)
class Request:
    """One call to a model."""

    key: CallKey
    model: str
    messages: tuple[Message, ...]
    decoding: Decoding
    seed: int | None
    subject: Subject | None = field(default=None, compare=False, repr=False)
    """The subject, for models that do not read their prompt, such as scripted models; None if it is unknown."""

    @property
    def prompts(self) -> int:
        """Count the final user prompts, of which there are several if code joins texts of single skills."""
        return sum(1 for _ in takewhile(lambda message: message.role == "user", reversed(self.messages))) or 1

    def settings(self) -> dict[str, object]:
        """Return the fields that the request hash covers: not base URL, key, timeout, concurrency or prices."""
        return {
            "model": self.model,
            "messages": [message.content_hash for message in self.messages],
            "decoding": self.decoding.settings(),
            "seed": self.seed,
        }

    @cached_property
    def content_hash(self) -> str:
        """Hash the content of the request, so that a changed request under the same key is detected."""
        return digest("request", self.settings()).hex()

    def without_subject(self) -> "Request":
        """Return the request with its hash but without its subject, for a journal."""
        copy = object.__new__(Request)
        copy.__dict__.update(self.__dict__, subject=None, content_hash=self.content_hash)
        return copy


def imported_request(key: CallKey, messages: tuple[Message, ...] = ()) -> Request:
    """Make a request for an imported reply from the known messages."""
    return Request(key=key, model="imported", messages=messages, decoding=UNKNOWN_DECODING, seed=None)


@dataclass(frozen=True, slots=True)
class Reply:
    """The reply of a model. Its text may be empty."""

    text: str
    finish: str | None = None
    """The provider's reason for the end of the reply; None if unknown."""
    input_tokens: int | None = None
    output_tokens: int | None = None
    cost_usd: float | None = None
    not_sent: tuple[str, ...] = ()
    """Sampling parameters that the provider does not support."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "text", clean_text(self.text))
        if self.finish is not None:
            object.__setattr__(self, "finish", clean_text(self.finish))
        if not is_count(self.input_tokens):
            object.__setattr__(self, "input_tokens", None)
        if not is_count(self.output_tokens):
            object.__setattr__(self, "output_tokens", None)

    def with_cost(self, cost_usd: float) -> "Reply":
        """Return a copy of the reply with its cost."""
        return replace(self, cost_usd=cost_usd)


_CUT: Final = frozenset({"length", "max_tokens", "max_output_tokens", "model_length", "model_context_window_exceeded"})
"""The finish reasons, in lowercase, of replies that ended at a token limit."""


def was_cut(finish: str | None) -> bool | None:
    """Return whether a reply was truncated at a token limit; None if its finish reason is unknown.

    >>> was_cut("length"), was_cut("MAX_TOKENS"), was_cut("stop"), was_cut(None)
    (True, True, False, None)
    """
    return None if finish is None else finish.casefold() in _CUT


ProblemKind = Literal["fatal", "final", "failed", "passing", "waiting"]
"""The effect of a problem on its run.

- fatal: the model cannot be used, and the run stops.
- final: the problem is the student's result, such as a refusal. The call is never repeated.
- failed: the model cannot answer this request now. Only the next run repeats it.
- passing: the model may answer the request soon. This run repeats it.
- waiting: the request is in a batch, or was meant for one. Only the next run waits for it.
"""


@dataclass(frozen=True, slots=True)
class CallProblem:
    """The reason why a call has no reply."""

    kind: ProblemKind
    reason: str
    detail: str = ""
    retry_after: float | None = None
    """The wait that the provider requested, in seconds. Like the next fields, it is not stored."""
    is_free: bool = False
    """Whether the provider certainly does not bill this attempt."""
    tokens: tuple[int | None, int | None] = (None, None)
    """Input and output tokens as counted by the provider."""
    may_move: bool = False
    """Whether another server of the model can accept the call at once."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "reason", clean_text(self.reason))
        object.__setattr__(self, "detail", clean_text(self.detail))


Outcome = Reply | CallProblem
Origin = Literal["call", "imported", "imported-text"]
"""The origin of a call: made by skillmix, an imported reply, or an imported text without a reply around it."""


@dataclass(frozen=True, slots=True)
class Call:
    """A call as a journal stores it."""

    key: CallKey
    outcome: Outcome | None
    """The reply or problem; None while the call is in an unfinished batch."""
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
    """Limits on how skillmix may load and call a model."""

    in_process: bool = False
    """Whether the weights are loaded in this process, where only one such model is open at a time."""
    in_flight: int | None = None
    """The maximum number of simultaneous calls; None if unknown."""
    may_rest: bool = False
    """Whether calls may wait in a provider's batch for hours."""


class Model(Protocol):
    """The interface of models, which accept requests when they have capacity and yield outcomes when available."""

    @property
    def limits(self) -> Limits:
        """Return the limits of the model. Subclasses inherit defaults for all methods except `serve`."""
        return Limits()

    def serve(self, requests: AsyncIterator[Request]) -> AsyncIterator[tuple[Request, Outcome]]:
        """Yield each request with its outcome, in any order."""
        ...

    async def probe(self) -> CallProblem | None:
        """Check base URL, name and key without a paid call, and return the problem, if any.

        A model may also raise a `UserError` with a hint. Some commands, such as `grade-text`, do not probe.
        """
        return None

    async def close(self) -> None:
        """Release connections and memory."""
        return None


_LARGEST_COUNT: Final = 2**53


def is_count(value: object) -> TypeGuard[int]:
    """Return whether a value can be a number of tokens.

    >>> is_count(7), is_count(-7), is_count(True), is_count(2**70), is_count("7")
    (True, False, False, False, False)
    """
    return type(value) is int and 0 <= value <= _LARGEST_COUNT


def clean_text(text: str) -> str:
    """Replace lone surrogates, which cannot be written to a file."""
    return text if text.isascii() else text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def text_id(text: str) -> str:
    """Compute the short hash of a graded text."""
    return short_id("text", text)


def seed_for(experiment_seed: int, key: CallKey) -> int:
    """Derive the seed of one call."""
    return seed_of(experiment_seed, str(key))


def checked_name(name: str, what: str) -> str:
    """Return a name that can be part of a key, or raise an error."""
    if len(name) > LONGEST_NAME or not _NAME.fullmatch(name):
        hint = f"Use lowercase letters, digits, '.', '_' and '-', at most {LONGEST_NAME} in all."
        raise UserError(f"{shortened(name)!r} is not a valid name for a {what}.", hint=hint)
    return name


HUMAN: Final = "human:"
"""The prefix of graders who are people, which no name in an experiment file or import can have."""
PEOPLE: Final = "people"
"""The grader name that stands for the majority vote of all people who rated a text."""
_LONGEST_RATER: Final = 60


def human_grader(rater: str) -> str:
    """Return the grader name under which a journal stores a person's votes.

    >>> human_grader("ann")
    'human:ann'
    """
    if len(rater) > _LONGEST_RATER:
        hint = f"Use at most {_LONGEST_RATER} characters."
        raise UserError(f"The name {rater[:20]!r}… is too long for a rater.", hint=hint)
    name = checked_name(rater, "rater")
    if not (name[0].isalnum() and name[-1].isalnum()):
        raise UserError(f"{name!r} is not a valid name for a rater.", hint="Begin and end it with a letter or a digit.")
    return HUMAN + name


def is_human(grader: str) -> bool:
    """Return whether a grader is a person.

    >>> is_human("human:ann"), is_human("judge")
    (True, False)
    """
    return grader.startswith(HUMAN)


def as_name(label: str) -> str:
    """Convert a label of another program to a valid name.

    >>> as_name("meta-llama/Llama-2 7B")
    'meta-llama-llama-2-7b'
    """
    return re.sub(r"[^a-z0-9._-]+", "-", label.casefold()).strip("-") or "unnamed"
