"""Fused norms and MLPs compute what the model's own layers compute, or are not used."""

from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="the extra `local` is not installed")
pytest.importorskip("transformers", reason="the extra `local` is not installed")

from skillmix.models.local.cpu.cpu_decoder import fuse_layers, make_rows_independent  # noqa: E402
from tests.models.test_cpu_products import small_model  # noqa: E402

pytestmark = pytest.mark.machine


def fused_model(model: Any) -> Any:
    make_rows_independent(model)
    fuse_layers(model)
    return model


def is_fused(module: Any) -> bool:
    return "forward" in vars(module)


def test_a_fused_model_computes_the_same() -> None:
    tokens = torch.arange(40)[None] % 300
    plain = small_model()(tokens).logits

    model = fused_model(small_model())

    assert torch.allclose(model(tokens).logits, plain, atol=1e-4)
    assert is_fused(model.model.norm)


def test_a_norm_with_a_formula_of_its_own_stays() -> None:
    model = small_model()
    norm = model.model.norm
    kind = type("ShiftedRMSNorm", (type(norm),), {"forward": lambda self, rows: rows * (1 + self.weight)})
    norm.__class__ = kind

    assert not is_fused(fused_model(model).model.norm)


def test_an_mlp_with_another_activation_stays() -> None:
    model = small_model()
    for layer in model.model.layers:
        layer.mlp.act_fn = torch.nn.GELU()

    assert not any(is_fused(layer.mlp) for layer in fused_model(model).model.layers)
