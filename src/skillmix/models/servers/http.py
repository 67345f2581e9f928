"""One exchange with a server that is not trusted: no redirect is followed, no body is read without end."""

import re
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from math import isfinite
from typing import Any, Final

import aiohttp

from skillmix.calls import CallProblem, ProblemKind
from skillmix.models.servers.keys import Door
from skillmix.models.servers.masking import MASK
from skillmix.models.servers.replies import error_message

_TOO_LONG = re.compile(
    r"context.?length|maximum context|too many tokens|prompt is too long|input is too long", re.IGNORECASE
)
_FILTERED = re.compile(r"content.?filter|content management policy|content.?policy", re.IGNORECASE)
_UNKNOWN_MODEL = re.compile(
    r"model.{0,80}(?:not found|does not exist|not exist)|unknown model|model_not_found", re.IGNORECASE
)
_PASSING: Final = {408, 409, 425, 429}
_TURNED_AWAY: Final = {503, 529}
"""Server errors that say that the work was not begun, and so is not billed."""
_UNSURE: Final = {408, 499}
"""Client errors after which the work may have been done all the same."""
LONGEST_REPLY: Final = 2**20
"""Bytes, decoded, of a reply of ordinary length."""
LONGEST_LIST: Final = 2**22
"""Bytes, decoded, of a list of models."""
_BYTES_A_TOKEN: Final = 64
_LONGEST_CONNECT: Final = 30.0


@dataclass(frozen=True, slots=True)
class Refused:
    """A 400 or 422 that may be about a parameter; the caller may leave that out and ask again."""

    message: str
    problem: CallProblem
    """What it is if no parameter is to blame."""


class Endpoint:
    """An address with its key; the key leaves it only as a header, and only to that address."""

    def __init__(self, door: Door, *, headers: dict[str, str], timeout: float) -> None:
        self._door = door
        self._headers = headers
        self._timeout = aiohttp.ClientTimeout(total=timeout, connect=min(timeout, _LONGEST_CONNECT))
        self._session: aiohttp.ClientSession | None = None
        self._has_answered = False

    async def close(self) -> None:
        """Give the connections back."""
        if self._session is not None:
            await self._session.close()
            self._session = None

    async def post(
        self, path: str, body: dict[str, object], *, most_tokens: int | None = None
    ) -> bytes | CallProblem | Refused:
        """The body of the reply, or what went wrong; the longest reply that is read grows with what was asked for."""
        longest = max(LONGEST_REPLY, _BYTES_A_TOKEN * (most_tokens or 0))
        return await self._exchange("POST", path, body, longest)

    async def get(self, path: str) -> bytes | CallProblem | Refused:
        """What the same server has at another path."""
        return await self._exchange("GET", path, None, LONGEST_LIST)

    async def _exchange(
        self, method: str, path: str, body: dict[str, object] | None, longest: int
    ) -> bytes | CallProblem | Refused:
        url = f"{self._door.address}{path}"
        try:
            async with self._opened().request(method, url, json=body, allow_redirects=False) as response:
                raw, is_whole = await _read(response, longest)
                if response.status != 200:
                    return self._failure(response.status, raw, response.headers)
        except TimeoutError as error:
            is_free = isinstance(error, aiohttp.ConnectionTimeoutError)
            return CallProblem("passing", "no connection" if is_free else "timeout", is_free=is_free)
        except aiohttp.ClientConnectorError as error:
            return CallProblem("passing", "no connection", MASK.line(f"{url}: {error}"), is_free=True)
        except aiohttp.ClientConnectionError as error:
            return CallProblem("passing", "dropped connection", MASK.line(f"{url}: {error}"))
        except (aiohttp.ClientError, OSError, ValueError, LookupError, zlib.error) as error:
            return CallProblem("passing", "broken reply", MASK.line(str(error)))
        if not is_whole:
            return CallProblem("passing", "reply too long", f"it has more than {longest} bytes")
        return raw

    def answered(self) -> None:
        """Note that a reply was good: from now on a refusal is about a request, and not about the model."""
        self._has_answered = True

    def _opened(self) -> aiohttp.ClientSession:
        if self._session is None:
            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(limit=0),
                timeout=self._timeout,
                # A compressed reply is small on the way and may be endless when unpacked; replies need none of that.
                headers={**self._headers, "Accept-Encoding": "identity"},
                cookie_jar=aiohttp.DummyCookieJar(),
                auto_decompress=False,
            )
        return self._session

    def _failure(self, status: int, raw: bytes, headers: Mapping[str, str]) -> CallProblem | Refused:
        message = error_message(raw)
        detail = MASK.line(message)
        reason = f"HTTP {status}"
        if status in (400, 422):
            return self._refusal(status, message, detail)
        if 300 <= status < 400:
            target = MASK.line(headers.get("Location", "an address that it does not name"))
            told = f"{self._door.address} sends its callers on to {target}, and no redirect is followed"
            return CallProblem("fatal", reason, told, is_free=True)
        if status in (401, 402) or (status == 429 and "insufficient_quota" in message):
            return CallProblem("fatal", reason, detail, is_free=True)
        if status == 404:
            return CallProblem(self._unless_answered(), reason, detail, is_free=True)
        if status == 413:
            return CallProblem("failed", "prompt too long", detail, is_free=True)
        if 400 <= status < 500 and status not in _PASSING:
            return CallProblem("failed", reason, detail, is_free=status not in _UNSURE)
        is_free = status in _TURNED_AWAY or (400 <= status < 500 and status not in _UNSURE)
        return CallProblem("passing", reason, detail, retry_after=wait_asked(headers), is_free=is_free)

    def _unless_answered(self) -> ProblemKind:
        """A model that answered others has a name, an address and a key that are right."""
        return "failed" if self._has_answered else "fatal"

    def _refusal(self, status: int, message: str, detail: str) -> CallProblem | Refused:
        reason = f"HTTP {status}"
        if _TOO_LONG.search(message):
            return CallProblem("failed", "prompt too long", detail, is_free=True)
        if _FILTERED.search(message):
            return CallProblem("failed", "prompt filtered", detail, is_free=True)
        if _UNKNOWN_MODEL.search(message):
            return CallProblem(self._unless_answered(), reason, detail, is_free=True)
        return Refused(detail, CallProblem("failed", reason, detail, is_free=True))


