"""Check the bodies of untrusted replies against schemas: each becomes an answer or a problem with its reason."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Final, TypeVar

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from skillmix.calls import CallProblem, Reply, is_count
from skillmix.grading.answers import OPENING
from skillmix.models.servers.masking import MASK

_MAX_FINISH: Final = 60
_CHARACTERS_PER_TOKEN: Final = 100
_EXTRA_CHARACTERS: Final = 10_000
_FILTERED: Final = ("content_filter", "sensitive", "safety")
_ABORTED: Final = (
    "abort",
    "aborted",
    "cancelled",
    "error",
    "insufficient_system_resource",
    "network_error",
    "timeout",
)
"""Finish reasons of a server that failed before the model had finished its text."""


class _Part(BaseModel):
    """A part of a reply; fields that the schema does not name are ignored."""

    model_config = ConfigDict(extra="ignore", frozen=True)


class _TextPart(_Part):
    type: str | None = None
    text: str | None = None
    thinking: str | None = None


# Stop at the first fault: a hostile list may have a million of them.
_Parts = Annotated[list[_TextPart], Field(fail_fast=True, max_length=10_000)]


class _ChatMessage(_Part):
    content: str | _Parts | None = None
    refusal: str | None = None
    reasoning: object = None
    reasoning_content: object = None


class _Choice(_Part):
    message: _ChatMessage
    finish_reason: str | None = None


class _ChatCompletion(_Part):
    choices: Annotated[list[_Choice], Field(fail_fast=True, max_length=100)] | None = None
    error: object = None
    usage: object = None
    model: object = None


class _AnthropicMessage(_Part):
    content: _Parts | None = None
    stop_reason: str | None = None
    error: object = None
    usage: object = None
    model: object = None


class _ListedModel(_Part):
    id: str
    root: object = None
    max_model_len: object = None


class _ModelList(_Part):
    data: Annotated[list[_ListedModel], Field(fail_fast=True, max_length=20_000)]


_CHAT: Final = TypeAdapter(_ChatCompletion)
_ANTHROPIC: Final = TypeAdapter(_AnthropicMessage)
_LIST: Final = TypeAdapter(_ModelList)

_T = TypeVar("_T")
Tokens = tuple[int | None, int | None]


@dataclass(frozen=True, slots=True)
class ServerAnswer:
    """A reply that fits its schema."""

    text: str
    finish: str | None
    tokens: Tokens
    model: object = None
    """The model that made it, as the server names it."""

    def reply(self, *, not_sent: tuple[str, ...]) -> Reply:
        """The reply to a request, without the parameters that the server does not take."""
        return Reply(self.text, self.finish, self.tokens[0], self.tokens[1], not_sent=not_sent)


def chat_answer(raw: bytes, *, max_tokens: int | None = None) -> ServerAnswer | CallProblem:
    """Read the reply of an OpenAI-compatible endpoint to a request for at most `max_tokens`."""
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
    thought = choice.message.reasoning_content or choice.message.reasoning
    if not content and thought and isinstance(thought, str):
        content = OPENING + thought
    answer = ServerAnswer(content or "", choice.finish_reason, tokens, document.model)
    return _checked_answer(answer, max_tokens, has_text=content is not None)


def anthropic_answer(raw: bytes, *, max_tokens: int | None = None) -> ServerAnswer | CallProblem:
    """Read the reply of Anthropic's messages endpoint to a request for at most `max_tokens`."""
    document = _checked(raw, _ANTHROPIC.validate_python)
    if isinstance(document, CallProblem):
        return document
    if document.content is None:
        return _nothing("no content", document.error)
    tokens = _tokens(document.usage, "input_tokens", "output_tokens")
    if document.stop_reason == "refusal":
        return CallProblem("final", "refusal", tokens=tokens)
    text = _joined(document.content) if document.content else None
    thought = "".join(part.thinking or "" for part in document.content)
    text = text or (OPENING + thought if thought else text)
    answer = ServerAnswer(text or "", document.stop_reason, tokens, document.model)
    return _checked_answer(answer, max_tokens, has_text=text is not None)


class NamesInReplies:
    """Says once if the replies of a server name another model than the one that was requested."""

    def __init__(self, requested: str, address: str, say: Callable[[str], None]) -> None:
        self._requested = requested
        self._address = address
        self._say = say
        self._known: object = None
        self._has_said = False

    def check(self, replied: object) -> None:
        """Compare the name in a reply; a dated version of the model, or its name without a folder, is the same."""
        if replied == self._known or self._has_said or not isinstance(replied, str) or not replied:
            return
        self._known = replied
        requested = self._requested.casefold().rsplit("/", 1)[-1].removesuffix("latest").rstrip(":-")
        name = replied.casefold().rsplit("/", 1)[-1]
        if requested in name or name in requested:
            return
        self._has_said = True
        shown = MASK.line(replied, longest=80)
        self._say(f"{self._address} replies as the model {shown!r}, and {self._requested!r} was requested")


