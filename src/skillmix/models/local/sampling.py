"""Rows to start, and the choice of their tokens: each token is a function of logits and one number of its call."""

from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import shake_128

import numpy as np
import torch

from skillmix.calls import Request

DEFAULT_LIMIT = 512
"""Tokens to write if a request does not say."""


@dataclass(frozen=True, slots=True)
class Start:
    """A row to start: its prompt and its decoding settings."""

    slot: int
    tokens: Sequence[int]
    """The whole prompt."""
    known: int
    """The number of its first tokens that the slot already holds."""
    numbers: np.ndarray
    """One uniform number for each token that the row may write."""
    temperature: float
    top_p: float | None
    limit: int


def start_of(request: Request, tokens: Sequence[int], *, slot: int, known: int = 0) -> Start:
    """The row of a request whose prompt has these tokens."""
    decoding = request.decoding
    limit = decoding.max_tokens or DEFAULT_LIMIT
    temperature = 1.0 if decoding.temperature is None else decoding.temperature
    return Start(slot, tokens, known, uniforms(request.seed or 0, limit), temperature, decoding.top_p, limit)


def uniforms(seed: int, count: int) -> np.ndarray:
    """The random numbers in [0, 1) of one call; they depend on its seed alone, and are the same on every machine."""
    raw = shake_128(f"skillmix tokens {seed}".encode()).digest(4 * count)
    # 24 bits: a 32-bit float holds them without rounding up to 1.
    numbers: np.ndarray = (np.frombuffer(raw, dtype="<u4") >> 8).astype(np.float32) / np.float32(1 << 24)
    return numbers


def choose(
    logits: torch.Tensor, numbers: torch.Tensor, temperatures: torch.Tensor, top_p: torch.Tensor | None
) -> torch.Tensor:
    """Choose a token for each row by inverse transform sampling; at temperature 0 the likeliest token."""
    logits = logits.float()
    likeliest = logits.argmax(-1)
    is_greedy = temperatures <= 0
    scaled = logits / torch.where(is_greedy, 1.0, temperatures)[:, None]
    chances = torch.softmax(scaled, dim=-1)
    if top_p is not None:
        # The likeliest tokens that together reach top_p keep their probabilities; those of all others are zero.
        ordered, order = chances.sort(dim=-1, descending=True)
        before = ordered.cumsum(-1) - ordered
        kept = torch.where(before < top_p[:, None], ordered, 0.0)
        # A row without top_p keeps its exact probabilities, whatever other rows have.
        chances = torch.where((top_p < 1)[:, None], torch.zeros_like(chances).scatter_(-1, order, kept), chances)
    cumulative = chances.cumsum(-1)
    targets = numbers[:, None] * cumulative[:, -1:]
    drawn = torch.searchsorted(cumulative, targets, right=True)[:, 0].clamp_(max=logits.shape[-1] - 1)
    return torch.where(is_greedy, likeliest, drawn)
