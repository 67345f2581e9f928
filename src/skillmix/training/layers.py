"""Decoder layers: compiled once for all of them and all lengths, recomputed where memory is short."""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch._functorch.config as functorch_config
from torch.utils.checkpoint import checkpoint


def compile_layers(layers: Any, *, is_lean: bool) -> None:
    """Compile the layers' forward; they share their code, so that one compilation serves all.

    Lean layers keep only what takes a matrix product to find again: a third less memory for a few percent of time.
    """
    functorch_config.ban_recompute_materialized_backward = not is_lean
    for layer in layers:
        layer.forward = _with_any_length(torch.compile(layer.forward))


def set_recompute(layers: Any, *, is_on: bool) -> None:
    """Keep only each layer's input, or everything that the backward pass needs."""
    for layer in layers:
        layer.gradient_checkpointing = is_on
        layer._gradient_checkpointing_func = partial(checkpoint, use_reentrant=False)


def _with_any_length(forward: Callable[..., Any]) -> Callable[..., Any]:
    """Tell the compiler which sizes change, so that it does not compile for the first ones it sees."""

    def call(hidden: torch.Tensor, **arguments: Any) -> Any:
        cos, sin = arguments["position_embeddings"]
        for tensor in (hidden, cos, sin, arguments["position_ids"]):
            torch._dynamo.mark_dynamic(tensor, 1)
        torch._dynamo.mark_dynamic(arguments["bounds"], 0)
        return forward(hidden, **arguments)

    return call
