"""Convert a GGUF file of SmolLM2 into a Hugging Face checkpoint, without the importer of transformers.

The end token that the importer writes depends on the version of transformers (`<|im_start|>` in 5.0 to 5.17). It also
loses the splitting of digits, and it needs accelerate. This module writes every file of the checkpoint from the fields
of the GGUF file, so the checkpoint is the same to the bit with any installed versions. It is right for any loader:
`<|im_end|>` ends a turn everywhere, there are no sampling settings, digits are split first, and the chat template is
SmolLM2's own, which puts a system turn first if a conversation has none.

Weights are stored in fp32. A 4-bit weight is a half-precision scale times 0 to 15 plus a half-precision offset, and the
embeddings are 8-bit. bf16 would round 79 % of all values again and fp16 42 %; fp32 keeps every value.
"""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from skillmix.errors import UserError

if TYPE_CHECKING:
    from gguf import GGUFReader, ReaderTensor

WEIGHTS: Final = "model.safetensors"
FILES: Final = (
    WEIGHTS,
    "config.json",
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "chat_template.jinja",
)

_OUTSIDE_LAYERS: Final = {"token_embd.weight": "model.embed_tokens.weight", "output_norm.weight": "model.norm.weight"}
_IN_LAYERS: Final = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_HEADS_FIELD: Final = {"attn_q": "llama.attention.head_count", "attn_k": "llama.attention.head_count_kv"}
_CONTROL_TOKEN: Final = 3
_KNOWN_TOKENS: Final = {
    "Hello world! 123": [19556, 905, 17, 216, 33, 34, 35],
    "12345\n\n1.  2": [33, 34, 35, 36, 37, 1116, 33, 30, 256, 34],
    "<|im_start|>user\n": [1, 4093, 198],
}
"""Token ids from llama.cpp. No token has two digits; without the splitting, only blanks before a digit differ."""


def write_checkpoint(gguf_file: Path, folder: Path) -> None:
    """Write the files of a checkpoint into an empty folder."""
    from gguf import GGUFReader

    reader = GGUFReader(gguf_file)
    _check_is_smollm(reader)
    _write_json(folder / "config.json", _config(reader))
    _write_json(folder / "generation_config.json", _end_tokens(reader))
    _write_json(folder / "tokenizer.json", _tokenizer(reader))
    _write_json(folder / "tokenizer_config.json", _tokenizer_config(reader))
    (folder / "chat_template.jinja").write_text(_field(reader, "tokenizer.chat_template"), encoding="utf-8")
    _check_tokenizer(folder / "tokenizer.json")
    _write_weights(reader, folder / WEIGHTS)


def _check_is_smollm(reader: "GGUFReader") -> None:
    kind = _field(reader, "general.architecture"), _field(reader, "tokenizer.ggml.pre")
    if kind != ("llama", "smollm"):
        raise UserError(
            f"The GGUF file holds a model of kind {kind}.", hint="Only SmolLM and SmolLM2 can be converted."
        )


def _config(reader: "GGUFReader") -> dict[str, object]:
    heads = _field(reader, "llama.attention.head_count")
    width = _field(reader, "llama.embedding_length")
    theta = _field(reader, "llama.rope.freq_base")
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": _field(reader, "llama.vocab_size"),
        "hidden_size": width,
        "intermediate_size": _field(reader, "llama.feed_forward_length"),
        "num_hidden_layers": _field(reader, "llama.block_count"),
        "num_attention_heads": heads,
        "num_key_value_heads": _field(reader, "llama.attention.head_count_kv"),
        "head_dim": width // heads,
        "hidden_act": "silu",
        "max_position_embeddings": _field(reader, "llama.context_length"),
        "rms_norm_eps": float(f"{_field(reader, 'llama.attention.layer_norm_rms_epsilon'):.3g}"),
        # transformers 4 reads the first, transformers 5 the second.
        "rope_theta": theta,
        "rope_parameters": {"rope_theta": theta, "rope_type": "default"},
        "attention_bias": False,
        "mlp_bias": False,
        "attention_dropout": 0.0,
        "tie_word_embeddings": all(tensor.name != "output.weight" for tensor in reader.tensors),
        "dtype": "float32",
        **_end_tokens(reader),
    }


