"""A step's examples become micro-batches: whole examples one after another, no padding between them."""

from collections.abc import Sequence
from dataclasses import dataclass
from heapq import heapify, heapreplace

import numpy as np

from skillmix.training.data.examples import Example


@dataclass(frozen=True, slots=True)
class MicroBatch:
    """Several examples in one row of tokens."""

    keys: tuple[str, ...]
    tokens: np.ndarray
    positions: np.ndarray
    """Each token's place in its own example."""
    bounds: np.ndarray
    """Where examples start, and where the last one ends."""
    longest: int
    rows: np.ndarray
    """Places whose next token is trained."""
    targets: np.ndarray
    """That next token."""
    is_replay: np.ndarray
    """Whether the target belongs to replay text."""
    useful: int
    """Tokens that are not filling."""


def split(lengths: Sequence[int], *, budget: int, ranks: int = 1) -> list[list[list[int]]]:
    """Which examples go into which micro-batch of which rank: even sums, none above the budget unless alone.

    Every rank gets the same number of micro-batches, some perhaps empty, so that all of them meet in every one.

    >>> split([5, 3, 4, 6], budget=10)
    [[[1, 3], [0, 2]]]
    >>> split([5, 3, 4], budget=5, ranks=2)
    [[[0], [1]], [[2], []]]
    """
    fewest, most = -(-sum(lengths) // (ranks * budget)), -(-len(lengths) // ranks)
    count = ranks * max(1, min(fewest, most))
    while True:
        groups = _spread(lengths, count)
        if all(len(group) <= 1 or sum(lengths[i] for i in group) <= budget for group in groups):
            return [groups[rank::ranks] for rank in range(ranks)]
        count += ranks


def pack(examples: Sequence[Example], *, multiple: int = 1) -> MicroBatch:
    """Put examples one after another; fill up to a multiple with a piece of its own that nobody looks at."""
    useful = sum(len(example.tokens) for example in examples)
    filling = max(1, -(-useful // multiple)) * multiple - useful
    lengths = [len(example.tokens) for example in examples] + ([filling] if filling else [])
    bounds = np.concatenate(([0], np.cumsum(lengths, dtype=np.int32))).astype(np.int32)
    fill = np.zeros(filling, dtype=np.int64)
    tokens = np.concatenate([*(example.tokens for example in examples), fill]).astype(np.int64)
    trained = np.concatenate([*(example.is_trained for example in examples), fill]).astype(bool)
    if trained[bounds[:-1]].any():
        raise ValueError("the first token of an example cannot be a target: nothing stands before it")
    places = np.flatnonzero(trained)
    replay = np.repeat([*(example.is_replay for example in examples), *([False] if filling else [])], lengths)
    return MicroBatch(
        keys=tuple(example.key for example in examples),
        tokens=tokens,
        positions=np.arange(len(tokens)) - np.repeat(bounds[:-1], lengths),
        bounds=bounds,
        longest=max(lengths),
        rows=places - 1,
        targets=tokens[places],
        is_replay=replay[places].astype(bool),
        useful=useful,
    )


def _spread(lengths: Sequence[int], count: int) -> list[list[int]]:
    """Longest first, each into the group that has least so far."""
    heap = [(0, number) for number in range(count)]
    heapify(heap)
    groups: list[list[int]] = [[] for _ in range(count)]
    for index in sorted(range(len(lengths)), key=lambda i: (-lengths[i], i)):
        filled, number = heap[0]
        groups[number].append(index)
        heapreplace(heap, (filled + lengths[index], number))
    return [sorted(group) for group in groups]
