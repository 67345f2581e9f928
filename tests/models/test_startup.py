"""The seconds of a model's start."""

import time

import pytest

from skillmix.models.local.startup import StartupClock, StartupSeconds


def test_a_part_inside_another_part_counts_once() -> None:
    clock = StartupClock()
    started = time.perf_counter()
    with clock.measuring("loading"):
        time.sleep(0.02)
        with clock.measuring("compiling"):
            time.sleep(0.05)
    whole = time.perf_counter() - started
    assert clock.seconds.compiling >= 0.05
    assert 0.02 <= clock.seconds.loading < 0.05
    assert clock.seconds.total == pytest.approx(whole, abs=0.01)


def test_a_part_that_fails_is_measured_too() -> None:
    clock = StartupClock()
    with pytest.raises(ValueError, match="damaged"), clock.measuring("loading"):
        time.sleep(0.01)
        raise ValueError("damaged")
    assert clock.seconds.loading >= 0.01


def test_the_starts_of_several_models_add_up() -> None:
    assert StartupSeconds(1, 2, 3) + StartupSeconds(compiling=4) == StartupSeconds(1, 2, 7)
