"""Clients for two kinds of batch API; nothing that a provider sends is trusted.

`BatchClient` uploads requests as a file, for OpenAI, compatible servers and Azure. `InlineBatches` sends requests in
the call that creates the batch, for Anthropic, whose batches have no metadata, so the ids of results contain the tag.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Final, Literal, NamedTuple
from urllib.parse import quote

from skillmix.calls import CallProblem, Outcome, Request, is_count
from skillmix.models.servers.http import fatal_in_probe
from skillmix.models.servers.keys import servers_of
from skillmix.models.servers.masking import MASK
from skillmix.models.servers.protocols import AnthropicServer, ChatServer, OpenAIServer
from skillmix.models.specs import BatchDialect, BatchState, ModelOptions, ModelSpec

_FOUND_BY: Final = "skillmix"  # the key of the tag in a batch's metadata
_PAGE: Final = 100  # batches per page of a list
_LONGEST_LINE: Final = 2**18
_LONGEST_FILE: Final = 2**31
_CLOCKS_DIFFER: Final = 48 * 3600.0  # seconds by which a provider's clock may be behind ours
_ID: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:-]{0,199}")
_NO_SUCH_PATH: Final = ("HTTP 404", "HTTP 405", "HTTP 501")
_NOT_OURS: Final = ("HTTP 403", "HTTP 404")
_NOT_MADE: Final = ("batch_expired", "batch_cancelled", "batch_canceled", "request_cancelled", "request_canceled")
"""Error codes of lines whose calls were not made."""
_COUNTS: Final = ("processing", "succeeded", "errored", "canceled", "expired")


class Sought(NamedTuple):
    """A batch whose id is unknown; it was created at or after `since`, in seconds since 1970."""

    tag: str
    file: str | None  # the uploaded file, if its id is known
    requests: int
    since: float


class BatchFault(NamedTuple):
    """A reason why a provider rejected a batch, and the line of the file, if known, counted from 1."""

    code: str
    message: str
    line: int | None = None


@dataclass(frozen=True, slots=True)
class BatchView:
    """A batch as described by its provider."""

    id: str
    state: BatchState
    word: str  # the provider's word for the state
    tag: str | None = None
    file: str | None = None  # the uploaded file with the requests
    total: int | None = None
    answered: int | None = None  # the number of calls that have a reply
    results: tuple[str, ...] = ()  # the paths of the files with results
    faults: tuple[BatchFault, ...] = ()
    created: float | None = None  # the time of creation in seconds since 1970, by the provider's clock


LineKind = Literal["answer", "refusal", "not made", "nothing"]
_KINDS: Final[tuple[LineKind, ...]] = ("answer", "refusal", "not made", "nothing")


@dataclass(frozen=True, slots=True)
class LineResult:
    """The result of one call in a batch."""

    custom_id: str
    kind: LineKind
    status: int = 200  # the HTTP status of an error
    raw: bytes = b""  # the body of an answer or of an error

    def beats(self, other: "LineResult | None") -> bool:
        """Return whether this result takes precedence over another one for the same call, in any order of arrival."""
        mine, others = ((_KINDS.index(one.kind), one.status, one.raw) if one else None for one in (self, other))
        return mine is not None and (others is None or mine < others)


class BatchClient:
    """One provider's batches for one model: requests are uploaded, and results downloaded, as JSON Lines files."""

    after = "after"  # the parameter that requests the next page of a list

    def __init__(self, dialect: BatchDialect, server: ChatServer) -> None:
        self.dialect = dialect
        self.server = server

    def line(self, custom_id: str, request: Request) -> bytes:
        """Serialize a request as a line of the uploaded file."""
        call = {"custom_id": custom_id, "method": "POST", "url": self.dialect.endpoint}
        return _compact({**call, "body": self.server.body(request)})

    async def upload(self, tag: str, lines: list[bytes]) -> str | CallProblem | None:
        """Upload the requests under a name with the tag; return the file's id, or None if no file is needed."""
        content = b"\n".join([*lines, b""])
        raw = await self.server.endpoint.upload("/files", f"skillmix-{tag}.jsonl", content, purpose="batch")
        if not isinstance(raw, bytes):
            return self.with_hint(raw)
        return identifier(_document(raw) or {}, "id") or _unreadable("the id of the uploaded file")

    async def is_ready(self, file: str) -> bool:
        """Return whether the provider has finished processing an uploaded file."""
        if not self.dialect.unready_files:
            return True
        raw = await self.server.endpoint.get(f"/files/{quote(file, safe='')}")
        if not isinstance(raw, bytes):
            return raw.reason in _NO_SUCH_PATH
        return _word(_document(raw) or {}, "status").casefold() not in self.dialect.unready_files

    def creation(self, tag: str, file: str | None, lines: list[bytes]) -> bytes:
        """Return the body of the call that creates a batch, with the tag in the metadata."""
        body = {"input_file_id": file, "endpoint": self.dialect.endpoint, "completion_window": "24h"}
        return _compact({**body, "metadata": {_FOUND_BY: tag}})

    async def is_sought(self, view: BatchView, sought: Sought) -> bool | CallProblem:
        """Return whether a listed batch is the one sought, or a problem if that cannot be determined yet."""
        return view.tag == sought.tag or (view.file is not None and view.file == sought.file)

    async def tidy(self, sought: Sought) -> None:
        """Try to delete the file of a batch that was never created."""
        file = sought.file
        if file is None:
            raw = await self.server.endpoint.get("/files?purpose=batch")
            listed = _items(_document(raw) or {}, "data") if isinstance(raw, bytes) else []
            named = [item for item in listed if _word(item, "filename") == f"skillmix-{sought.tag}.jsonl"]
            file = identifier(named[0], "id") if named else None
        if file:
            await self.server.endpoint.change("DELETE", f"/files/{quote(file, safe='')}")

    def read_view(self, document: Mapping[str, object]) -> BatchView | None:
        """Parse a batch; return None if the document is not a batch."""
        found = identifier(document, "id")
        if found is None:
            return None
        status = _word(document, "status")
        faults = _items(document, "errors", "data")
        files = (identifier(document, "output_file_id"), identifier(document, "error_file_id"))
        return BatchView(
            id=found,
            state=self.dialect.state(status),
            word=status,
            tag=_word(document, "metadata", _FOUND_BY) or None,
            file=identifier(document, "input_file_id"),
            total=_number(document, "request_counts", "total"),
            answered=_number(document, "request_counts", "completed"),
            results=tuple(f"/files/{quote(file, safe='')}/content" for file in files if file),
            faults=tuple(BatchFault(_word(f, "code"), _word(f, "message"), _number(f, "line")) for f in faults),
            created=_moment(document.get("created_at")),
        )

    def read_result(self, custom_id: str, document: Mapping[str, object]) -> LineResult:
        """Parse the result in a line of a file with replies or errors."""
        response, error = document.get("response"), document.get("error")
        status = _number(response, "status_code")
        if isinstance(response, dict) and status is not None and "body" in response:
            return LineResult(custom_id, "answer" if status == 200 else "refusal", status, _compact(response["body"]))
        if error and isinstance(error, dict):
            is_made = _word(error, "code").casefold() not in _NOT_MADE
            return LineResult(custom_id, "refusal" if is_made else "not made", 500, _compact({"error": error}))
        return LineResult(custom_id, "nothing")

    def read_line(self, raw: bytes) -> LineResult | None:
        """Parse a line of a result file; return None if the line is not a result."""
        document = _document(raw) or {}
        custom_id = _word(document, "custom_id")
        return self.read_result(custom_id, document) if custom_id else None

    async def create(self, tag: str, file: str | None, lines: list[bytes]) -> BatchView | CallProblem:
        """Create the batch with a single HTTP call, and return the provider's description of it."""
        content = {"data": self.creation(tag, file, lines), "headers": {"Content-Type": "application/json"}}
        raw = await self.server.endpoint.change("POST", self.dialect.batches, **content)
        if not isinstance(raw, bytes):
            return raw
        return self.read_view(_document(raw) or {}) or _unreadable("the new batch")

    async def view(self, batch: str) -> BatchView | CallProblem:
        """Request the state of a batch by its id."""
        raw = await self.server.endpoint.get(f"{self.dialect.batches}/{quote(batch, safe='')}")
        if not isinstance(raw, bytes):
            return raw
        view = self.read_view(_document(raw) or {})
        return view if view is not None and view.id == batch else _unreadable("the batch")

    async def find(self, sought: Sought, known: frozenset[str]) -> BatchView | CallProblem | None:
        """Look for a batch in the provider's list; return None if it is absent, or a problem if that is unclear.

        `known` contains the ids of the run's other batches.
        """
        listed = await self._listed(sought.since - _CLOCKS_DIFFER)
        if isinstance(listed, CallProblem):
            return listed
        unsure: CallProblem | None = None
        for view in listed:
            if view.id in known:
                continue
            answer = await self.is_sought(view, sought)
            if isinstance(answer, CallProblem):
                unsure = answer
            elif answer:
                return view
        return unsure

    async def _listed(self, since: float) -> list[BatchView] | CallProblem:
        """Read the provider's paginated list, and return the batches created at or after `since`, newest first."""
        found: list[BatchView] = []
        query = f"limit={_PAGE}"
        last = ""
        for _ in range(1000):
            raw = await self.server.endpoint.get(f"{self.dialect.batches}?{query}")
            if not isinstance(raw, bytes):
                return raw
            document = _document(raw)
            if document is None or not isinstance(document.get("data"), list):
                return _unreadable("the list of batches")
            listed = _items(document, "data")
            views = [view for item in listed if (view := self.read_view(item)) is not None]
            young = [view for view in views if view.created is None or view.created >= since]
            found += young
            said = document.get("has_more")
            if not (said if isinstance(said, bool) else len(listed) >= _PAGE) or (views and not young):
                return found
            following = _word(document, "last_id") or (_word(listed[-1], "id") if listed else "")
            if following in ("", last):
                return _unreadable("the next page of the list of batches")
            last = following
            query = f"limit={_PAGE}&{self.after}={quote(following, safe='')}"
        return CallProblem("passing", "too many batches", "the list of batches does not end")

    async def results(self, view: BatchView, calls: int) -> tuple[list[LineResult], int] | CallProblem:
        """Download an ended batch's results; return them with the number of unreadable lines."""
        found: list[LineResult | None] = []
        for path in view.results:
            most = min(_LONGEST_LINE * (calls + 16), _LONGEST_FILE)
            raw = await self.server.endpoint.get(path, max_bytes=most)
            if isinstance(raw, bytes):
                found += [self.read_line(line) for line in raw.split(b"\n") if line.strip()]
            elif raw.reason == "reply too long":
                found.append(None)
            else:
                return raw
        return [line for line in found if line is not None], found.count(None)

    def outcome(self, request: Request, line: LineResult) -> Outcome:
        """Convert a call's result to its outcome; providers bill only calls with a reply."""
        if line.kind == "answer":
            return self.server.outcome(request, line.raw)
        if line.kind == "refusal":
            return replace(self.server.refusal(request, line.status, line.raw), is_free=True)
        if line.kind == "not made":
            return CallProblem("passing", "its batch ended before the call was made", is_free=True)
        return CallProblem("passing", "no response in its batch")

    async def probe(self) -> CallProblem | None:
        """Check that the server supports batches and accepts the key."""
        raw = await self.server.endpoint.get(f"{self.dialect.batches}?limit=1")
        return None if isinstance(raw, bytes) else fatal_in_probe(self.with_hint(raw))

    @staticmethod
    def with_hint(problem: CallProblem) -> CallProblem:
        """Return the problem; if it means that the server does not support batches, add an explanation."""
        if problem.reason not in _NO_SUCH_PATH:
            return problem
        detail = f"the server does not support batches; set batch: false for this model. {problem.detail}".strip()
        return CallProblem("fatal", problem.reason, detail, is_free=True)


