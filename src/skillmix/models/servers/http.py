"""HTTP requests to untrusted servers.

Redirects are not followed, replies are read up to a limit, and every failure becomes a `CallProblem` that determines
whether and when to retry.
"""

import json
import re
import zlib
from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from math import isfinite
from typing import Any, Final

import aiohttp

from skillmix.calls import CallProblem, ProblemKind
from skillmix.models.servers.keys import Server
from skillmix.models.servers.masking import MASK

_TOO_LONG = re.compile(
    r"context.?length|maximum context|too many tokens|prompt is too long|input is too long", re.IGNORECASE
)
_FILTERED = re.compile(r"content.?filter|content management policy|content.?policy", re.IGNORECASE)
_UNKNOWN_MODEL = re.compile(
    r"model.{0,80}(?:not found|does not exist|not exist)|unknown model|model_not_found", re.IGNORECASE
)
_PASSING: Final = {408, 409, 425, 429}
_TURNED_AWAY: Final = {503, 529}  # server errors that occur before any work was done; such calls are not billed
_UNSURE: Final = {408, 499}  # client errors after which the server may have done the work and may bill it
MAX_REPLY: Final = 2**20
"""The maximum size in bytes of a decoded reply, unless the request allows many tokens."""
MAX_LIST: Final = 2**22
"""The maximum size in bytes of a decoded list of models."""


class Refused(CallProblem):
    """A response with status 400 or 422; if it names a parameter, the caller may retry without that parameter."""


class Endpoint:
    """A server and the connections to it; the key is sent as a header, and only to this server's address."""

    def __init__(self, server: Server, *, headers: dict[str, str], timeout: float) -> None:
        self._server = server
        self._headers = headers
        self._timeout = aiohttp.ClientTimeout(total=timeout, connect=min(timeout, 30))
        self._session: aiohttp.ClientSession | None = None
        self.has_answered = False
        """Whether the model has answered a request; later errors are then blamed on the request, not on the model."""

    async def aclose(self) -> None:
        """Close the connections to the server."""
        if self._session is not None:
            await self._session.close()
            self._session = None

    async def post(self, path: str, body: dict[str, object], *, max_tokens: int | None = None) -> bytes | CallProblem:
        """Post a JSON body, and return the reply's body or the problem; a large `max_tokens` raises the size limit."""
        return await self._exchange("POST", path, {"json": body}, max(MAX_REPLY, 64 * (max_tokens or 0)))

    async def get(self, path: str, *, max_bytes: int = MAX_LIST) -> bytes | CallProblem:
        """Request a path, and return the reply's body or the problem."""
        return await self._exchange("GET", path, {}, max_bytes)

    async def change(self, method: str, path: str, **content: Any) -> bytes | CallProblem:
        """Send a request that creates or deletes something on the server; return the reply's body or the problem."""
        return await self._exchange(method, path, content, MAX_REPLY, (200, 201, 202))

    async def upload(self, path: str, name: str, content: bytes, **fields: str) -> bytes | CallProblem:
        """Post a form with a JSON Lines file, and return the reply's body or the problem."""
        form = aiohttp.FormData(fields)
        form.add_field("file", content, filename=name, content_type="application/jsonl")
        return await self.change("POST", path, data=form)

    async def _exchange(
        self, method: str, path: str, body: dict[str, Any], most: int, good: Sequence[int] = (200,)
    ) -> bytes | CallProblem:
        query = self._server.query
        url = f"{self._server.address}{path}" + (f"{'&' if '?' in path else '?'}{query}" if query else "")
        if self._session is None:
            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(limit=0),
                timeout=self._timeout,
                # Request no compression, because a small compressed reply may expand endlessly.
                headers={**self._headers, "Accept-Encoding": "identity"},
                cookie_jar=aiohttp.DummyCookieJar(),
                auto_decompress=False,
            )
        try:
            proxy = self._server.proxy
            async with self._session.request(method, url, allow_redirects=False, proxy=proxy, **body) as response:
                raw, is_complete = await _read(response, most)
                if response.status not in good:
                    return self.failure(response.status, raw, response.headers)
        except TimeoutError as error:
            is_free = isinstance(error, aiohttp.ConnectionTimeoutError)
            return CallProblem("passing", "no connection" if is_free else "timeout", is_free=is_free)
        except aiohttp.ClientConnectorError as error:
            return CallProblem("passing", "no connection", MASK.line(f"{url}: {error}"), is_free=True)
        except aiohttp.ClientConnectionError as error:
            return CallProblem("passing", "dropped connection", MASK.line(f"{url}: {error}"))
        except (aiohttp.ClientError, OSError, ValueError, LookupError, zlib.error) as error:
            return CallProblem("passing", "broken reply", MASK.line(str(error)))
        if not is_complete:
            return CallProblem("passing", "reply too long", f"it has more than {most} bytes")
        return raw

    def failure(self, status: int, raw: bytes, headers: Mapping[str, str] | None = None) -> CallProblem:
        """Return the problem reported by an error response to a single call, or to one call of a batch."""
        headers = headers or {}
        message = raw.decode("utf-8", "replace")  # may contain keys
        document = json_in(raw)
        if not isinstance(document, CallProblem):  # an error may have any shape
            message = error_text(document.get("error", document.get("message", document.get("detail")))) or message
        reason, detail, wait = f"HTTP {status}", MASK.line(message), None
        is_free = status in _TURNED_AWAY or (300 <= status < 500 and status not in _UNSURE)
        # Blame the request if the model has answered another request, otherwise the model's name or URL.
        unknown: ProblemKind = "failed" if self.has_answered else "fatal"
        kind: ProblemKind = "failed"
        if status == 413 or (status in (400, 422) and _TOO_LONG.search(message)):
            reason = "prompt too long"
        elif status in (400, 422) and _FILTERED.search(message):
            reason = "prompt filtered"
        elif status == 404 or (status in (400, 422) and _UNKNOWN_MODEL.search(message)):
            kind = unknown
        elif status in (400, 422):
            return Refused(kind, reason, detail, is_free=True)
        elif 300 <= status < 400:
            target = MASK.line(headers.get("Location", "an unknown address"))
            detail = f"{self._server.address} redirects to {target}, and redirects are not followed"
            kind = "fatal"
        elif status in (401, 402) or (status == 429 and "insufficient_quota" in message):
            kind = "fatal"
        elif not 400 <= status < 500 or status in _PASSING:
            kind, wait = "passing", requested_wait(headers)
        return CallProblem(kind, reason, detail, retry_after=wait, is_free=is_free)


