"""A tiny GGUF file, made here, becomes the checkpoint that it was made from."""

import json
from pathlib import Path
from typing import Any

import pytest

from skillmix.models.bundled import _convert

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


def written(path: Path) -> dict[str, Any]:
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
        (writer.add_tokenizer_pre, "smollm"),
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


def test_every_value_is_kept_and_rows_of_heads_are_put_back(tmp_path: Path) -> None:
    tensors = written(tmp_path / "tiny.gguf")
    folder = tmp_path / "checkpoint"
    folder.mkdir()

    _convert(tmp_path / "tiny.gguf", folder)

    loaded = safetensors.load_file(folder / "model.safetensors")
    assert set(loaded) == set(tensors)
    assert all((loaded[name] == tensors[name]).all() for name in tensors)
    assert {str(tensor.dtype) for tensor in loaded.values()} == {"float32"}
    words = json.loads((folder / "tokenizer.json").read_text(encoding="utf-8"))["model"]
    assert list(words["vocab"]) == VOCABULARY
    assert words["merges"] == [["a", "b"]]
    assert (folder / "chat_template.jinja").read_text(encoding="utf-8") == TEMPLATE
