"""The processor sees the rows of the device one round late, and never waits for the last round."""

from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="the extra `local` is not installed")

from skillmix.models.local.gpu.gpu_decoder import Snapshots  # noqa: E402


class Event:
    """An event of a device that is done when the test says so."""

    all: list["Event"]

    def __init__(self) -> None:
        self.is_done = False
        self.waits = 0
        Event.all.append(self)

    def record(self) -> None:
        self.is_done = False

    def query(self) -> bool:
        return self.is_done

    def synchronize(self) -> None:
        self.waits += 1
        self.is_done = True


@pytest.fixture
def count() -> Any:
    Event.all = []
    return torch.zeros(3, dtype=torch.long)


def test_the_first_round_is_waited_for(count: Any) -> None:
    snapshots = Snapshots(Event, [count])
    count.fill_(8)
    snapshots.take()

    (shown,), is_present = snapshots.newest()

    assert shown.tolist() == [8, 8, 8]
    assert is_present.all()


def test_a_busy_device_shows_the_round_before_the_last(count: Any) -> None:
    snapshots = Snapshots(Event, [count])
    for number in (8, 16, 24):
        count.fill_(number)
        snapshots.take()
        (shown,), _ = snapshots.newest()
        assert shown.tolist() == [max(8, number - 8)] * 3


def test_a_device_that_has_finished_shows_its_last_round(count: Any) -> None:
    snapshots = Snapshots(Event, [count])
    for number in (8, 16):
        count.fill_(number)
        snapshots.take()
    for event in Event.all:
        event.is_done = True

    assert snapshots.newest()[0][0].tolist() == [16, 16, 16]


def test_a_row_is_not_shown_before_the_round_after_its_start(count: Any) -> None:
    snapshots = Snapshots(Event, [count])
    snapshots.take()
    snapshots.newest()
    snapshots.note_started([1])
    snapshots.take()
    assert snapshots.newest()[1].tolist() == [True, False, True]
    snapshots.take()
    assert snapshots.newest()[1].tolist() == [True, True, True]
