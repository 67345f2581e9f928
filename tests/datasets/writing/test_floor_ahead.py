"""Conversations that are drawn ahead of a wave with a floor."""

from pathlib import Path

import pytest

from skillmix.models import specs
from skillmix.steps.run import run_experiment
from tests.datasets.test_draw_ahead import SlottedModel, bytes_of, in_new_folder, written


def test_a_set_with_a_floor_is_the_same_with_and_without_drawing_ahead(
    in_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    row = specs.Provider("slotted", "slotted:student", SlottedModel, is_in_process=True, is_free=True)
    monkeypatch.setattr(specs, "PROVIDERS", {**specs.PROVIDERS, "slotted": row})
    specs._provider.cache_clear()
    step = {"per_skill": {"floor": 1, "ceiling": 4}}

    ahead = run_experiment(written(in_new_folder(in_folder, "ahead"), step=step))
    limited = {"max_calls": 10**6}  # with a limit, nothing is drawn ahead
    in_waves = run_experiment(written(in_new_folder(in_folder, "waves"), step=step, budget=limited))

    assert ahead.called > in_waves.called
    assert bytes_of(ahead) == bytes_of(in_waves)
