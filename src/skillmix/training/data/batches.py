"""The examples that each optimizer step trains on, and the micro-batches that contain them."""

from collections.abc import Sequence
from dataclasses import dataclass
from heapq import heapreplace
from math import ceil, floor

import numpy as np

from skillmix.hashing import digest, permuted
from skillmix.training.data.examples import Example
from skillmix.training.data.replay import Replay


@dataclass(frozen=True)
class TrainingOrder:
    """Conversations in a new order in each epoch, divided into batches, with replayed texts.

    A batch may contain the last conversations of one epoch and the first conversations of the next.
    """

    conversations: Sequence[Example]
    batch: int
    seed: int
    total: int | None = None
    """The number of conversations in the whole training run; None if every batch is full."""
    replay: Replay | None = None
    replay_ratio: float = 0.0
    """The number of replayed texts per conversation."""

    @property
    def steps_per_epoch(self) -> int:
        """Return the number of steps after which every conversation has been used once."""
        return ceil(len(self.conversations) / self.batch)

    def step(self, number: int) -> Sequence[Example]:
        """Return all examples of a step; steps are counted from 0."""
        start = number * self.batch
        end = start + self.batch if self.total is None else min(start + self.batch, self.total)
        examples = []
        for place in range(start, end):
            epoch, index = divmod(place, len(self.conversations))
            key = digest("training order", self.seed, epoch, size=16)
            examples.append(self.conversations[permuted(index, len(self.conversations), key)])
        if self.replay is not None:
            first, last = (floor(number * self.replay_ratio + 1e-9) for number in (start, end))
            examples += [self.replay.text(number) for number in range(first, last)]
        return examples


def steps_of(epochs: float, *, conversations: int, batch: int) -> tuple[int, int]:
    """Return how many steps and conversations a number of epochs contains.

    >>> steps_of(2, conversations=100, batch=64)
    (4, 200)
    """
    total = max(1, round(epochs * conversations))
    return ceil(total / batch), total


@dataclass(frozen=True, slots=True)
class MicroBatch:
    """Several examples as one row of tokens."""

    tokens: np.ndarray
    positions: np.ndarray
    """The index of each token in its example."""
    bounds: np.ndarray
    """The index of each example's first token, and the end of the last example."""
    longest: int
    rows: np.ndarray
    """The indexes of the tokens whose next token is a target."""
    targets: np.ndarray
    """The target for each entry of `rows`."""
    is_replay: np.ndarray
    """Whether each target belongs to replayed text."""


def split(lengths: Sequence[int], *, budget: int, ranks: int = 1) -> list[list[list[int]]]:
    """Return the indexes of the examples by rank and micro-batch, with similar sums of lengths within the budget.

    An example above the budget is put into a separate micro-batch. Every rank has the same number of micro-batches,
    some of which may be empty, because the ranks exchange gradients in each micro-batch.

    >>> split([5, 3, 4, 6], budget=10)
    [[[1, 3], [0, 2]]]
    >>> split([5, 3, 4], budget=5, ranks=2)
    [[[0], [1]], [[2], []]]
    """
    by_tokens, by_examples = -(-sum(lengths) // (ranks * budget)), -(-len(lengths) // ranks)
    count = ranks * max(1, min(by_tokens, by_examples))
    while True:
        heap = [(0, number) for number in range(count)]
        groups: list[list[int]] = [[] for _ in range(count)]
        for index in sorted(range(len(lengths)), key=lambda i: (-lengths[i], i)):
            filled, number = heap[0]  # the group with the smallest sum so far
            groups[number].append(index)
            heapreplace(heap, (filled + lengths[index], number))
        groups = [sorted(group) for group in groups]
        if all(len(group) <= 1 or sum(lengths[i] for i in group) <= budget for group in groups):
            return [groups[rank::ranks] for rank in range(ranks)]
        count += ranks


def pack(examples: Sequence[Example], *, multiple: int = 1) -> MicroBatch:
    """Concatenate examples; padding, in the form of an example without targets, rounds the length up to a multiple."""
    useful = sum(len(example.tokens) for example in examples)
    filling = max(1, -(-useful // multiple)) * multiple - useful
    lengths = [len(example.tokens) for example in examples] + ([filling] if filling else [])
    bounds = np.concatenate(([0], np.cumsum(lengths, dtype=np.int32))).astype(np.int32)
    fill = np.zeros(filling, dtype=np.int64)
    tokens = np.concatenate([*(example.tokens for example in examples), fill]).astype(np.int64)
    trained = np.concatenate([*(example.is_trained for example in examples), fill]).astype(bool)
    if trained[bounds[:-1]].any():
        raise ValueError("the first token of an example cannot be a target: no token precedes it")
    target_indexes = np.flatnonzero(trained)
    replay = np.repeat([*(example.is_replay for example in examples), *([False] if filling else [])], lengths)
    return MicroBatch(
        tokens=tokens,
        positions=np.arange(len(tokens)) - np.repeat(bounds[:-1], lengths),
        bounds=bounds,
        longest=max(lengths),
        rows=target_indexes - 1,
        targets=tokens[target_indexes],
        is_replay=replay[target_indexes].astype(bool),
    )
