"""Batches whose requests are uploaded as a file: OpenAI, servers that are compatible with it, and Azure."""

from collections.abc import Iterator, Mapping
from urllib.parse import quote

from skillmix.calls import CallProblem, Request
from skillmix.models.batches.batch_client import (
    CLOCKS_DIFFER,
    FOUND_BY,
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
    BatchFault,
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
from skillmix.models.batches.dialects import BatchDialect
from skillmix.models.servers.http import NamedFile, fatal_in_probe

_NOT_MADE = ("batch_expired", "batch_cancelled", "batch_canceled", "request_cancelled", "request_canceled")
"""Codes of lines whose calls were not made."""
_NO_SUCH_PATH = ("HTTP 404", "HTTP 405", "HTTP 501")


class FileBatches:
    """Uploads requests as JSON Lines, and reads files of results."""

    def __init__(self, dialect: BatchDialect, server: LineServer) -> None:
        self.dialect = dialect
        self.server = server

    def line(self, custom_id: str, request: Request) -> bytes:
        """A request as a line of the file."""
        call = {"custom_id": custom_id, "method": "POST", "url": self.dialect.endpoint}
        return compact({**call, "body": self.server.body(request)})

    async def upload(self, tag: str, lines: list[bytes]) -> str | CallProblem | None:
        """Upload the requests under a name with the tag."""
        file = NamedFile(_file_name(tag), b"\n".join([*lines, b""]))
        raw = await self.server.endpoint.upload(self._path("/files"), {"purpose": "batch"}, file)
        document = document_of(raw) if isinstance(raw, bytes) else None
        if not isinstance(raw, bytes):
            return _without_batches(problem_of(raw))
        made = identifier(document or {}, "id")
        return made or unreadable("the id of the uploaded file")

    async def is_ready(self, file: str) -> bool | CallProblem:
        """Whether an uploaded file can be used; most providers take it at once."""
        if not self.dialect.unready_files:
            return True
        raw = await self.server.endpoint.get(self._path(f"/files/{quote(file, safe='')}"))
        if not isinstance(raw, bytes):
            problem = problem_of(raw)
            return problem.reason in _NO_SUCH_PATH or problem
        return word(document_of(raw) or {}, "status").casefold() not in self.dialect.unready_files

    async def create(self, tag: str, file: str | None, lines: list[bytes]) -> BatchView | CallProblem:
        """Create the batch with the tag in its metadata."""
        body = {"input_file_id": file, "endpoint": self.dialect.endpoint, "completion_window": "24h"}
        raw = await self.server.endpoint.make(self._path("/batches"), compact({**body, "metadata": {FOUND_BY: tag}}))
        if not isinstance(raw, bytes):
            return problem_of(raw)
        return self._view(document_of(raw) or {}) or unreadable("the new batch")

    async def find(self, sought: Sought, known: frozenset[str]) -> BatchView | SearchEnd | CallProblem:
        """Look for the tag in the metadata, and for the file; a provider's list comes in pages."""
        after = ""
        for _ in range(MOST_PAGES):
            page = f"limit={PAGE}&after={quote(after, safe='')}" if after else f"limit={PAGE}"
            raw = await self.server.endpoint.get(self._path("/batches", page))
            document = document_of(raw) if isinstance(raw, bytes) else None
            if document is None or not isinstance(document.get("data"), list):
                return unreadable("the list of batches") if isinstance(raw, bytes) else problem_of(raw)
            listed = items(document, "data")
            views = [view for item in listed if (view := self._view(item)) is not None]
            for view in views:
                if view.id not in known and (view.tag == sought.tag or (view.file and view.file == sought.file)):
                    return view
            ages = [view.created for view in views]
            is_older = bool(ages) and all(age is not None and age < sought.since - CLOCKS_DIFFER for age in ages)
            following = word(document, "last_id") or (word(listed[-1], "id") if listed else "")
            if not has_more(document, len(listed)) or is_older:
                return SearchEnd.ABSENT
            if not following or following == after:
                return unreadable("the next page of the list of batches")
            after = following
        return SearchEnd.UNDECIDED

    async def view(self, batch: str) -> BatchView | CallProblem:
        """Look at a batch by its id."""
        raw = await self.server.endpoint.get(self._path(f"/batches/{quote(batch, safe='')}"))
        if not isinstance(raw, bytes):
            return problem_of(raw)
        view = self._view(document_of(raw) or {})
        return view if view is not None and view.id == batch else unreadable("the batch")

    async def results(self, view: BatchView, calls: int) -> ResultsRead | CallProblem:
        """Read the files of replies and of errors."""
        lines: list[LineResult] = []
        unread = 0
        for file in view.results:
            path = self._path(f"/files/{quote(file, safe='')}/content")
            raw = await self.server.endpoint.get(path, max_bytes=longest_results(calls))
            if not isinstance(raw, bytes):
                return problem_of(raw)
            found = [_line_of(line) for line in raw.split(b"\n") if line.strip()]
            lines += [line for line in found if line is not None]
            unread += found.count(None)
        return ResultsRead(tuple(lines), unread)

    async def tidy(self, sought: Sought) -> None:
        """Delete the file of a batch that was never created, found by its id or its name."""
        file = sought.file or await self._file_named(_file_name(sought.tag))
        if file:
            await self.server.endpoint.delete(self._path(f"/files/{quote(file, safe='')}"))

    async def probe(self) -> CallProblem | None:
        """Ask for the list of batches."""
        raw = await self.server.endpoint.get(self._path("/batches", "limit=1"))
        if isinstance(raw, bytes):
            return None
        problem = problem_of(raw)
        return _without_batches(problem) if problem.reason == "HTTP 404" else fatal_in_probe(problem)

    async def _file_named(self, name: str) -> str | None:
        raw = await self.server.endpoint.get(self._path("/files", "purpose=batch"))
        listed = items(document_of(raw) or {}, "data") if isinstance(raw, bytes) else []
        return next((identifier(item, "id") for item in listed if word(item, "filename") == name), None)

    def _path(self, path: str, query: str = "") -> str:
        is_versioned = self.server.address.rstrip("/").endswith("/v1")
        own = "" if is_versioned else self.dialect.query
        joined = "&".join(part for part in (own, query) if part)
        return f"{path}?{joined}" if joined else path

    def _view(self, document: Mapping[str, object]) -> BatchView | None:
        found = identifier(document, "id")
        if found is None:
            return None
        counts = section(document, "request_counts")
        status = word(document, "status")
        files = (identifier(document, "output_file_id"), identifier(document, "error_file_id"))
        return BatchView(
            id=found,
            state=self.dialect.state(status),
            word=status,
            tag=word(section(document, "metadata"), FOUND_BY) or None,
            file=identifier(document, "input_file_id"),
            total=number(counts, "total"),
            answered=number(counts, "completed"),
            results=tuple(file for file in files if file),
            faults=tuple(_faults(document)),
            created=moment(document.get("created_at")),
        )


def _file_name(tag: str) -> str:
    return f"skillmix-{tag}.jsonl"


def _faults(document: Mapping[str, object]) -> Iterator[BatchFault]:
    for fault in items(section(document, "errors"), "data"):
        yield BatchFault(word(fault, "code"), word(fault, "message"), number(fault, "line"))


def _line_of(raw: bytes) -> LineResult | None:
    document = document_of(raw)
    custom = word(document, "custom_id") if document is not None else ""
    if document is None or not custom:
        return None
    response, error = section(document, "response"), section(document, "error")
    status = number(response, "status_code")
    if response and status is not None and "body" in response:
        return LineResult(custom, "answer" if status == 200 else "refusal", status, compact(response["body"]))
    if error:
        is_made = word(error, "code").casefold() not in _NOT_MADE
        return LineResult(custom, "refusal" if is_made else "not made", 500, compact({"error": error}))
    return LineResult(custom, "nothing")


def _without_batches(problem: CallProblem) -> CallProblem:
    if problem.reason not in _NO_SUCH_PATH:
        return problem
    detail = f"the server has no batches: set batch: false for this model. {problem.detail}".strip()
    return CallProblem("fatal", problem.reason, detail, is_free=True)
