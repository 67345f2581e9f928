"""Compiling is worth its time in long trainings, and costs less the second time."""

from pathlib import Path
from typing import Any

import pytest
from transformers import LlamaConfig

from skillmix.experiment.train_step import LoraSettings
from skillmix.training.saving import with_adapter
from skillmix.training.step import compiling as compile_choice
from skillmix.training.step.compiling import CompileEstimate, architecture, compile_estimate, note_compiled
from tests.training.tiny import tiny_model


@pytest.fixture(autouse=True)
def cold(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(compile_choice, "_compiled", set())
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "inductor"))


def estimate(model: Any, **given: Any) -> CompileEstimate:
    return compile_estimate(model, **{"steps": 100, "tokens": 12_000, "is_recorded": True, "ranks": 1, **given})


def test_long_trainings_are_compiled_and_short_ones_are_not() -> None:
    model = tiny_model()
    short, long = estimate(model), estimate(model, steps=100_000_000)

    assert not short.pays and long.pays
    assert short.sentence().startswith("compile: auto does not compile the layers: compiling takes about 8 s")
    assert long.sentence().startswith("compile: auto compiles the layers")
    assert short.sentence().endswith("saves about 0 s in 100 steps")
    adapted = with_adapter(tiny_model(), LoraSettings(rank=4, alpha=8), seed=0)
    assert estimate(adapted).saved > short.saved
    assert estimate(model, is_recorded=False).saved > short.saved > estimate(model, ranks=2).saved


def test_a_step_of_11_600_tokens_of_a_135m_model_saves_30_ms() -> None:
    class Model:
        """Only its sizes count."""

        config = LlamaConfig(hidden_size=576, intermediate_size=1536, num_hidden_layers=30)

        def named_modules(self) -> list[Any]:
            return []

        named_parameters = named_modules

    assert estimate(Model(), steps=1, tokens=11_600).saved == pytest.approx(0.030, rel=0.02)


def test_compiled_kernels_cost_less_in_another_process_and_nothing_in_this_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cold = estimate(tiny_model()).cost
    note_compiled(tiny_model())
    same = estimate(tiny_model(seed=1)).cost
    monkeypatch.setattr(compile_choice, "_compiled", set())
    later = estimate(tiny_model()).cost

    assert same == 0 < later < cold
    assert estimate(tiny_model(), ranks=2).cost == cold  # all ranks must decide alike


def test_another_architecture_is_compiled_anew() -> None:
    adapted = with_adapter(tiny_model(), LoraSettings(rank=4, alpha=8), seed=0)

    assert len({architecture(model) for model in (tiny_model(), tiny_model(size=64), adapted)}) == 3
    assert architecture(tiny_model(seed=1)) == architecture(tiny_model(layers=3))


def test_without_a_folder_for_kernels_later_processes_are_cold(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TORCHINDUCTOR_CACHE_DIR")
    cold = estimate(tiny_model()).cost
    note_compiled(tiny_model())
    monkeypatch.setattr(compile_choice, "_compiled", set())

    assert estimate(tiny_model()).cost == cold
