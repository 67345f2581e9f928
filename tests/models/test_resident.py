"""The model that stays in memory: the next model of its architecture writes the same texts as in a fresh process."""

import asyncio
import sys
import threading
from collections.abc import AsyncIterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from skillmix.calls import Decoding, GenerateKey, Message, Reply, Request
from skillmix.errors import UserError
from skillmix.models.local import model as local_model
from skillmix.models.local import resident as resident_module
from skillmix.models.local.model import LocalModel
from skillmix.models.local.resident import ModelKeeper, free_device_memory
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
    """Checkpoints `a` and `b` of one architecture, `other` of another, and an adapter for `a`."""
    root = tmp_path_factory.mktemp("models")
    made = {name: write_checkpoint(root / name) for name in ("a", "b")}
    change_weights(made["b"] / "model.safetensors", lambda tensors: {n: -2 * t for n, t in tensors.items()})
    made["other"] = write_checkpoint(root / "other", tied=False)
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


def test_the_next_model_of_an_architecture_writes_its_own_texts(
    keeper: ModelKeeper, folders: dict[str, Path], fresh: Any
) -> None:
    specs = [f"local:{folders[name]}" for name in ("a", "b", "a")]
    expected = [fresh(spec) for spec in specs]
    assert expected[0] != expected[1]
    with keeper.keeping():
        assert [answers(spec) for spec in specs] == expected


def test_models_that_are_loaded_at_the_same_time_leave_weights_tied(folders: dict[str, Path]) -> None:
    from transformers import LlamaForCausalLM

    from skillmix.models.local.loading import load

    with ThreadPoolExecutor(4) as pool:
        names = ["a", "b"] * 8
        loaded = list(pool.map(lambda name: load(folders[name], device="cpu").model, names))
    made = LlamaForCausalLM(loaded[0].config)
    assert all(model.lm_head.weight is model.model.embed_tokens.weight for model in (*loaded, made))


def test_weights_are_replaced_in_place_unless_something_else_may_hold_copies_of_them(folders: dict[str, Path]) -> None:
    from skillmix.models.checkpoints import Checkpoint
    from skillmix.models.local.loading import fits, load, read_stored, replace_weights

    model, wanted = (load(folders[name], device="cpu").model for name in ("a", "b"))
    stored = read_stored(Checkpoint(folders["b"]), is_pinned=False)
    parameters = list(model.parameters())
    assert fits(model, stored)
    replace_weights(model, stored)
    assert all(now is before for now, before in zip(model.parameters(), parameters, strict=True))
    pairs = zip(model.state_dict().values(), wanted.state_dict().values(), strict=True)
    assert all(torch.equal(*pair) for pair in pairs)
    assert not fits(model, read_stored(Checkpoint(folders["other"]), is_pinned=False))
    layer = model.model.layers[0].mlp
    layer.forward = layer.forward
    assert not fits(model, stored)


def test_an_adapter_is_merged_into_fresh_weights_of_its_base(
    keeper: ModelKeeper, folders: dict[str, Path], fresh: Any
) -> None:
    base, tuned = f"local:{folders['a']}", f"local:{folders['a']}+{folders['adapter']}"
    expected = [fresh(spec) for spec in (base, tuned)]
    before = (folders["a"] / "model.safetensors").read_bytes()
    with keeper.keeping():
        assert [answers(spec) for spec in (base, tuned, tuned, base)] == [*expected, expected[1], expected[0]]
    assert (folders["a"] / "model.safetensors").read_bytes() == before


def test_a_model_of_another_architecture_is_loaded_anew(
    keeper: ModelKeeper, folders: dict[str, Path], fresh: Any
) -> None:
    first, other = f"local:{folders['a']}", f"local:{folders['other']}"
    expected = fresh(other)
    with keeper.keeping():
        answers(first)
        before = keeper._kept
        assert answers(other) == expected
        assert keeper._kept is not None
        assert keeper._kept is not before


def test_keys_and_values_of_a_broken_model_do_not_reach_the_next(
    keeper: ModelKeeper, folders: dict[str, Path], fresh: Any, tmp_path: Path
) -> None:
    broken = write_checkpoint(tmp_path / "broken")
    change_weights(broken / "model.safetensors", lambda tensors: {n: t * float("nan") for n, t in tensors.items()})
    spec = f"local:{folders['a']}"
    expected = fresh(spec)
    with keeper.keeping():
        answers(f"local:{broken}")
        assert answers(spec) == expected


