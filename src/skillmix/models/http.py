"""One POST to a chat endpoint, its every failure told apart: stop the run, this call's own outcome, try again."""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import aiohttp

from skillmix.core.calls import CallProblem
from skillmix.core.errors import UserError
from skillmix.models.rate_limits import wait_asked

_TOO_LONG = re.compile(
    r"context.?length|maximum context|too many tokens|prompt is too long|input is too long", re.IGNORECASE
)
_FILTERED = re.compile(r"content.?filter|content management policy|content.?policy", re.IGNORECASE)
_UNKNOWN_MODEL = re.compile(
    r"model.{0,80}(?:not found|does not exist|not exist)|unknown model|model_not_found", re.IGNORECASE
)
_KEY_LIKE = re.compile(r"\b(?:sk|key|pk)-[A-Za-z0-9_*\-]{6,}")
_PASSING: Final = {408, 409, 425, 429, 500, 502, 503, 504, 520, 522, 524, 529}
_LONGEST_DETAIL: Final = 300


@dataclass(frozen=True, slots=True)
class Refused:
    """A 400 that names a parameter; the caller may leave it out and ask again."""

    message: str


class Endpoint:
    """An address with its secret; the secret leaves it only as a header."""

    def __init__(self, url: str, *, headers: dict[str, str], secret: str | None, timeout: float) -> None:
        self._url = url
        self._headers = headers
        self._secret = secret
        self._timeout = aiohttp.ClientTimeout(total=timeout)
        self._session: aiohttp.ClientSession | None = None
        self._has_answered = False

    async def close(self) -> None:
        """Give the connections back."""
        if self._session is not None:
            await self._session.close()
            self._session = None

    async def post(self, body: dict[str, object]) -> dict[str, Any] | CallProblem | Refused:
        """The JSON object that comes back, or what went wrong."""
        return await self._exchange("POST", self._url, body)

    async def get(self, url: str) -> dict[str, Any] | CallProblem | Refused:
        """The JSON object at another address of the same server."""
        return await self._exchange("GET", url, None)

    async def _exchange(
        self, method: str, url: str, body: dict[str, object] | None
    ) -> dict[str, Any] | CallProblem | Refused:
        if self._session is None:
            connector = aiohttp.TCPConnector(limit=0)
            self._session = aiohttp.ClientSession(connector=connector, timeout=self._timeout, headers=self._headers)
        try:
            async with self._session.request(method, url, json=body) as response:
                raw = await response.read()
                if response.status != 200:
                    return self._failure(response.status, raw, response.headers)
        except TimeoutError:
            return CallProblem("passing", "timeout")
        except aiohttp.ClientConnectorError as error:
            # An address that nobody ever listened at is wrong; one that answered before is only down for a while.
            kind: Any = "passing" if self._has_answered else "fatal"
            return CallProblem(kind, "no connection", self.safe(f"{url}: {error}"))
        except aiohttp.ClientConnectionError as error:
            return CallProblem("passing", "dropped connection", self.safe(f"{url}: {error}"))
        except aiohttp.ClientError as error:
            return CallProblem("passing", "broken reply", self.safe(str(error)))
        self._has_answered = True
        return self._parsed(raw)

    def safe(self, text: str) -> str:
        """Text without the secret, whole or in part, in a length for one line."""
        if self._secret:
            text = text.replace(self._secret, "[key]")
        return " ".join(_KEY_LIKE.sub("[key]", text).split())[:_LONGEST_DETAIL]

    def _parsed(self, raw: bytes) -> dict[str, Any] | CallProblem:
        try:
            document = json.loads(raw)
        except ValueError:
            return CallProblem("passing", "invalid JSON", self.safe(raw[:200].decode("utf-8", "replace")))
        return document if isinstance(document, dict) else CallProblem("passing", "invalid JSON")

    def _failure(self, status: int, raw: bytes, headers: Mapping[str, str]) -> CallProblem | Refused:
        message = _message_of(raw)
        detail = self.safe(message)
        if status in (401, 403):
            return CallProblem("fatal", f"HTTP {status}", detail)
        if status == 404 or _UNKNOWN_MODEL.search(message) or "insufficient_quota" in message:
            return CallProblem("fatal", f"HTTP {status}", detail)
        if status == 413 or (status in (400, 422) and _TOO_LONG.search(message)):
            return CallProblem("final", "prompt too long", detail)
        if status in (400, 422) and _FILTERED.search(message):
            return CallProblem("final", "content filter", detail)
        if status in _PASSING or status >= 500:
            self._has_answered = True
            return CallProblem("passing", f"HTTP {status}", detail, retry_after=wait_asked(headers))
        return Refused(detail)


def _message_of(raw: bytes) -> str:
    """The message in an error body of whatever shape, with its code and parameter."""
    text = raw.decode("utf-8", "replace")
    try:
        error = json.loads(text).get("error")
    except (ValueError, AttributeError):
        return text
    if isinstance(error, dict):
        return " ".join(str(error[key]) for key in ("message", "code", "type", "param") if error.get(key))
    return str(error or text)


def key_from(environment: dict[str, str], name: str) -> str:
    """A secret from the environment, which is the only place for one."""
    if not environment.get(name):
        raise UserError(f"{name} is not set.", hint=f"export {name}=… before running; it is never written anywhere.")
    return environment[name]
