"""How long a server asks to be left alone, in whichever of the usual headers it says so."""

import re
from collections.abc import Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from math import isfinite
from typing import Final

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
