"""What a provider says of a batch and of its calls, read from replies that are not trusted."""

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import Enum
from typing import Final, Literal

from skillmix.calls import is_count
from skillmix.models.batches.dialects import BatchState
from skillmix.models.servers.masking import MASK

_ID: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:-]{0,199}")


@dataclass(frozen=True, slots=True)
class BatchFault:
    """Why a provider refused a batch."""

    code: str
    message: str
    line: int | None = None
    """The line of the file, from 1; None if the provider names none."""


@dataclass(frozen=True, slots=True)
class BatchView:
    """A batch as its provider shows it."""

    id: str
    state: BatchState
    word: str
    """The state in the provider's word."""
    tag: str | None = None
    file: str | None = None
    """The uploaded file with the requests."""
    total: int | None = None
    answered: int | None = None
    """Calls that have a reply."""
    results: tuple[str, ...] = ()
    """Files with results."""
    faults: tuple[BatchFault, ...] = ()
    created: float | None = None
    """Seconds since 1970."""


class SearchEnd(Enum):
    """The end of a search for a batch that did not find it."""

    ABSENT = "absent"
    UNDECIDED = "undecided"
    """A batch that cannot be told apart yet may be the one."""


ResultKind = Literal["answer", "refusal", "not made", "nothing"]


@dataclass(frozen=True, slots=True)
class LineResult:
    """The result of one call of a batch."""

    custom_id: str
    kind: ResultKind
    status: int = 200
    """The HTTP status of a refusal."""
    raw: bytes = b""
    """The body of an answer or a refusal."""


@dataclass(frozen=True, slots=True)
class ResultsRead:
    """The lines of the results of a batch."""

    lines: tuple[LineResult, ...]
    unreadable: int = 0
    """Lines that are not results."""


def document_of(raw: bytes) -> dict[str, object] | None:
    """A JSON object; None if the text is none."""
    try:
        document = json.loads(raw)
    except (ValueError, RecursionError):
        return None
    return document if isinstance(document, dict) else None


def section(document: Mapping[str, object], name: str) -> dict[str, object]:
    """An object inside an object; empty if there is none."""
    value = document.get(name)
    return value if isinstance(value, dict) else {}


def items(document: Mapping[str, object], name: str) -> list[dict[str, object]]:
    """The objects of a list inside an object."""
    value = document.get(name)
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []


def word(document: Mapping[str, object], name: str) -> str:
    """A text inside an object; empty if there is none."""
    value = document.get(name)
    return value if isinstance(value, str) else ""


def identifier(document: Mapping[str, object], name: str) -> str | None:
    """An id that can be part of a path; None if there is none, or an empty one."""
    value = word(document, name)
    return value if _ID.fullmatch(value) else None


def number(document: Mapping[str, object], name: str) -> int | None:
    """A count inside an object; None if there is none."""
    value = document.get(name)
    return value if isinstance(value, int) and is_count(value) else None


def moment(value: object) -> float | None:
    """A time as seconds since 1970, from a number or an RFC 3339 text."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        return float(value)
    try:
        read = datetime.fromisoformat(value) if isinstance(value, str) else None
    except ValueError:
        return None
    if read is None:
        return None
    return (read if read.tzinfo else read.replace(tzinfo=UTC)).timestamp()


def shown(text: str) -> str:
    """A provider's word in a line for the user."""
    return MASK.line(text, longest=60)


def one_for_each(lines: Iterable[LineResult]) -> dict[str, LineResult]:
    """One result for each custom id: an answer before anything else, and otherwise whatever the order of the lines.

    >>> good, bad = LineResult("a", "answer", raw=b"1"), LineResult("a", "nothing")
    >>> one_for_each([bad, good]) == one_for_each([good, bad, good]) == {"a": good}
    True
    """
    chosen: dict[str, LineResult] = {}
    for line in lines:
        before = chosen.get(line.custom_id)
        if before is None or _rank(line) < _rank(before):
            chosen[line.custom_id] = line
    return chosen


_KINDS: Final = ("answer", "refusal", "not made", "nothing")


def _rank(line: LineResult) -> tuple[int, int, bytes]:
    return _KINDS.index(line.kind), line.status, line.raw
