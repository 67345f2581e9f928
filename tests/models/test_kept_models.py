"""The model that stays in memory between the steps of a run changes no text."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from skillmix.calls import Decoding, GenerateKey, Message, Reply, Request
from skillmix.models.local import model as local_model
from skillmix.models.local.model import LocalModel, ModelKeeper
from skillmix.models.specs import ModelOptions, parse_spec
from tests.models.tiny_checkpoint import change_weights, write_adapter, write_checkpoint

torch = pytest.importorskip("torch", reason="the extra `local` is not installed")


@pytest.fixture(autouse=True)
def keeper(monkeypatch: pytest.MonkeyPatch) -> ModelKeeper:
    """A keeper of this test alone, on the CPU."""
    keeper = ModelKeeper()
    monkeypatch.setattr(local_model, "MODELS", keeper)
    monkeypatch.setenv("SKILLMIX_DEVICE", "cpu")
    return keeper


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Checkpoints `a` and `b`, and an adapter for `a`."""
    root = tmp_path_factory.mktemp("models")
    made = {name: write_checkpoint(root / name) for name in ("a", "b")}
    change_weights(made["b"] / "model.safetensors", lambda tensors: {n: -2 * t for n, t in tensors.items()})
    made["adapter"] = write_adapter(root / "adapter", made["a"])
    return made


def requests() -> list[Request]:
    words = list("abcdefgh")
    asked = [" ".join(words[i:] + words[:i]) * (1 + 12 * (i % 2)) for i in range(8)]
    return [
        Request(GenerateKey("s", str(n), 0, 1), "m", (Message("user", text),), Decoding(0.9, 24), n)
        for n, text in enumerate(asked)
    ]


async def _answers(spec: str, asked: Sequence[Request], concurrency: int | None) -> dict[str, str]:
    async def source() -> AsyncIterator[Request]:
        for request in asked:
            yield request

    opened = LocalModel(parse_spec(spec), ModelOptions(concurrency))
    try:
        outcomes = [(request, outcome) async for request, outcome in opened.serve(source())]
    finally:
        await opened.close()
    return {str(request.key): outcome.text for request, outcome in outcomes if isinstance(outcome, Reply)}


def answers(spec: str, *, concurrency: int | None = None) -> dict[str, str]:
    texts = asyncio.run(_answers(spec, requests(), concurrency))
    assert len(texts) == len(requests())
    return texts


@pytest.fixture(scope="module")
def fresh(folders: dict[str, Path]) -> Any:
    """The texts of a model that is loaded anew."""
    known: dict[str, dict[str, str]] = {}

    def texts(spec: str) -> dict[str, str]:
        if spec not in known:
            known[spec] = answers(spec)
        return known[spec]

    return texts


def test_each_model_writes_its_own_texts(keeper: ModelKeeper, folders: dict[str, Path], fresh: Any) -> None:
    specs = [f"local:{folders[name]}" for name in ("a", "a", "b", "a")]
    expected = [fresh(spec) for spec in specs]
    assert expected[0] != expected[2]
    with keeper.keeping():
        assert [answers(spec) for spec in specs] == expected


def test_a_model_that_is_used_again_is_not_loaded_again(
    keeper: ModelKeeper, folders: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = f"local:{folders['a']}"
    with keeper.keeping():
        expected = answers(spec)
        kept = keeper._kept
        assert kept is not None
        monkeypatch.setattr("skillmix.models.local.loading.AutoTokenizer", None)
        assert answers(spec) == expected
        assert keeper._kept is kept


def test_files_that_have_changed_are_loaded_again(
    keeper: ModelKeeper, folders: dict[str, Path], fresh: Any, tmp_path: Path
) -> None:
    folder = write_checkpoint(tmp_path / "changing")
    with keeper.keeping():
        assert answers(f"local:{folder}") == fresh(f"local:{folders['a']}")
        change_weights(folder / "model.safetensors", lambda tensors: {n: -2 * t for n, t in tensors.items()})
        assert answers(f"local:{folder}") == fresh(f"local:{folders['b']}")


def test_models_that_are_loaded_at_the_same_time_leave_weights_tied(folders: dict[str, Path]) -> None:
    from transformers import LlamaForCausalLM

    from skillmix.models.local.loading import load

    with ThreadPoolExecutor(4) as pool:
        names = ["a", "b"] * 8
        loaded = list(pool.map(lambda name: load(folders[name], device="cpu").model, names))
    made = LlamaForCausalLM(loaded[0].config)
    assert all(model.lm_head.weight is model.model.embed_tokens.weight for model in (*loaded, made))


def test_an_adapter_is_merged_into_fresh_weights_of_its_base(
    keeper: ModelKeeper, folders: dict[str, Path], fresh: Any
) -> None:
    base, tuned = f"local:{folders['a']}", f"local:{folders['a']}+{folders['adapter']}"
    expected = [fresh(spec) for spec in (base, tuned)]
    before = (folders["a"] / "model.safetensors").read_bytes()
    with keeper.keeping():
        assert [answers(spec) for spec in (base, tuned, tuned, base)] == [*expected, expected[1], expected[0]]
    assert (folders["a"] / "model.safetensors").read_bytes() == before


def test_another_number_of_slots_changes_no_text(keeper: ModelKeeper, folders: dict[str, Path], fresh: Any) -> None:
    spec = f"local:{folders['a']}"
    expected = fresh(spec)
    with keeper.keeping():
        answers(spec)
        assert answers(spec, concurrency=8) == expected


def test_nothing_is_kept_outside_of_a_run_or_beside_a_training(keeper: ModelKeeper, folders: dict[str, Path]) -> None:
    spec = f"local:{folders['a']}"
    answers(spec)
    assert keeper._kept is None
    with keeper.keeping():
        answers(spec)
        assert keeper._kept is not None
        keeper.drop()
        assert keeper._kept is None
        answers(spec)
    assert keeper._kept is None
