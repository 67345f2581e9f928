"""A checkpoint is loaded whole or refused: what its files lack would be random numbers in the model."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from skillmix.errors import UserError
from skillmix.models.checkpoints import Checkpoint
from tests.models.tiny_checkpoint import Tensors, change_weights, torch, write_adapter, write_checkpoint

QUERY = "model.layers.1.self_attn.q_proj.weight"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_checkpoint(tmp_path / "base")


def load(checkpoint: Path | Checkpoint) -> object:
    from skillmix.models.local.loading import read_checkpoint

    return read_checkpoint(checkpoint, dtype=torch.float32, device="cpu")[0]


def renamed(tensors: Tensors) -> Tensors:
    return {name.replace("layers", "blocks"): tensor for name, tensor in tensors.items()}


def without(name: str) -> Callable[[Tensors], Tensors]:
    return lambda tensors: {key: tensor for key, tensor in tensors.items() if key != name}


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (without(QUERY), f"has no weights for {QUERY}."),
        (without("model.embed_tokens.weight"), "has no weights for "),
        (lambda t: {**t, "model.extra.weight": t[QUERY].clone()}, "architecture lacks: model.extra.weight"),
        (lambda t: {**t, QUERY: t[QUERY][:, :8]}, f"has weights of another shape for {QUERY}"),
        (renamed, r"and 15 more \(18 in all\); it has weights that its architecture lacks"),
    ],
)
def test_weights_that_do_not_all_load_are_an_error_with_their_names(
    folder: Path, change: Callable[[Tensors], Tensors], said: str
) -> None:
    change_weights(folder / "model.safetensors", change)

    with pytest.raises(UserError, match=said):
        load(folder)


@pytest.mark.parametrize(
    "change",
    [
        lambda tensors: tensors,
        lambda tensors: {**tensors, "lm_head.weight": tensors["model.embed_tokens.weight"].clone()},
        lambda tensors: {**tensors, "model.layers.0.self_attn.rotary_emb.inv_freq": torch.ones(4)},
    ],
    ids=["tied", "tied and stored", "a rotary buffer"],
)
def test_what_a_model_computes_for_itself_need_not_be_in_its_files(
    folder: Path, change: Callable[[Tensors], Tensors]
) -> None:
    change_weights(folder / "model.safetensors", change)

    load(folder)


def test_an_output_embedding_that_is_not_tied_must_be_there(tmp_path: Path) -> None:
    folder = write_checkpoint(tmp_path / "untied", tied=False)
    load(folder)
    change_weights(folder / "model.safetensors", without("lm_head.weight"))

    with pytest.raises(UserError, match=r"has no weights for lm_head\.weight"):
        load(folder)


@pytest.mark.parametrize(
    ("key", "value", "said"),
    [
        ("num_hidden_layers", 3, "has no weights for model.layers.2"),
        ("num_hidden_layers", 10**9, "has an invalid value: num_hidden_layers is 1000000000"),
        ("vocab_size", 5_000_000, "describes at least"),
        ("hidden_size", "sixteen", "base"),
        ("model_type", "no-such-model", "base"),
        ("eos_token_id", {"a": 1}, "base"),
    ],
)
def test_a_config_that_does_not_belong_to_the_weights_is_refused(
    folder: Path, key: str, value: object, said: str
) -> None:
    file = folder / "config.json"
    file.write_text(json.dumps({**json.loads(file.read_text("utf-8")), key: value}), encoding="utf-8")

    with pytest.raises(UserError, match=said):
        load(folder)


PREFIX = "base_model.model."


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (without(f"{PREFIX}{QUERY.removesuffix('weight')}lora_B.weight"), "only pairs of LoRA factors"),
        (
            lambda tensors: {name: tensor for name, tensor in tensors.items() if ".layers.1." not in name},
            r"has no weights for model\.layers\.1\.self_attn\.q_proj\.",
        ),
        (lambda tensors: {name: tensor.flatten() for name, tensor in tensors.items()}, "with that shape"),
        (lambda t: {n: tensor[:1] if "lora_A" in n else tensor for n, tensor in t.items()}, "with that shape"),
        (lambda t: {n.replace("layers.1", "layers.9"): tensor for n, tensor in t.items()}, "no weights for"),
    ],
)
def test_an_adapter_that_does_not_fit_is_refused(
    folder: Path, tmp_path: Path, change: Callable[[Tensors], Tensors], said: str
) -> None:
    adapter = write_adapter(tmp_path / "adapter", folder)
    load(Checkpoint(folder, (adapter,)))
    change_weights(adapter / "adapter_model.safetensors", change)

    with pytest.raises(UserError, match=said):
        load(Checkpoint(folder, (adapter,)))


@pytest.mark.parametrize(
    "content",
    [b"", b"short", b"\x80\x04\x95pickle" * 40, b"\xff" * 64, b"\x10\0\0\0\0\0\0\0[1, 2, 3, 4, 5 ]" + bytes(50)],
    ids=["empty", "short", "a pickle", "noise", "a list"],
)
def test_a_file_that_is_not_safetensors_is_refused(folder: Path, tmp_path: Path, content: bytes) -> None:
    adapter = write_adapter(tmp_path / "adapter", folder)
    for file, checkpoint in (
        (adapter / "adapter_model.safetensors", Checkpoint(folder, (adapter,))),
        (folder / "model.safetensors", Checkpoint(folder)),
    ):
        file.write_bytes(content)

        with pytest.raises(UserError):
            load(checkpoint)
        with pytest.raises(UserError):
            checkpoint.weights_hash()


def test_a_truncated_file_is_refused(folder: Path) -> None:
    file = folder / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-100])

    with pytest.raises(UserError):
        load(folder)
    with pytest.raises(UserError, match="invalid entry for the tensor"):
        Checkpoint(folder).weights_hash()
