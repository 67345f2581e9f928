"""Choosing tokens: one uniform number for each (call, position), and the inverse of the cumulative distribution."""

from hashlib import shake_128

import numpy as np
import torch


def uniforms(seed: int, count: int) -> np.ndarray:
    """The numbers in [0, 1) of one call; a function of its seed alone, the same on every machine, for ever."""
    raw = shake_128(f"skillmix tokens {seed}".encode()).digest(4 * count)
    # 24 bits: what a 32-bit float holds without rounding up to 1.
    numbers: np.ndarray = (np.frombuffer(raw, dtype="<u4") >> 8).astype(np.float32) / np.float32(1 << 24)
    return numbers


def choose(
    logits: torch.Tensor, numbers: torch.Tensor, temperatures: torch.Tensor, top_p: torch.Tensor | None
) -> torch.Tensor:
    """A token for each row; at temperature 0 the likeliest."""
    logits = logits.float()
    likeliest = logits.argmax(-1)
    is_greedy = temperatures <= 0
    scaled = logits / torch.where(is_greedy, 1.0, temperatures)[:, None]
    chances = torch.softmax(scaled, dim=-1)
    if top_p is not None:
        # A row without a limit keeps its chances as they are, whatever limits other rows have.
        chances = torch.where((top_p < 1)[:, None], _nucleus(chances, top_p), chances)
    cumulative = chances.cumsum(-1)
    wanted = numbers[:, None] * cumulative[:, -1:]
    drawn = torch.searchsorted(cumulative, wanted, right=True)[:, 0].clamp_(max=logits.shape[-1] - 1)
    return torch.where(is_greedy, likeliest, drawn)


def _nucleus(chances: torch.Tensor, top_p: torch.Tensor) -> torch.Tensor:
    """Only the likeliest tokens that together reach top_p, the one that reaches it included."""
    ordered, order = chances.sort(dim=-1, descending=True)
    before = ordered.cumsum(-1) - ordered
    kept = torch.where(before < top_p[:, None], ordered, 0.0)
    return torch.zeros_like(chances).scatter_(-1, order, kept)
