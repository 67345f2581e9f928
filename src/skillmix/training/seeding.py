"""Dropout that depends on seed, step and micro-batch alone, so that a step can be taken again."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from skillmix.core.hashing import digest


def has_dropout(model: Any) -> bool:
    """Whether anything in a model is drawn while it trains."""
    return any(isinstance(module, nn.Dropout) and module.p > 0 for module in model.modules())


@contextmanager
def seeded(*key: int, device: torch.device) -> Iterator[None]:
    """Draw by a key inside, and as before afterwards."""
    seed = int.from_bytes(digest("dropout", *key, size=8)) >> 1
    with torch.random.fork_rng([device] if device.type == "cuda" else []):
        torch.manual_seed(seed)
        yield