async def _read(response: aiohttp.ClientResponse, max_bytes: int) -> tuple[bytes, bool]:
    """Read and decode a body up to a limit, and return whether it is complete."""
    encoding = response.headers.get("Content-Encoding", "identity").strip().lower()
    if encoding not in ("", "identity", "gzip", "x-gzip", "deflate"):
        raise ValueError(f"the reply is encoded as {encoding}, which the request did not allow")
    decompressor = None if encoding in ("", "identity") else zlib.decompressobj(wbits=zlib.MAX_WBITS | 32)
    body = bytearray()
    received = 0
    async for chunk in response.content.iter_any():
        received += len(chunk)  # compressed data may continue forever without expanding to a single byte
        body += chunk if decompressor is None else decompressor.decompress(chunk, max_bytes + 1 - len(body))
        if max(received, len(body)) > max_bytes:
            response.close()
            return bytes(body), False
    return bytes(body), True


def json_in(raw: bytes) -> dict[str, object] | CallProblem:
    """Parse a body as a JSON object; return a problem if that fails."""
    try:
        document = json.loads(raw)
    except RecursionError:
        return CallProblem("passing", "invalid JSON", "it is nested too deeply")
    except ValueError:
        return CallProblem("passing", "invalid JSON", MASK.line(raw[:100_000].decode("utf-8", "replace")))
    return document if isinstance(document, dict) else CallProblem("passing", "invalid JSON", "it is not an object")


def error_text(error: object) -> str:
    """Join the usual fields of an error; return an empty string if there are none."""
    if isinstance(error, dict):
        fields = (error.get(key) for key in ("message", "code", "type", "param"))
        return " ".join(str(field) for field in fields if isinstance(field, str | int) and field)
    return error if isinstance(error, str) else ""


def fatal_in_probe(problem: CallProblem) -> CallProblem | None:
    """Return a problem, marked as fatal, if it indicates a wrong URL or key; return None if it may be temporary."""
    if problem.reason in ("no connection", "HTTP 403"):
        return CallProblem("fatal", problem.reason, problem.detail)
    return problem if problem.kind == "fatal" else None


def requested_wait(headers: Mapping[str, str], *, now: datetime | None = None) -> float | None:
    """Return the wait in seconds that a server requests with `Retry-After`; None if it requests none.

    >>> requested_wait({"Retry-After": "20"}), requested_wait({"retry-after-ms": "500"})
    (20.0, 0.5)
    """
    fields = {name.lower(): value.strip() for name, value in headers.items()}
    for name, unit in (("retry-after-ms", 0.001), ("retry-after", 1.0)):
        with suppress(KeyError, ValueError):
            seconds = float(fields[name]) * unit
            return max(0.0, seconds) if isfinite(seconds) else None
    try:
        moment = parsedate_to_datetime(fields.get("retry-after", ""))
    except (ValueError, TypeError, IndexError, OverflowError):
        return None
    moment = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
    return max(0.0, (moment - (now or datetime.now(UTC))).total_seconds())