async def _read(response: aiohttp.ClientResponse, longest: int) -> tuple[bytes, bool]:
    """A body, decoded, and whether that is all of it; what is longer than it may be is cut off."""
    encoding = response.headers.get("Content-Encoding", "identity").strip().lower()
    unpack = _unpacker(encoding)
    body = bytearray()
    received = 0
    async for chunk in response.content.iter_any():
        received += len(chunk)  # an archive can go on for ever without a byte in it
        body += chunk if unpack is None else unpack.decompress(chunk, longest + 1 - len(body))
        if max(received, len(body)) > longest:
            response.close()
            return bytes(body), False
    return bytes(body), True


def _unpacker(encoding: str) -> Any:
    if encoding in ("", "identity"):
        return None
    if encoding not in ("gzip", "x-gzip", "deflate"):
        raise ValueError(f"the reply is encoded as {encoding}, which was not asked for")
    return zlib.decompressobj(wbits=zlib.MAX_WBITS | 32)


def probed(problem: CallProblem) -> CallProblem | None:
    """What a problem of a probe means: a wrong address, a wrong key, or nothing, if it may pass."""
    if problem.reason in ("no connection", "HTTP 403"):
        return CallProblem("fatal", problem.reason, problem.detail)
    return problem if problem.kind == "fatal" else None


_DURATION = re.compile(r"(?<!\d)(\d++(?:\.\d++)?)(ms|s|m|h|d)")
_UNITS: Final = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_LIMITED: Final = ("requests", "tokens", "input-tokens", "output-tokens")


def wait_asked(headers: Mapping[str, str], *, now: datetime | None = None) -> float | None:
    """Seconds to wait; None if nothing is said.

    >>> wait_asked({"retry-after": "20"}), wait_asked({"x-ratelimit-reset-requests": "1m2s"}), wait_asked({})
    (20.0, 62.0, None)
    """
    low = {name.lower(): value.strip() for name, value in headers.items()}
    now = now or datetime.now(UTC)
    if "retry-after-ms" in low:
        return _at_least_zero(_number(low["retry-after-ms"]), scale=0.001)
    if "retry-after" in low:
        return _seconds(low["retry-after"], now)
    waits = [_seconds(reset, now) for reset in _resets(low)]
    known = [wait for wait in waits if wait is not None]
    return max(known, default=None)


def _resets(headers: Mapping[str, str]) -> list[str]:
    """When limits that are used up are lifted; those with something left do not matter."""
    pairs = [
        pair
        for what in _LIMITED
        for pair in (
            (f"x-ratelimit-reset-{what}", f"x-ratelimit-remaining-{what}"),
            (f"anthropic-ratelimit-{what}-reset", f"anthropic-ratelimit-{what}-remaining"),
        )
    ]
    return [headers[reset] for reset, left in pairs if reset in headers and headers.get(left, "0") == "0"]


def _seconds(value: str, now: datetime) -> float | None:
    """A number of seconds, a duration such as 6m0s, or a moment."""
    number = _number(value)
    if number is not None:
        return _at_least_zero(number)
    parts = _DURATION.findall(value)
    if parts and _DURATION.sub("", value) == "":
        return _finite(sum(float(count) * _UNITS[unit] for count, unit in parts))
    moment = _moment(value)
    return None if moment is None else _at_least_zero((moment - now).total_seconds())


def _number(value: str) -> float | None:
    try:
        return _finite(float(value))
    except ValueError:
        return None


def _finite(number: float) -> float | None:
    return number if isfinite(number) else None


def _at_least_zero(number: float | None, *, scale: float = 1.0) -> float | None:
    return None if number is None else max(0.0, number * scale)


def _moment(value: str) -> datetime | None:
    for read in (datetime.fromisoformat, parsedate_to_datetime):
        try:
            moment = read(value)
        except (ValueError, TypeError, OverflowError, IndexError):
            continue
        return moment if moment.tzinfo else moment.replace(tzinfo=UTC)
    return None
