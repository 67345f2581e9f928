"""What is trained on: token sequences, and which of their tokens count."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np


@dataclass(frozen=True, slots=True)
class Example:
    """One conversation, or one piece of replay text."""

    key: str
    tokens: np.ndarray
    """int32, one dimension."""
    is_trained: np.ndarray
    """bool, as long as `tokens`: this token is a target that counts in the loss. The first never is."""
    is_replay: bool


class Data(Protocol):
    """The examples of a training run, a function of the step alone: to resume, the step's number is enough."""

    @property
    def steps_per_epoch(self) -> int:
        """How many steps see every conversation once."""
        ...

    def step(self, number: int) -> Sequence[Example]:
        """All examples of one optimiser step, counted from 0; the same on every rank."""
        ...
