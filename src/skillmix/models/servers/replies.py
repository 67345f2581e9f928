"""The border: a body of bytes becomes a reply that fits its schema as a whole, or a fault with its reason."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Final, NamedTuple, TypeVar

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from skillmix.calls import CallProblem, is_count
from skillmix.models.servers.masking import MASK

_LONGEST_FINISH: Final = 60
_LETTERS_A_TOKEN: Final = 100
_LETTERS_TO_SPARE: Final = 10_000
_FILTERED: Final = ("content_filter", "sensitive", "safety")
_BROKEN_OFF: Final = (
    "abort",
    "aborted",
    "cancelled",
    "error",
    "insufficient_system_resource",
    "network_error",
    "timeout",
)
"""Finish reasons that mean: the server failed, and what it sent is not what the model would have written."""


class _Part(BaseModel):
    """What a schema needs; the many other fields of a reply are left alone."""

    model_config = ConfigDict(extra="ignore", frozen=True)


class _TextPart(_Part):
    type: str | None = None
    text: str | None = None


# One fault is enough: a hostile list has a million of them.
_Parts = Annotated[list[_TextPart], Field(fail_fast=True, max_length=10_000)]


class _ChatMessage(_Part):
    content: str | _Parts | None = None
    refusal: str | None = None


class _Choice(_Part):
    message: _ChatMessage
    finish_reason: str | None = None


class _ChatCompletion(_Part):
    choices: Annotated[list[_Choice], Field(fail_fast=True, max_length=100)] | None = None
    error: object = None
    usage: object = None


class _AnthropicMessage(_Part):
    content: _Parts | None = None
    stop_reason: str | None = None
    error: object = None
    usage: object = None


class _ListedModel(_Part):
    id: str


class _ModelList(_Part):
    data: Annotated[list[_ListedModel], Field(fail_fast=True, max_length=20_000)]


_CHAT: Final = TypeAdapter(_ChatCompletion)
_ANTHROPIC: Final = TypeAdapter(_AnthropicMessage)
_LIST: Final = TypeAdapter(_ModelList)

_T = TypeVar("_T")
Tokens = tuple[int | None, int | None]


@dataclass(frozen=True, slots=True)
class ServerAnswer:
    """A reply that fits its schema; its words are clean, and hold no key."""

    text: str
    finish: str | None
    tokens: Tokens


def chat_answer(raw: bytes, *, most_tokens: int | None = None) -> ServerAnswer | CallProblem:
    """The reply of an OpenAI-compatible endpoint to a request for so many tokens."""
    document = _checked(raw, _CHAT.validate_python)
    if isinstance(document, CallProblem):
        return document
    if not document.choices:
        return _nothing("no choices", document.error)
    choice = document.choices[0]
    tokens = _tokens(document.usage, "prompt_tokens", "completion_tokens")
    if choice.message.refusal:
        return CallProblem("final", "refusal", MASK.line(choice.message.refusal), tokens=tokens)
    content = choice.message.content
    if isinstance(content, list):
        content = _joined(content)
    return _answered(_Said(content, choice.finish_reason, tokens), most_tokens)


def anthropic_answer(raw: bytes, *, most_tokens: int | None = None) -> ServerAnswer | CallProblem:
    """The reply of Anthropic's messages endpoint to a request for so many tokens."""
    document = _checked(raw, _ANTHROPIC.validate_python)
    if isinstance(document, CallProblem):
        return document
    if document.content is None:
        return _nothing("no content", document.error)
    tokens = _tokens(document.usage, "input_tokens", "output_tokens")
    if document.stop_reason == "refusal":
        return CallProblem("final", "refusal", tokens=tokens)
    text = _joined(document.content) if document.content else None
    return _answered(_Said(text, document.stop_reason, tokens), most_tokens)


def listed_models(raw: bytes) -> list[str]:
    """The names in a list of models; none if it is not such a list."""
    document = _checked(raw, _LIST.validate_python)
    return [] if isinstance(document, CallProblem) else [model.id for model in document.data]


def error_message(raw: bytes) -> str:
    """The message in an error body of whatever shape, with its code and parameter; not yet fit to be shown."""
    text = raw.decode("utf-8", "replace")
    document = _json(raw)
    if isinstance(document, CallProblem):
        return text
    error = document.get("error", document.get("message", document.get("detail")))
    return _words_of(error) or text


class _Said(NamedTuple):
    text: str | None
    finish: str | None
    tokens: Tokens


def _answered(said: _Said, most_tokens: int | None) -> ServerAnswer | CallProblem:
    reason = (said.finish or "").lower()
    if reason in _FILTERED:
        return CallProblem("final", "content filter", tokens=said.tokens)
    if reason in _BROKEN_OFF:
        return CallProblem("passing", "broken off by the server", MASK.line(f"finish reason {reason}"))
    if said.text is None and said.finish is None:
        return CallProblem("passing", "no content", "neither a text nor a finish reason is in the reply")
    text = said.text or ""
    if most_tokens is not None and len(text) > _LETTERS_A_TOKEN * most_tokens + _LETTERS_TO_SPARE:
        return CallProblem("passing", "reply too long", f"{len(text)} characters for at most {most_tokens} tokens")
    finish = None if said.finish is None else MASK.line(said.finish, longest=_LONGEST_FINISH)
    return ServerAnswer(MASK.reply(text), finish, said.tokens)


def _joined(parts: list[_TextPart]) -> str:
    return "".join(part.text or "" for part in parts if part.type == "text")


def _nothing(reason: str, error: object) -> CallProblem:
    return CallProblem("passing", "error in a reply" if error else reason, MASK.line(_words_of(error)))


def _words_of(error: object) -> str:
    """What an error says, as far as it says it in the usual fields."""
    if isinstance(error, dict):
        told = (error.get(key) for key in ("message", "code", "type", "param"))
        return " ".join(str(words) for words in told if isinstance(words, str | int) and words)
    return error if isinstance(error, str) else ""


def _checked(raw: bytes, validate: Callable[[object], _T]) -> _T | CallProblem:
    document = _json(raw)
    if isinstance(document, CallProblem):
        return document
    try:
        return validate(document)
    except ValidationError as error:
        fault = error.errors(include_url=False, include_context=False, include_input=False)[0]
        place = ".".join(map(str, fault["loc"]))
        return CallProblem("passing", "unexpected reply", MASK.line(f"{place}: {fault['msg']}"))


def _json(raw: bytes) -> dict[str, object] | CallProblem:
    try:
        document = json.loads(raw)
    except RecursionError:
        return CallProblem("passing", "invalid JSON", "it is nested too deeply")
    except ValueError:
        return CallProblem("passing", "invalid JSON", MASK.line(raw[:100_000].decode("utf-8", "replace")))
    return document if isinstance(document, dict) else CallProblem("passing", "invalid JSON", "it is not an object")


def _tokens(usage: object, *names: str) -> Tokens:
    """What a server counted; what cannot be a count is unknown."""
    counts = [usage.get(name) if isinstance(usage, dict) else None for name in names]
    first, second = (count if is_count(count) else None for count in counts)
    return first, second
