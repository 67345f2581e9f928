"""Attention over slots; each conversation has a slot, a fixed row of memory for its keys and values.

The `update` method of a cache returns `StoredKeys` in place of values; `StoredKeys` then computes the attention.
"""

from typing import Any, Final, Protocol

import torch
from transformers import AttentionInterface

ATTENTION = "skillmix_slots"
"""The name by which transformers finds `slot_attention`."""


class CacheShape:
    """The properties of a model that determine the size of its cache."""

    def __init__(self, model: Any) -> None:
        config = model.config.get_text_config()
        heads = config.num_attention_heads
        self.layers: int = config.num_hidden_layers
        self.heads: int = getattr(config, "num_key_value_heads", None) or heads
        self.groups = heads // self.heads
        self.head_size: int = getattr(config, "head_dim", None) or config.hidden_size // heads
        self.dtype: torch.dtype = model.dtype
        self.device: torch.device = model.device

    @property
    def bytes_per_token(self) -> int:
        """The bytes of cache memory for one token of a conversation."""
        return 2 * self.layers * self.heads * self.head_size * int(self.dtype.itemsize)


class StoredKeys(Protocol):
    """The keys and values of all slots in one layer."""

    def attend(self, query: torch.Tensor, key: Any, *, scaling: float) -> torch.Tensor:
        """Compute the attention of new tokens, whose own keys are `key`, to everything before them in their slots."""


_OTHER_ATTENTION: Final = ("sliding_window", "softcap", "s_aux", "position_bias")
"""Arguments by which a model requests something other than plain attention to all earlier tokens."""


def slot_attention(
    module: Any,
    query: torch.Tensor,
    key: Any,
    value: StoredKeys,
    attention_mask: torch.Tensor | None,
    scaling: float | None = None,
    **options: Any,
) -> tuple[torch.Tensor, None]:
    """Compute attention over slots, with the signature that transformers requires."""
    if any(options.get(name) is not None for name in _OTHER_ATTENTION):
        raise NotImplementedError("slots support plain attention only")
    return value.attend(query, key, scaling=scaling or query.shape[-1] ** -0.5), None


AttentionInterface.register(ATTENTION, slot_attention)


def prepared(model: Any) -> Any:
    """Prepare a model so that its attention reads from slots."""
    model.set_attn_implementation(ATTENTION)
    return model.eval().requires_grad_(False)