def _end_tokens(reader: "GGUFReader") -> dict[str, int]:
    """The only fields of the generation config, since decoding settings come from the request."""
    names = {"bos": "bos", "eos": "eos", "pad": "padding"}
    return {f"{ours}_token_id": _field(reader, f"tokenizer.ggml.{theirs}_token_id") for ours, theirs in names.items()}


def _tokenizer(reader: "GGUFReader") -> dict[str, object]:
    tokens: list[str] = _field(reader, "tokenizer.ggml.tokens")
    kinds: list[int] = _field(reader, "tokenizer.ggml.token_type")
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [
            {"id": number, "content": token, **flags}
            for number, (token, kind) in enumerate(zip(tokens, kinds, strict=True))
            if kind == _CONTROL_TOKEN
        ],
        "normalizer": None,
        "pre_tokenizer": {
            "type": "Sequence",
            "pretokenizers": [{"type": "Digits", "individual_digits": True}, byte_level],
        },
        "post_processor": None,
        "decoder": byte_level,
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": False,
            "vocab": {token: number for number, token in enumerate(tokens)},
            "merges": [merge.split(" ") for merge in _field(reader, "tokenizer.ggml.merges")],
        },
    }


def _tokenizer_config(reader: "GGUFReader") -> dict[str, object]:
    tokens = _field(reader, "tokenizer.ggml.tokens")
    names = {"bos": "bos", "eos": "eos", "pad": "padding", "unk": "unknown"}
    return {
        # Not the published GPT2Tokenizer: transformers 5 gives that class a pre-tokenizer that does not split digits.
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": _field(reader, "llama.context_length"),
        # Without it transformers 4 adds token_type_ids, which `generate` refuses.
        "model_input_names": ["input_ids", "attention_mask"],
        "clean_up_tokenization_spaces": False,
        **{
            f"{ours}_token": tokens[_field(reader, f"tokenizer.ggml.{theirs}_token_id")]
            for ours, theirs in names.items()
        },
    }


def _check_tokenizer(path: Path) -> None:
    import tokenizers

    tokenizer = tokenizers.Tokenizer.from_file(str(path))
    wrong = [text for text, ids in _KNOWN_TOKENS.items() if tokenizer.encode(text).ids != ids]
    if wrong:
        raise UserError(
            f"tokenizers {tokenizers.__version__} splits {wrong[0]!r} differently from SmolLM2's own tokenizer.",
            hint="Install another version of tokenizers: pip install --upgrade transformers.",
        )


def _write_weights(reader: "GGUFReader", path: Path) -> None:
    from safetensors.numpy import save_file

    heads = {name: int(_field(reader, field)) for name, field in _HEADS_FIELD.items()}
    weights = {_name(tensor.name): _values(tensor, heads) for tensor in reader.tensors}
    save_file(weights, path, metadata={"format": "pt"})
    path.chmod((path.parent / "config.json").stat().st_mode)  # safetensors makes its files readable by their owner only


def _name(name: str) -> str:
    """A tensor's name in the checkpoint.

    >>> _name("blk.7.ffn_up.weight")
    'model.layers.7.mlp.up_proj.weight'
    """
    if name in _OUTSIDE_LAYERS:
        return _OUTSIDE_LAYERS[name]
    _, layer, part, kind = name.split(".")
    return f"model.layers.{layer}.{_IN_LAYERS[part]}.{kind}"


def _values(tensor: "ReaderTensor", heads: dict[str, int]) -> Any:
    from gguf import dequantize

    values = dequantize(tensor.data, tensor.tensor_type)
    part = tensor.name.split(".")[-2]
    if part not in heads:
        return values.copy()  # without quantisation the values are a view of the file
    # GGUF interleaves the two halves of a head, as llama.cpp rotates them; transformers stores them in a row.
    rows, columns = values.shape
    return values.reshape(heads[part], rows // heads[part] // 2, 2, columns).swapaxes(1, 2).reshape(rows, columns)


def _field(reader: "GGUFReader", name: str) -> Any:
    field = reader.get_field(name)
    if field is None:
        raise UserError(f"The GGUF file has no field {name}.", hint="Use the file that the package ships.")
    return field.contents()


def _write_json(path: Path, value: object) -> None:
    path.write_text(json.dumps(value, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")
