"""A fused model computes what it computed before, in Triton's interpreter where there is no GPU."""

from collections.abc import Iterator
from copy import deepcopy
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="the extra `local` is not installed")
pytest.importorskip("transformers", reason="the extra `local` is not installed")
pytest.importorskip("triton", reason="CPU builds of torch come without triton")

from transformers import LlamaConfig, LlamaForCausalLM, Qwen3Config, Qwen3ForCausalLM  # noqa: E402
from transformers.models.llama import modeling_llama  # noqa: E402
from transformers.models.qwen3 import modeling_qwen3  # noqa: E402

from skillmix.models.local.gpu import gpu_decoder as fusing  # noqa: E402
from skillmix.models.local.gpu.kernels import rotate  # noqa: E402

SIZES = {
    "vocab_size": 50,
    "hidden_size": 48,
    "intermediate_size": 40,
    "num_hidden_layers": 2,
    "num_attention_heads": 3,
    "num_key_value_heads": 1,
    "head_dim": 16,
}


@pytest.fixture(autouse=True)
def original_functions(kernel_device: str) -> Iterator[None]:
    """Put back what `fuse` replaces in transformers."""
    modules = modeling_llama, modeling_qwen3
    originals = [module.apply_rotary_pos_emb for module in modules]
    yield
    for module, original in zip(modules, originals, strict=True):
        module.apply_rotary_pos_emb = original


def llama(device: str, **settings: Any) -> Any:
    torch.manual_seed(0)
    return LlamaForCausalLM(LlamaConfig(**SIZES, **settings)).to(device).eval().requires_grad_(False)


def qwen(device: str) -> Any:
    torch.manual_seed(0)
    return Qwen3ForCausalLM(Qwen3Config(**SIZES)).to(device).eval().requires_grad_(False)


@pytest.mark.parametrize("make", [llama, qwen])
def test_a_fused_model_computes_the_same(make: Any, kernel_device: str) -> None:
    model = make(kernel_device)
    tokens = torch.arange(14, device=kernel_device).view(2, 7)
    before = model(tokens).logits
    norm = model.model.norm

    fusing.fuse(model)

    assert norm.forward.__module__ == fusing.__name__
    assert torch.allclose(model(tokens).logits, before, atol=1e-3 if kernel_device == "cuda" else 1e-5)


def test_an_mlp_with_another_activation_is_left_alone(kernel_device: str) -> None:
    model = llama(kernel_device, hidden_act="gelu")
    tokens = torch.arange(5, device=kernel_device)[None]
    before = model(tokens).logits

    fusing.fuse(model)

    assert "forward" not in vars(model.model.layers[0].mlp)
    assert torch.allclose(model(tokens).logits, before, atol=1e-3 if kernel_device == "cuda" else 1e-5)


def test_products_with_a_bias_are_left_alone(kernel_device: str) -> None:
    model = llama(kernel_device, attention_bias=True)

    fusing.fuse(model)

    assert "forward" not in vars(model.model.layers[0].self_attn.q_proj)


def test_a_product_of_another_input_is_computed_anew(kernel_device: str) -> None:
    model = llama(kernel_device)
    attention = model.model.layers[0].self_attn
    plain = deepcopy(attention.k_proj)
    fusing.fuse(model)
    first, second = torch.randn(2, 1, 3, 48, device=kernel_device)

    attention.q_proj(first)

    assert torch.allclose(attention.k_proj(second), plain(second), atol=1e-5)


def test_the_kernel_of_rotary_embeddings_takes_tensors_of_any_layout(kernel_device: str) -> None:
    generator = torch.Generator().manual_seed(2)
    query, key = (
        torch.randn(2, 5, heads, 32, generator=generator).to(kernel_device).transpose(1, 2) for heads in (3, 1)
    )
    angles = torch.rand(2, 5, 16, generator=generator).repeat(1, 1, 2).to(kernel_device)

    found = rotate(query, key, angles.cos(), angles.sin())

    wanted = modeling_llama.apply_rotary_pos_emb(query, key, angles.cos(), angles.sin())
    assert all(torch.allclose(one, other, atol=1e-5) for one, other in zip(found, wanted, strict=True))
