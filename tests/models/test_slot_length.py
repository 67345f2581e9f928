"""Slots on a GPU have room for later turns."""

from typing import Any

import pytest

pytest.importorskip("torch", reason="the extra `local` is not installed")

from skillmix.models.local.gpu.slot_length import roomy_length

GIB = 1 << 30


class Shape:
    bytes_per_token = 23_040


@pytest.mark.parametrize(
    ("length", "slots", "limit", "expected"),
    [
        (400, 2048, 8192, 1024),
        (1000, 2048, 8192, 1500),
        (400, 2048, 512, 512),
        (3000, 2048, 8192, 3000),  # half as much again does not fit
        (400, 8000, None, 400),
    ],
)
def test_longer_slots_are_made_where_the_memory_allows(length: int, slots: int, limit: Any, expected: int) -> None:
    shape: Any = Shape()

    assert roomy_length(length, shape, slots=slots, memory=139 * GIB, limit=limit) == expected
