"""Headers that ask for patience."""

from datetime import UTC, datetime

import pytest

from skillmix.models.servers.http import requested_wait

NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({}, None),
        ({"Retry-After": "7"}, 7.0),
        ({"Retry-After": "0.5"}, 0.5),
        ({"Retry-After": "-3"}, 0.0),
        ({"Retry-After": "Fri, 02 Jan 2026 03:04:35 GMT"}, 30.0),
        ({"Retry-After": "soon"}, None),
        ({"Retry-After": "inf"}, None),
        ({"retry-after-ms": "1500", "retry-after": "9"}, 1.5),
        ({"Retry-After": "Fri, 02 Jan 2026 03:00:00 GMT"}, 0.0),
    ],
)
def test_retry_after_is_understood(headers: dict[str, str], seconds: float | None) -> None:
    assert requested_wait(headers, now=NOW) == (None if seconds is None else pytest.approx(seconds))
