"""The seconds of a model's start."""

import pytest

from skillmix.models.local import startup
from skillmix.models.local.startup import StartupClock, StartupSeconds


class Stopwatch:
    """A clock that moves only when a test says so: a busy machine may stretch any real wait."""

    def __init__(self) -> None:
        self.now = 0.0

    def perf_counter(self) -> float:
        return self.now


@pytest.fixture
def watch(monkeypatch: pytest.MonkeyPatch) -> Stopwatch:
    stopwatch = Stopwatch()
    monkeypatch.setattr(startup, "time", stopwatch)
    return stopwatch


def test_a_part_inside_another_part_counts_once(watch: Stopwatch) -> None:
    clock = StartupClock()
    with clock.measuring("loading"):
        watch.now += 2
        with clock.measuring("compiling"):
            watch.now += 5
    assert clock.seconds == StartupSeconds(loading=2, compiling=5)
    assert clock.seconds.total == 7


def test_a_part_that_fails_is_measured_too(watch: Stopwatch) -> None:
    clock = StartupClock()
    with pytest.raises(ValueError, match="damaged"), clock.measuring("loading"):
        watch.now += 1
        raise ValueError("damaged")
    assert clock.seconds == StartupSeconds(loading=1)


def test_the_starts_of_several_models_add_up() -> None:
    assert StartupSeconds(1, 2, 3) + StartupSeconds(compiling=4) == StartupSeconds(1, 2, 7)
