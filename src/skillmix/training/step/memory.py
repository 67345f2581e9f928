"""An upper bound of the memory that activations take, from the sizes in a model's config."""

from typing import Any, Final

from skillmix.training.step.loss import LOGITS

_EXPERTS: Final = ("num_experts", "num_local_experts", "n_routed_experts")
_LOGIT_BYTES: Final = 12
"""Bytes of a logit, with its gradient and what is computed in between."""


class ActivationBound:
    """Bytes that the activations of a micro-batch take at most, if none of them are recomputed."""

    def __init__(self, per_token: int, vocabulary: int) -> None:
        self._per_token, self._vocabulary = per_token, vocabulary

    def bytes(self, tokens: int) -> int:
        """Bytes for a micro-batch of some tokens, all of them targets."""
        return tokens * self._per_token + _LOGIT_BYTES * min(LOGITS, tokens * self._vocabulary)

    def tokens(self, free: float) -> int:
        """Tokens whose activations surely fit into some bytes."""
        return max(0, int((free - _LOGIT_BYTES * LOGITS) / self._per_token))


def activation_bound(config: Any) -> ActivationBound | None:
    """The bound for a model; None if its config lacks a size, or if its layers have experts.

    In bfloat16 a layer keeps about 22 bytes per hidden number and 8 per number of the inner layer; the bound has half
    as many again.
    """
    text = config.get_text_config()
    names = ("num_hidden_layers", "hidden_size", "intermediate_size", "vocab_size", "num_attention_heads")
    sizes = [getattr(text, name, None) for name in names]
    if any(getattr(text, name, None) for name in _EXPERTS) or not all(isinstance(size, int) for size in sizes):
        return None
    layers, hidden, inner, vocabulary, heads = (int(size or 0) for size in sizes)
    widest = max(hidden, heads * int(getattr(text, "head_dim", None) or 0))
    return ActivationBound(layers * (32 * widest + 12 * inner), vocabulary)
