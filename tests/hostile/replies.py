"""What a hostile server can send, as data; and the good replies of both protocols to start from."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal

Protocol = Literal["openai", "anthropic"]

SECRET: Final = "sk-live/9f8e7d6c5b4a+3f2e1d0cQWxz=="
"""The key of these tests; with letters that shapes of a key write otherwise."""
ANSWER: Final = "Answer: The needle, that patient fish, swims on.\n\nExplanation: it is one."


@dataclass(frozen=True)
class Web:
    """An ordinary response of HTTP."""

    status: int = 200
    body: bytes = b""
    headers: Mapping[str, str] = field(default_factory=dict)
    reason: str | None = None


@dataclass(frozen=True)
class Raw:
    """Bytes on the wire, whatever they are; then the connection is closed, or reset."""

    data: bytes
    is_reset: bool = False


@dataclass(frozen=True)
class Endless:
    """A body or a head that never ends."""

    head: bytes
    chunk: bytes


@dataclass(frozen=True)
class Slow:
    """A byte now and then, or none at all."""

    data: bytes = b""


Response = Web | Raw | Endless | Slow


def good(protocol: Protocol, text: object = ANSWER, **changes: Any) -> dict[str, Any]:
    """A good reply; `finish`, `usage`, `refusal` and any field of the document may be changed."""
    finish = changes.pop("finish", "stop" if protocol == "openai" else "end_turn")
    names = ("prompt_tokens", "completion_tokens") if protocol == "openai" else ("input_tokens", "output_tokens")
    usage = changes.pop("usage", (400, 60))
    document: dict[str, Any] = {"id": "x", "model": "m"}
    if usage is not None:
        document["usage"] = dict(zip(names, usage, strict=True)) if isinstance(usage, tuple) else usage
    if protocol == "openai":
        message = {"role": "assistant", "content": text} | changes.pop("message", {})
        document["choices"] = [{"index": 0, "message": message, "finish_reason": finish}]
    else:
        changes.pop("message", None)
        blocks = [{"type": "text", "text": text}] if isinstance(text, str) else text
        document |= {"type": "message", "role": "assistant", "content": blocks, "stop_reason": finish}
    return document | changes


def as_json(document: object, status: int = 200, **headers: str) -> Web:
    """A document as a response."""
    return Web(status, json.dumps(document).encode(), {"Content-Type": "application/json", **headers})


def error(status: int, message: object, **headers: str) -> Web:
    """A refusal in the usual form."""
    return as_json({"error": {"message": message, "type": "some_error"}}, status, **headers)


def grades(prompt: str) -> str:
    """Full marks for every criterion of a grader's prompt."""
    lines = [line[2:] for line in prompt.partition("The criteria")[2].splitlines() if line.startswith("- ")]
    rows = "".join(f"| {line} | 1 |\n" for line in lines)
    return f"Here's the grading table:\n\n| Criteria | Points Earned |\n|---|---|\n{rows}\nExplanation: so."