@dataclass(frozen=True, slots=True)
class ListedModel:
    """A model in a server's list, with what the server says of it."""

    name: str
    weights: str | None = None
    """The last part of the path or name of its weights; None if the server does not say."""
    context: int | None = None
    """The most tokens of a prompt and its reply; None if the server does not say."""


def listed_models(raw: bytes) -> list[ListedModel]:
    """The models in a list of models; an empty list if the body is not such a list."""
    document = _checked(raw, _LIST.validate_python)
    if isinstance(document, CallProblem):
        return []
    found = []
    for model in document.data:
        # Machines may keep the same weights in different folders, so only the last part of a path tells them apart.
        weights = (model.root.rstrip("/").rsplit("/", 1)[-1] or None) if isinstance(model.root, str) else None
        context = model.max_model_len
        found.append(
            ListedModel(model.id, weights, context if isinstance(context, int) and is_count(context) else None)
        )
    return found


def error_message(raw: bytes) -> str:
    """The message of an error body of any shape, with its code and parameter; it may still contain keys."""
    text = raw.decode("utf-8", "replace")
    document = _json(raw)
    if isinstance(document, CallProblem):
        return text
    error = document.get("error", document.get("message", document.get("detail")))
    return _error_text(error) or text


def _checked_answer(answer: ServerAnswer, max_tokens: int | None, *, has_text: bool) -> ServerAnswer | CallProblem:
    """The answer with its keys hidden, or the problem that its reason to stop or its length is."""
    reason = (answer.finish or "").lower()
    if reason in _FILTERED:
        return CallProblem("final", "content filter", tokens=answer.tokens)
    if reason in _ABORTED:
        return CallProblem("passing", "broken off by the server", MASK.line(f"finish reason {reason}"))
    if not has_text and answer.finish is None:
        return CallProblem("passing", "no content", "the reply has neither a text nor a finish reason")
    text = answer.text
    if max_tokens is not None and len(text) > _CHARACTERS_PER_TOKEN * max_tokens + _EXTRA_CHARACTERS:
        return CallProblem("passing", "reply too long", f"{len(text)} characters for at most {max_tokens} tokens")
    finish = None if answer.finish is None else MASK.line(answer.finish, longest=_MAX_FINISH)
    return ServerAnswer(MASK.reply(text), finish, answer.tokens, answer.model)


def _joined(parts: list[_TextPart]) -> str:
    return "".join(part.text or "" for part in parts if part.type == "text")


def _nothing(reason: str, error: object) -> CallProblem:
    return CallProblem("passing", "error in a reply" if error else reason, MASK.line(_error_text(error)))


def _error_text(error: object) -> str:
    """The usual fields of an error, joined."""
    if isinstance(error, dict):
        fields = (error.get(key) for key in ("message", "code", "type", "param"))
        return " ".join(str(field) for field in fields if isinstance(field, str | int) and field)
    return error if isinstance(error, str) else ""


def _checked(raw: bytes, validate: Callable[[object], _T]) -> _T | CallProblem:
    document = _json(raw)
    if isinstance(document, CallProblem):
        return document
    try:
        return validate(document)
    except ValidationError as error:
        fault = error.errors(include_url=False, include_context=False, include_input=False)[0]
        location = ".".join(map(str, fault["loc"]))
        return CallProblem("passing", "unexpected reply", MASK.line(f"{location}: {fault['msg']}"))


def _json(raw: bytes) -> dict[str, object] | CallProblem:
    try:
        document = json.loads(raw)
    except RecursionError:
        return CallProblem("passing", "invalid JSON", "it is nested too deeply")
    except ValueError:
        return CallProblem("passing", "invalid JSON", MASK.line(raw[:100_000].decode("utf-8", "replace")))
    return document if isinstance(document, dict) else CallProblem("passing", "invalid JSON", "it is not an object")


def _tokens(usage: object, *names: str) -> Tokens:
    """Token counts of a server; a value that cannot be a count is unknown."""
    counts = [usage.get(name) if isinstance(usage, dict) else None for name in names]
    first, second = (count if is_count(count) else None for count in counts)
    return first, second