def test_another_number_of_slots_changes_no_text(keeper: ModelKeeper, folders: dict[str, Path], fresh: Any) -> None:
    first, second = f"local:{folders['a']}", f"local:{folders['b']}"
    expected = fresh(second)
    with keeper.keeping():
        answers(first)
        assert answers(second, concurrency=8) == expected


def test_nothing_is_kept_or_read_outside_of_a_run(keeper: ModelKeeper, folders: dict[str, Path]) -> None:
    answers(f"local:{folders['a']}")
    keeper.read_ahead(parse_spec(f"local:{folders['a']}"))
    assert keeper._kept is None
    assert keeper._ahead is None
    with keeper.keeping():
        answers(f"local:{folders['a']}")
        assert keeper._kept is not None
    assert keeper._kept is None


def test_a_model_that_was_read_ahead_is_not_read_again(
    keeper: ModelKeeper, folders: dict[str, Path], fresh: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = f"local:{folders['a']}", f"local:{folders['b']}"
    expected = [fresh(first), fresh(second)]
    read: list[str] = []
    before = resident_module._read_checkpoint

    def noted(*arguments: Any, **keywords: Any) -> Any:
        read.append(threading.current_thread().name)
        return before(*arguments, **keywords)

    monkeypatch.setattr(resident_module, "_read_checkpoint", noted)
    with keeper.keeping():
        for spec, texts in zip((first, second), expected, strict=True):
            keeper.read_ahead(parse_spec(spec))
            _wait_for(keeper)
            with monkeypatch.context() as patch:
                patch.setattr("skillmix.models.local.loading.AutoTokenizer", None)
                assert answers(spec) == texts
    assert read == ["skillmix-ahead"] * 2


def _wait_for(keeper: ModelKeeper) -> None:
    assert keeper._ahead is not None
    keeper._ahead.result.result(timeout=60)


def test_files_that_change_after_they_were_read_ahead_are_read_again(
    keeper: ModelKeeper, folders: dict[str, Path], fresh: Any, tmp_path: Path
) -> None:
    folder = write_checkpoint(tmp_path / "changing")
    expected = fresh(f"local:{folders['b']}")
    with keeper.keeping():
        keeper.read_ahead(parse_spec(f"local:{folder}"))
        _wait_for(keeper)
        change_weights(folder / "model.safetensors", lambda tensors: {n: -2 * t for n, t in tensors.items()})
        assert answers(f"local:{folder}") == expected


def test_an_error_while_reading_ahead_shows_only_when_the_model_is_used(
    keeper: ModelKeeper, folders: dict[str, Path], fresh: Any, tmp_path: Path
) -> None:
    damaged = write_checkpoint(tmp_path / "damaged")
    (damaged / "model.safetensors").write_bytes(b"no weights")
    good = f"local:{folders['a']}"
    expected = fresh(good)
    with keeper.keeping():
        for spec in (f"local:{damaged}", f"local:{tmp_path / 'missing'}"):
            keeper.read_ahead(parse_spec(spec))
            _wait_for(keeper)
            assert answers(good) == expected
            keeper.read_ahead(parse_spec(spec))
            with pytest.raises(UserError):
                answers(spec)
        assert answers(good) == expected


def test_the_announced_model_is_read_while_the_last_rows_are_written(
    keeper: ModelKeeper, folders: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(local_model, "_SOON", 0.0)
    next_spec = parse_spec(f"local:{folders['b']}")
    with keeper.keeping():
        keeper.announce(next_spec)
        answers(f"local:{folders['a']}")
        _wait_for(keeper)
        assert keeper._ahead is not None
        assert keeper._ahead.spec == next_spec


def test_training_gets_the_memory_of_the_slots_and_then_of_the_model(
    keeper: ModelKeeper, folders: dict[str, Path], fresh: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    shares = iter((0.6, 0.4, 0.6, 0.3, 0.4))
    monkeypatch.setattr(resident_module, "_free_share", lambda: next(shares))
    spec = f"local:{folders['a']}"
    expected = fresh(spec)
    with keeper.keeping():
        answers(spec)
        keeper.make_room()
        assert keeper._kept is not None
        assert keeper._kept.generator is not None
        keeper.make_room()
        assert keeper._kept is not None
        assert keeper._kept.generator is None
        assert answers(spec) == expected
        keeper.make_room()
        assert keeper._kept is None
        assert answers(spec) == expected


def test_no_memory_is_freed_while_torch_is_still_being_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    half = ModuleType("torch")
    monkeypatch.setitem(sys.modules, "torch", half)
    free_device_memory()

    half.cuda = ModuleType("torch.cuda")  # type: ignore[attr-defined]
    free_device_memory()
