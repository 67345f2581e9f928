"""Packed conversations have the losses that each has alone, in every family of models that can be trained."""

from typing import Any

import numpy as np
import pytest
import torch
import transformers

from skillmix.errors import UserError
from skillmix.training.data.batches import pack
from skillmix.training.data.examples import Example
from skillmix.training.step.packed_model import PackedModel, inputs_of

COMMON = {
    "vocab_size": 97,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}
HEADS, WINDOW, EXPERTS = {"head_dim": 8}, {"sliding_window": 8}, {"num_experts_per_tok": 2}
TRAINED: dict[str, dict[str, Any]] = {
    "Llama": {},
    "Mistral": WINDOW,
    "Qwen2": {},
    "Qwen3": HEADS,
    "Gemma3Text": HEADS | WINDOW,
    "Phi3": {},
    "Olmo": {},
    "Olmo3": WINDOW,
    "Mixtral": EXPERTS | {"num_local_experts": 4},
    "Qwen3Moe": HEADS | EXPERTS | {"num_experts": 4, "moe_intermediate_size": 16},
    "Granite": {},
}
REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "Gemma2": (HEADS, "final_logit_softcapping, attn_logit_softcapping"),
    "Granite": ({"logits_scaling": 8.0}, "logits by logits_scaling"),
    "Phi": ({}, "output layer is not a plain matrix"),
    "GptOss": (HEADS | EXPERTS | WINDOW | {"num_local_experts": 4}, "sinks"),
    "Lfm2": ({"layer_types": ["conv", "full_attention"]}, "layers of the kind conv"),
    "DeepseekV3": ({"num_key_value_heads": 4, "first_k_dense_replace": 2}, "keys and values of different sizes"),
    "Falcon": ({}, "cannot keep packed conversations apart"),
}


def model_of(family: str, settings: dict[str, Any]) -> Any:
    config = getattr(transformers, f"{family}Config")(**COMMON | settings)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return transformers.AutoModelForCausalLM.from_config(config).eval()


@pytest.mark.parametrize("family", TRAINED)
@torch.no_grad()  # type: ignore[untyped-decorator]
def test_packed_conversations_have_the_losses_that_each_has_alone(family: str) -> None:
    model, rng = model_of(family, TRAINED[family]), np.random.default_rng(0)
    examples = [
        Example(str(length), rng.integers(3, 97, length).astype(np.int32), np.arange(length) > 2, is_replay=False)
        for length in (30, 17, 41)
    ]
    expected = []
    for example in examples:
        tokens = torch.from_numpy(example.tokens).long()
        logits = model(tokens[None]).logits[0].float()
        expected.append(torch.nn.functional.cross_entropy(logits[2:-1], tokens[3:], reduction="none"))

    batch = pack(examples)
    _, losses = PackedModel(model)(inputs_of(batch, shares=np.ones(len(batch.rows))))

    assert torch.allclose(losses, torch.cat(expected), atol=1e-5)


@pytest.mark.parametrize("family", REFUSED)
def test_layers_that_mix_packed_conversations_are_refused(family: str) -> None:
    settings, fault = REFUSED[family]

    with pytest.raises(UserError, match=fault):
        PackedModel(model_of(family, settings))
