"""Prompts packed into flat rows of tokens."""

from collections import defaultdict
from random import Random

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="the extra `local` is not installed")
pytest.importorskip("transformers", reason="the extra `local` is not installed")

from skillmix.models.local.gpu.gpu_decoder import packed_rows  # noqa: E402
from skillmix.models.local.gpu.kernels import QUERIES  # noqa: E402
from skillmix.models.local.sampling import Start  # noqa: E402


def start(slot: int, length: int, *, known: int = 0) -> Start:
    return Start(slot, [1000 * slot + n for n in range(length)], known, np.zeros(6, dtype=np.float32), 0.5, None, 6)


@pytest.mark.parametrize("most", [100, 256, 100_000])
@pytest.mark.parametrize("seed", range(5))
def test_every_unread_token_is_read_once_at_its_own_position(seed: int, most: int) -> None:
    random = Random(seed)
    starts = []
    for slot in range(20):
        length = random.choice([1, 2, 63, 64, 65, 130, 700])
        starts.append(start(slot, length, known=random.choice([0, length // 2, max(0, length - 2), length - 1])))

    read: dict[int, list[tuple[int, int]]] = defaultdict(list)
    ended = []
    for row in packed_rows(starts, most):
        assert len(row.tokens) <= most
        covered = 0
        for first, count, slot, position in row.blocks.tolist():
            assert first == covered
            assert 1 <= count <= QUERIES
            covered += count
            assert row.positions[first:covered].tolist() == list(range(position, position + count))
            read[slot] += zip(range(position, position + count), row.tokens[first:covered].tolist(), strict=True)
        assert covered == len(row.tokens)
        for slot, last in zip(row.ending.tolist(), row.last.tolist(), strict=True):
            assert row.tokens[last] == starts[slot].tokens[-1]
            ended.append(slot)

    for each in starts:
        assert read[each.slot] == [(n, each.tokens[n]) for n in range(each.known, len(each.tokens))]
    assert ended == list(range(20))


def test_a_prompt_that_does_not_fit_continues_in_the_next_row() -> None:
    rows = list(packed_rows([start(3, 10), start(7, 250, known=10), start(5, 1)], 100))

    assert [len(row.tokens) for row in rows] == [100, 100, 51]
    assert [row.blocks.tolist() for row in rows] == [
        [[0, 10, 3, 0], [10, 64, 7, 10], [74, 26, 7, 74]],
        [[0, 38, 7, 100], [38, 62, 7, 138]],
        [[0, 2, 7, 200], [2, 48, 7, 202], [50, 1, 5, 0]],
    ]
    assert [(row.ending.tolist(), row.last.tolist()) for row in rows] == [([3], [9]), ([], []), ([7, 5], [49, 50])]


def test_no_prompts_need_no_row() -> None:
    assert list(packed_rows([])) == []
