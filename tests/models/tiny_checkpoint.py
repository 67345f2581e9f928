"""A checkpoint of a few kilobytes with everything that a real one has, made in a moment."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="the extra `local` is not installed")
pytest.importorskip("transformers", reason="the extra `local` is not installed")

from safetensors.torch import load_file, save_file  # noqa: E402
from tokenizers import Tokenizer, models, pre_tokenizers  # noqa: E402
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedModel, PreTrainedTokenizerFast  # noqa: E402

Tensors = dict[str, Any]
TIE_WEIGHTS = PreTrainedModel.tie_weights


def write_checkpoint(folder: Path, *, tied: bool = True, has_ends: bool = False) -> Path:
    """A Llama of two layers with random weights and a tokenizer of ten words; training needs ends of answers."""
    words = {word: number for number, word in enumerate(["<unk>", "</s>", "a", "b", "c", "d", "e", "f", "g", "h"])}
    backend = Tokenizer(models.WordLevel(words, unk_token="<unk>"))
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend, unk_token="<unk>", eos_token="</s>")
    end = "{% if m.role == 'assistant' %}</s>{% endif %}" if has_ends else ""
    tokenizer.chat_template = "{% for m in messages %}{{ m.content }} " + end + "{% endfor %}"
    config = LlamaConfig(
        vocab_size=len(words),
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        tie_word_embeddings=tied,
        eos_token_id=1,
    )
    with torch.random.fork_rng():
        torch.manual_seed(0)
        # A test that loads a model itself, beside a thread that loads another, may have left weights untied.
        PreTrainedModel.tie_weights = TIE_WEIGHTS
        LlamaForCausalLM(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def write_adapter(folder: Path, base: Path) -> Path:
    """A plain LoRA of rank 2 on one module of each layer, which says what it was made for."""
    folder.mkdir(parents=True)
    factors = {}
    for layer in range(2):
        module = f"base_model.model.model.layers.{layer}.self_attn.q_proj"
        factors[f"{module}.lora_A.weight"] = torch.ones(2, 16)
        factors[f"{module}.lora_B.weight"] = torch.ones(16, 2)
    save_file(factors, folder / "adapter_model.safetensors")
    config = {"peft_type": "LORA", "lora_alpha": 4, "r": 2, "bias": "none", "target_modules": ["q_proj"]}
    (folder / "adapter_config.json").write_text(json.dumps(config), encoding="utf-8")
    lineage = {"kind": "model", "base": {"spec": f"local:{base}"}, "adapter": True, "combinations": ["c1"], "k": [1]}
    (folder / "skillmix.json").write_text(json.dumps(lineage), encoding="utf-8")
    return folder


def change_weights(file: Path, change: Callable[[Tensors], Tensors]) -> None:
    """Write a file of tensors anew."""
    save_file({name: tensor.contiguous() for name, tensor in change(load_file(file)).items()}, file, {"format": "pt"})
