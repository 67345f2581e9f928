"""The bound on activations holds for what training keeps, and is given only for models whose layers it knows."""

import pytest
import torch
from transformers import GPT2Config, MixtralConfig

from skillmix.training.data.batches import pack
from skillmix.training.step.engine import activation_bytes
from skillmix.training.step.packed_model import PackedModel, inputs_of
from tests.training.tiny import VOCABULARY, example, tiny_model


def test_the_bound_is_above_what_the_forward_pass_keeps() -> None:
    model = PackedModel(tiny_model(layers=4).bfloat16())
    batch = pack([example(200, seed=number) for number in range(4)])
    kept: dict[int, int] = {}

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        kept[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    weights = {p.untyped_storage().data_ptr() for p in model.parameters()}
    inputs = inputs_of(batch, shares=batch.rows * 0.0)
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        model(inputs)

    per_token = activation_bytes(model.causal.config)
    activations = sum(size for pointer, size in kept.items() if pointer not in weights)
    assert per_token is not None
    logits = 12 * VOCABULARY * 800
    assert activations < 800 * per_token + logits < 10 * activations


@pytest.mark.parametrize("config", [MixtralConfig(), GPT2Config()])
def test_layers_that_it_does_not_know_have_no_bound(config: object) -> None:
    assert activation_bytes(config) is None