class InlineBatches(BatchClient):
    """Batches whose requests are part of the call that creates them, with one result file."""

    after = "after_id"

    async def upload(self, tag: str, lines: list[bytes]) -> str | CallProblem | None:
        """Return None, because the call that creates the batch contains the requests."""
        return None

    async def tidy(self, sought: Sought) -> None:
        """Do nothing, because no file was uploaded."""

    def line(self, custom_id: str, request: Request) -> bytes:
        """Serialize a request as an entry of the batch."""
        return _compact({"custom_id": custom_id, "params": self.server.body(request)})

    def creation(self, tag: str, file: str | None, lines: list[bytes]) -> bytes:
        """Return the body of the call that creates a batch, with all its requests."""
        return b'{"requests":[' + b",".join(lines) + b"]}"

    async def is_sought(self, view: BatchView, sought: Sought) -> bool | CallProblem:
        """Return whether a batch's size and the tag in its results match, or a problem while it has no results."""
        if view.total not in (None, sought.requests):
            return False
        unsure = CallProblem("passing", "the results of a possibly matching batch are missing", view.id)
        if view.state == "in progress":
            return unsure
        read = await self.results(view, sought.requests)
        if isinstance(read, CallProblem):
            return False if read.reason in _NOT_OURS else read
        tags = {line.custom_id.partition("-")[0] for line in read[0]}
        return sought.tag in tags or (False if tags else unsure)

    def read_view(self, document: Mapping[str, object]) -> BatchView | None:
        """Parse a batch; derive the path of its results from its id, because no key may be sent to a URL in a reply."""
        found = identifier(document, "id")
        if found is None:
            return None
        known = [count for name in _COUNTS if (count := _number(document, "request_counts", name)) is not None]
        status = _word(document, "processing_status")
        return BatchView(
            id=found,
            state=self.dialect.state(status),
            word=status,
            total=sum(known) if known else None,
            answered=_number(document, "request_counts", "succeeded"),
            results=(f"{self.dialect.batches}/{quote(found, safe='')}/results",),
            created=_moment(document.get("created_at")),
        )

    def read_result(self, custom_id: str, document: Mapping[str, object]) -> LineResult:
        """Parse the result in a line of the result file."""
        kind = _word(document, "result", "type").casefold()
        message = _at(document, "result", "message")
        if kind == "succeeded" and message is not None:
            return LineResult(custom_id, "answer", 200, _compact(message))
        if kind in ("canceled", "cancelled", "expired"):
            return LineResult(custom_id, "not made")
        own = _at(document, "result", "error", "error") or _at(document, "result", "error")
        if kind == "errored" and own and isinstance(own, dict):
            status = self.dialect.statuses.get(_word(own, "type"), 500)
            return LineResult(custom_id, "refusal", status, _compact({"error": own}))
        return LineResult(custom_id, "nothing")


