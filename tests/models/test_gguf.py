"""A tiny GGUF file, made here, becomes the checkpoint that it was made from."""

import json
from pathlib import Path
from typing import Any

import pytest

from skillmix.errors import UserError
from skillmix.models import gguf as gguf_checkpoint
from skillmix.models.gguf import FILES, write_checkpoint

gguf = pytest.importorskip("gguf", reason="gguf is not installed: pip install 'skillmix[local]'")
safetensors = pytest.importorskip("safetensors.numpy", reason="safetensors is not installed")
numpy = pytest.importorskip("numpy")

WIDTH, HEADS, PAIRS, VOCABULARY = 64, 4, 2, ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "a", "b", "ab"]
TEMPLATE = "{{ messages }}"
ALONE = {"token_embd": "model.embed_tokens", "output_norm": "model.norm"}
LAYER = {
    "attn_q": ("self_attn.q_proj", WIDTH),
    "attn_k": ("self_attn.k_proj", WIDTH // 2),
    "attn_v": ("self_attn.v_proj", WIDTH // 2),
    "attn_output": ("self_attn.o_proj", WIDTH),
    "ffn_up": ("mlp.up_proj", WIDTH),
}


def interleaved(weight: Any, heads: int) -> Any:
    """What llama.cpp's converter does to the rows of queries and keys."""
    rows, columns = weight.shape
    return weight.reshape(heads, 2, rows // heads // 2, columns).swapaxes(1, 2).reshape(rows, columns)


def written(path: Path, *, pre: str = "smollm") -> dict[str, Any]:
    """A GGUF file with the tensors that are returned, under the names that transformers has for them."""
    draw = numpy.random.default_rng(1)
    writer = gguf.GGUFWriter(path, "llama")
    for add, value in (
        (writer.add_context_length, 128),
        (writer.add_embedding_length, WIDTH),
        (writer.add_feed_forward_length, WIDTH),
        (writer.add_block_count, 1),
        (writer.add_head_count, HEADS),
        (writer.add_head_count_kv, PAIRS),
        (writer.add_vocab_size, len(VOCABULARY)),
        (writer.add_rope_freq_base, 100000.0),
        (writer.add_layer_norm_rms_eps, 1e-5),
        (writer.add_tokenizer_model, "gpt2"),
        (writer.add_tokenizer_pre, pre),
        (writer.add_token_list, VOCABULARY),
        (writer.add_token_types, [3, 3, 3, 1, 1, 1]),
        (writer.add_token_merges, ["a b"]),
        (writer.add_bos_token_id, 1),
        (writer.add_eos_token_id, 2),
        (writer.add_pad_token_id, 2),
        (writer.add_unk_token_id, 0),
        (writer.add_chat_template, TEMPLATE),
    ):
        add(value)
    tensors = {}
    for name, ours in ALONE.items():
        shape = (WIDTH,) if name == "output_norm" else (len(VOCABULARY), WIDTH)
        tensors[f"{ours}.weight"] = draw.standard_normal(shape).astype("float32")
        writer.add_tensor(f"{name}.weight", tensors[f"{ours}.weight"])
    for name, (ours, rows) in LAYER.items():
        kind = gguf.GGMLQuantizationType.Q4_1
        packed = gguf.quantize(draw.standard_normal((rows, WIDTH)).astype("float32"), kind)
        values = gguf.dequantize(packed, kind)
        if name in ("attn_q", "attn_k"):
            packed = interleaved(packed, HEADS if name == "attn_q" else PAIRS)
        tensors[f"model.layers.0.{ours}.weight"] = values
        writer.add_tensor(f"blk.0.{name}.weight", packed, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return tensors


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(gguf_checkpoint, "_KNOWN_TOKENS", {"ab<|im_end|>": [5, 2]})
    made = tmp_path / "checkpoint"
    made.mkdir()
    return made


def document(path: Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8"))


def test_every_value_is_kept_and_rows_of_heads_are_put_back(tmp_path: Path, folder: Path) -> None:
    tensors = written(tmp_path / "tiny.gguf")

    write_checkpoint(tmp_path / "tiny.gguf", folder)

    loaded = safetensors.load_file(folder / "model.safetensors")
    assert set(loaded) == set(tensors)
    assert all((loaded[name] == tensors[name]).all() for name in tensors)
    assert {str(tensor.dtype) for tensor in loaded.values()} == {"float32"}


def test_files_say_what_the_gguf_file_says(tmp_path: Path, folder: Path) -> None:
    written(tmp_path / "tiny.gguf")

    write_checkpoint(tmp_path / "tiny.gguf", folder)

    assert {path.name for path in folder.iterdir()} == set(FILES)
    config = document(folder / "config.json")
    assert (config["num_attention_heads"], config["num_key_value_heads"], config["head_dim"]) == (HEADS, PAIRS, 16)
    assert (config["rope_theta"], config["rms_norm_eps"]) == (100000.0, 1e-5)
    assert config["tie_word_embeddings"] is True
    assert document(folder / "generation_config.json") == {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 2}
    words = document(folder / "tokenizer_config.json")
    ends = [words[f"{name}_token"] for name in ("bos", "eos", "pad", "unk")]
    assert ends == ["<|im_start|>", "<|im_end|>", "<|im_end|>", "<|endoftext|>"]
    assert (folder / "chat_template.jinja").read_text(encoding="utf-8") == TEMPLATE


def test_tokenizer_that_splits_otherwise_than_known_is_refused(
    tmp_path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written(tmp_path / "tiny.gguf")
    monkeypatch.setattr(gguf_checkpoint, "_KNOWN_TOKENS", {"ab": [3, 4]})

    with pytest.raises(UserError, match="splits 'ab' differently"):
        write_checkpoint(tmp_path / "tiny.gguf", folder)


def test_file_of_another_kind_is_refused(tmp_path: Path, folder: Path) -> None:
    written(tmp_path / "tiny.gguf", pre="llama-bpe")

    with pytest.raises(UserError, match=r"of kind \('llama', 'llama-bpe'\)"):
        write_checkpoint(tmp_path / "tiny.gguf", folder)
