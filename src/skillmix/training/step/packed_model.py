"""A causal language model that computes the loss of a micro-batch without padding."""

from collections.abc import Callable
from functools import partial
from typing import Any, Final

import torch
import torch._functorch.config as functorch_config
from torch import nn
from torch.utils.checkpoint import checkpoint

from skillmix.errors import UserError
from skillmix.training.step.attention import ATTENTION
from skillmix.training.step.inputs import Inputs
from skillmix.training.step.loss import linear_cross_entropy

_MARK: Final = "is_compiled_by_skillmix"


def compile_layers(layers: Any, *, is_lean: bool) -> None:
    """Compile the forward pass of the layers; they share their code, so one compilation serves all of them.

    Lean layers keep only activations that take a matrix product to recompute: a third less memory for a few percent
    more time.
    """
    functorch_config.ban_recompute_materialized_backward = not is_lean
    for layer in layers:
        layer.forward = _with_any_length(layer.forward, torch.compile(layer.forward))


def release_layers(layers: Any) -> None:
    """Let layers run as they are again; a compiled layer refers to itself, so its weights would stay in memory."""
    for layer in layers:
        if getattr(vars(layer).get("forward"), _MARK, False):
            del layer.forward


def set_recompute(layers: Any, *, is_on: bool) -> None:
    """Keep only the input of each layer for the backward pass, or all activations."""
    for layer in layers:
        layer.gradient_checkpointing = is_on
        layer._gradient_checkpointing_func = partial(checkpoint, use_reentrant=False)


def _with_any_length(forward: Callable[..., Any], compiled: Callable[..., Any]) -> Callable[..., Any]:
    """Mark the sizes that vary, so that the compiler does not specialise on the first ones.

    Without gradients the layer runs as it is: one validation would not pay for a second compilation.
    """

    def call(hidden: torch.Tensor, **arguments: Any) -> Any:
        if not torch.is_grad_enabled():
            return forward(hidden, **arguments)
        if not hidden.requires_grad:  # the first layer below an adapter; it would be compiled apart
            hidden = hidden.detach().requires_grad_()
        cos, sin = arguments["position_embeddings"]
        for tensor in (hidden, cos, sin, arguments["position_ids"]):
            torch._dynamo.mark_dynamic(tensor, 1)
        # A number would be compiled in; the size of a tensor may vary.
        arguments["longest"] = torch.empty((arguments["longest"], 0), device=hidden.device)
        for tensor in (arguments["bounds"], arguments["longest"]):
            torch._dynamo.mark_dynamic(tensor, 0)
        return compiled(hidden, **arguments)

    setattr(call, _MARK, True)
    return call


class PackedModel(nn.Module):  # type: ignore[misc]
    """A transformers model, with or without a PEFT adapter, that runs on packed tokens."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model
        causal = model.get_base_model() if hasattr(model, "get_base_model") else model
        _check_architecture(causal)
        self._before = causal.config._attn_implementation, causal.config.use_cache
        causal.set_attn_implementation(ATTENTION)
        causal.config.use_cache = False

    def release(self) -> None:
        """Restore the model's attention, cache and layers, so that it can generate again."""
        release_layers(self.layers)
        attention, self.causal.config.use_cache = self._before
        self.causal.set_attn_implementation(attention)
        self.model.eval()

    @property
    def causal(self) -> Any:
        """The transformers model inside the adapter's wrapper."""
        return self.model.get_base_model() if hasattr(self.model, "get_base_model") else self.model

    @property
    def layers(self) -> Any:
        """The decoder's layers."""
        return self.causal.base_model.layers

    def hidden_states(self, inputs: Inputs) -> torch.Tensor:
        """The last hidden state of every token, (tokens, size)."""
        output = self.causal.base_model(
            input_ids=inputs.tokens[None],
            position_ids=inputs.positions[None],
            bounds=inputs.bounds,
            longest=inputs.longest,
            use_cache=False,
        )
        hidden: torch.Tensor = output.last_hidden_state[0]
        return hidden

    def forward(self, inputs: Inputs) -> tuple[torch.Tensor, torch.Tensor]:
        """The weighted loss, and the loss of each trained token."""
        hidden = self.hidden_states(inputs).index_select(0, inputs.rows)
        head = self.causal.get_output_embeddings()
        return linear_cross_entropy(hidden, head.weight, inputs.targets, inputs.shares)


def _check_architecture(causal: Any) -> None:
    """Refuse models whose attention or output layer is computed differently than training assumes."""
    config, name = causal.config.get_text_config(), type(causal).__name__
    head = causal.get_output_embeddings()
    if not getattr(causal, "_supports_attention_backend", False):
        raise UserError(
            f"{name} has its own attention, which cannot keep packed conversations apart.",
            hint="Choose a base whose attention transformers can replace, such as a Llama or a Mistral.",
        )
    for setting in ("final_logit_softcapping", "attn_logit_softcapping", "logit_scale", "logits_scaling"):
        if getattr(config, setting, None) not in (None, 1, 1.0):
            raise UserError(
                f"{name} changes its logits by {setting}, which training does not support.",
                hint="Choose a base without this setting in its config.json.",
            )
    if getattr(config, "attention_dropout", 0):
        raise UserError(f"{name} has attention dropout.", hint="Set attention_dropout to 0 in its config.json.")
    if type(head) is not nn.Linear or head.bias is not None:
        raise UserError(f"The output layer of {name} is not a plain matrix.", hint="Leave it out of the adapter.")