def open_batches(spec: ModelSpec, options: ModelOptions, dialect: BatchDialect) -> BatchClient:
    """Create a model's batch client, with the key that its ordinary calls use."""
    (place,) = servers_of(spec, options.access)
    if dialect.shape == "inline":
        return InlineBatches(dialect, AnthropicServer(place, spec, options))
    if not place.address.endswith("/v1"):  # Azure's older API: batches have a version, but no deployment in the path
        root = place.address.partition("/deployments/")[0]
        place = replace(place, address=root, query=place.query or dialect.query)
    return BatchClient(dialect, OpenAIServer(place, spec, options, key_header=dialect.key_header))


def shown(text: str) -> str:
    """Return a provider's text as one short line without keys, to show to the user."""
    return MASK.line(text, longest=60)


def identifier(document: Mapping[str, object], name: str) -> str | None:
    """Return the value of a field if it is an id that can be part of a path; otherwise None."""
    value = _word(document, name)
    return value if _ID.fullmatch(value) else None


def _unreadable(what: str) -> CallProblem:
    return CallProblem("passing", "unexpected reply", f"{what} cannot be read")


def _compact(document: object) -> bytes:
    return json.dumps(document, ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode()


def _document(raw: bytes) -> dict[str, object] | None:
    try:
        document = json.loads(raw)
    except (ValueError, RecursionError):
        return None
    return document if isinstance(document, dict) else None


def _at(document: object, *names: str) -> object:
    """Return the value at the end of a path of keys; None if there is no such value."""
    for name in names:
        document = document.get(name) if isinstance(document, dict) else None
    return document


def _items(document: object, *names: str) -> list[dict[str, object]]:
    value = _at(document, *names)
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []


def _word(document: object, *names: str) -> str:
    value = _at(document, *names)
    return value if isinstance(value, str) else ""


def _number(document: object, *names: str) -> int | None:
    value = _at(document, *names)
    return value if is_count(value) else None


def _moment(value: object) -> float | None:
    """Convert a time, given as a number or in RFC 3339, to seconds since 1970; None for anything else."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        return float(value)
    try:
        read = datetime.fromisoformat(value) if isinstance(value, str) else None
    except ValueError:
        return None
    if read is None:
        return None
    return (read if read.tzinfo else read.replace(tzinfo=UTC)).timestamp()
