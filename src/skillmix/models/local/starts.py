"""What a decoder needs to know of a row that starts."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np


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
