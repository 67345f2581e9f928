"""Batches whose requests are part of the call that creates them: Anthropic's message batches.

They have no metadata, so a batch is found again by the tag in the ids of its results.
"""

import time
from collections.abc import Mapping
from typing import Final
from urllib.parse import quote

from skillmix.calls import CallProblem, Request
from skillmix.models.batches.batch_client import (
    CLOCKS_DIFFER,
    MOST_PAGES,
    PAGE,
    LineServer,
    Sought,
    compact,
    has_more,
    longest_results,
    problem_of,
    unreadable,
)
from skillmix.models.batches.batch_records import (
    BatchView,
    LineResult,
    ResultsRead,
    SearchEnd,
    document_of,
    identifier,
    items,
    moment,
    number,
    section,
    word,
)
from skillmix.models.batches.custom_ids import tag_in
from skillmix.models.batches.dialects import BatchDialect
from skillmix.models.servers.http import fatal_in_probe

_PATH: Final = "/messages/batches"
_COUNTS: Final = ("processing", "succeeded", "errored", "canceled", "expired")
_STATUSES: Final = {
    "invalid_request_error": 400,
    "authentication_error": 401,
    "billing_error": 402,
    "permission_error": 403,
    "not_found_error": 404,
    "request_too_large": 413,
    "rate_limit_error": 429,
    "api_error": 500,
    "timeout_error": 504,
    "overloaded_error": 529,
}
"""The HTTP status that a call outside a batch has with each type of error."""
_NOT_OURS: Final = ("HTTP 403", "HTTP 404")
_LATEST_RESULTS: Final = 26 * 3600.0
"""Seconds from the creation of a batch, which ends after 24 hours at the latest."""


class InlineBatches:
    """Sends requests with the call that creates the batch, and reads one file of results."""

    def __init__(self, dialect: BatchDialect, server: LineServer) -> None:
        self.dialect = dialect
        self.server = server

    def line(self, custom_id: str, request: Request) -> bytes:
        """A request as part of the batch."""
        return compact({"custom_id": custom_id, "params": self.server.body(request)})

    async def upload(self, tag: str, lines: list[bytes]) -> str | CallProblem | None:
        """Do nothing: there is no file."""
        return None

    async def is_ready(self, file: str) -> bool | CallProblem:
        """There is no file to wait for."""
        return True

    async def create(self, tag: str, file: str | None, lines: list[bytes]) -> BatchView | CallProblem:
        """Create the batch."""
        raw = await self.server.endpoint.make(_PATH, b'{"requests":[' + b",".join(lines) + b"]}")
        if not isinstance(raw, bytes):
            return problem_of(raw)
        return self._view(document_of(raw) or {}) or unreadable("the new batch")

    async def find(self, sought: Sought, known: frozenset[str]) -> BatchView | SearchEnd | CallProblem:
        """Look for the tag in the results of every batch that is as large and not older.

        A batch shows its ids only when it has ended, so one that is under way leaves the question open.
        """
        listed = await self._listed(sought.since - CLOCKS_DIFFER)
        if isinstance(listed, CallProblem):
            return listed
        is_open = False
        for view in listed:
            if view.id in known or view.total != sought.requests:
                continue
            if view.state == "under way":
                is_open = True
                continue
            read = await self.results(view, sought.requests)
            if isinstance(read, CallProblem):
                if read.reason not in _NOT_OURS:
                    return read
                continue
            if any(tag_in(line.custom_id) == sought.tag for line in read.lines):
                return view
            is_open = is_open or (not read.lines and _may_have_late_results(view))
        return SearchEnd.UNDECIDED if is_open else SearchEnd.ABSENT

    async def view(self, batch: str) -> BatchView | CallProblem:
        """Look at a batch by its id."""
        raw = await self.server.endpoint.get(f"{_PATH}/{quote(batch, safe='')}")
        if not isinstance(raw, bytes):
            return problem_of(raw)
        view = self._view(document_of(raw) or {})
        return view if view is not None and view.id == batch else unreadable("the batch")

    async def results(self, view: BatchView, calls: int) -> ResultsRead | CallProblem:
        """Read the results; the address is made from the id, since the key must not follow an address of a reply."""
        path = f"{_PATH}/{quote(view.id, safe='')}/results"
        raw = await self.server.endpoint.get(path, max_bytes=longest_results(calls))
        if not isinstance(raw, bytes):
            return problem_of(raw)
        found = [_line_of(line) for line in raw.split(b"\n") if line.strip()]
        return ResultsRead(tuple(line for line in found if line is not None), found.count(None))

    async def tidy(self, sought: Sought) -> None:
        """Do nothing: there is no file."""

    async def probe(self) -> CallProblem | None:
        """Ask for the list of batches."""
        raw = await self.server.endpoint.get(f"{_PATH}?limit=1")
        return None if isinstance(raw, bytes) else fatal_in_probe(problem_of(raw))

    async def _listed(self, since: float) -> list[BatchView] | CallProblem:
        """The batches that are not older, from a list in pages, the newest first."""
        found: list[BatchView] = []
        after = ""
        for _ in range(MOST_PAGES):
            page = f"?limit={PAGE}&after_id={quote(after, safe='')}" if after else f"?limit={PAGE}"
            raw = await self.server.endpoint.get(f"{_PATH}{page}")
            document = document_of(raw) if isinstance(raw, bytes) else None
            if document is None or not isinstance(document.get("data"), list):
                return unreadable("the list of batches") if isinstance(raw, bytes) else problem_of(raw)
            views = [view for item in items(document, "data") if (view := self._view(item)) is not None]
            young = [view for view in views if view.created is None or view.created >= since]
            found += young
            following = word(document, "last_id")
            if not has_more(document, len(views)) or (views and not young):
                return found
            if not following or following == after:
                return unreadable("the next page of the list of batches")
            after = following
        return CallProblem("passing", "too many batches", "the list of batches does not end")

    def _view(self, document: Mapping[str, object]) -> BatchView | None:
        found = identifier(document, "id")
        if found is None:
            return None
        counts = section(document, "request_counts")
        known = [count for name in _COUNTS if (count := number(counts, name)) is not None]
        status = word(document, "processing_status")
        return BatchView(
            id=found,
            state=self.dialect.state(status),
            word=status,
            total=sum(known) if known else None,
            answered=number(counts, "succeeded"),
            results=(found,),
            created=moment(document.get("created_at")),
        )


def _may_have_late_results(view: BatchView) -> bool:
    """Whether a batch without results ended so lately that they may still come."""
    return view.created is None or time.time() - view.created < _LATEST_RESULTS


def _line_of(raw: bytes) -> LineResult | None:
    document = document_of(raw)
    custom = word(document, "custom_id") if document is not None else ""
    if document is None or not custom:
        return None
    result = section(document, "result")
    kind = word(result, "type").casefold()
    if kind == "succeeded" and result.get("message") is not None:
        return LineResult(custom, "answer", 200, compact(result["message"]))
    if kind in ("canceled", "cancelled", "expired"):
        return LineResult(custom, "not made")
    error = section(result, "error")
    own = section(error, "error") or error
    if kind == "errored" and own:
        return LineResult(custom, "refusal", _STATUSES.get(word(own, "type"), 500), compact({"error": own}))
    return LineResult(custom, "nothing")
