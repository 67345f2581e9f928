"""What all providers of batches can do, and how the result of a line becomes the outcome of its call."""

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Final, Protocol

from skillmix.calls import CallProblem, Outcome, Request
from skillmix.models.batches.batch_records import BatchView, LineResult, ResultsRead, SearchEnd
from skillmix.models.batches.dialects import BatchDialect
from skillmix.models.servers.http import Endpoint, Refused

FOUND_BY: Final = "skillmix"
"""The name under which the metadata of a batch hold its tag."""
MOST_PAGES: Final = 1000
PAGE: Final = 100
"""Batches on a page of a list."""
_LONGEST_LINE: Final = 2**18
_LONGEST_FILE: Final = 2**31
CLOCKS_DIFFER: Final = 48 * 3600.0
"""Seconds by which the clock of a provider may be behind ours."""


def longest_results(calls: int) -> int:
    """The most bytes of the results of so many calls."""
    return min(_LONGEST_LINE * (calls + 16), _LONGEST_FILE)


def has_more(document: Mapping[str, object], listed: int) -> bool:
    """Whether a list goes on after this page; a provider that does not say so goes on after a full page."""
    said = document.get("has_more")
    return said if isinstance(said, bool) else listed >= PAGE


class LineServer(Protocol):
    """A model whose requests and replies can travel in a batch."""

    @property
    def address(self) -> str:
        """The server."""
        ...

    @property
    def endpoint(self) -> Endpoint:
        """The connections to the server."""
        ...

    def body(self, request: Request) -> dict[str, object]:
        """The body of a request."""
        ...

    def outcome(self, request: Request, raw: bytes) -> Outcome:
        """Read the reply to a request."""
        ...

    def refusal(self, request: Request, status: int, raw: bytes) -> CallProblem:
        """The problem of one call in a batch."""
        ...

    async def close(self) -> None:
        """Close the connections."""
        ...


class Sought(Protocol):
    """A batch whose id nobody knows."""

    @property
    def tag(self) -> str:
        """The tag of the batch."""
        ...

    @property
    def file(self) -> str | None:
        """The uploaded file, if its id is known."""
        ...

    @property
    def requests(self) -> int:
        """The calls of the batch."""
        ...

    @property
    def since(self) -> float:
        """The batch is not older, in seconds since 1970."""
        ...


class BatchClient(Protocol):
    """One provider's batches, for one model."""

    @property
    def dialect(self) -> BatchDialect:
        """The form of the batches."""
        ...

    @property
    def server(self) -> LineServer:
        """The model, and the server that it is on."""
        ...

    def line(self, custom_id: str, request: Request) -> bytes:
        """A request as part of a batch."""
        ...

    async def upload(self, tag: str, lines: list[bytes]) -> str | CallProblem | None:
        """Upload the requests; the id of the file, or None if this provider needs no file."""
        ...

    async def is_ready(self, file: str) -> bool | CallProblem:
        """Whether an uploaded file can be used."""
        ...

    async def create(self, tag: str, file: str | None, lines: list[bytes]) -> BatchView | CallProblem:
        """Create the batch, with one request that is never repeated here."""
        ...

    async def find(self, sought: Sought, known: frozenset[str]) -> BatchView | SearchEnd | CallProblem:
        """Look for a batch by its tag among the provider's batches; `known` are ids of other batches of ours."""
        ...

    async def view(self, batch: str) -> BatchView | CallProblem:
        """Look at a batch by its id."""
        ...

    async def results(self, view: BatchView, calls: int) -> ResultsRead | CallProblem:
        """Read the results of a batch that has ended."""
        ...

    async def tidy(self, sought: Sought) -> None:
        """Delete the file of a batch that was never created, if it can be found; a failure changes nothing."""
        ...

    async def probe(self) -> CallProblem | None:
        """Check that the server has batches and takes the key; None if there is no problem."""
        ...


def line_outcome(server: LineServer, request: Request, line: LineResult) -> Outcome:
    """The outcome of a call whose result has come back; providers bill only calls with a reply."""
    if line.kind == "answer":
        return server.outcome(request, line.raw)
    if line.kind == "refusal":
        return replace(server.refusal(request, line.status, line.raw), is_free=True)
    if line.kind == "not made":
        return CallProblem("passing", "its batch ended before it was made", is_free=True)
    return CallProblem("passing", "no response in its batch")


def problem_of(result: CallProblem | Refused) -> CallProblem:
    """The problem of a request about a batch."""
    return result.problem if isinstance(result, Refused) else result


def unreadable(what: str) -> CallProblem:
    """The problem of a reply that is not what it should be."""
    return CallProblem("passing", "unexpected reply", f"{what} cannot be read")


def compact(document: object) -> bytes:
    """A JSON text on one line."""
    return json.dumps(document, ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode()
