"""Prompts packed into flat rows of tokens."""

from collections import defaultdict
from random import Random

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="the extra `local` is not installed")

from skillmix.models.local.gpu.kernels import QUERIES  # noqa: E402
from skillmix.models.local.gpu.prompts import (  # noqa: E402
    SHAPES,
    BatchShape,
    PromptBatch,
    PromptInputs,
    bytes_of,
    fill,
    input_sizes,
    inputs_in,
    packed_batches,
)
from skillmix.models.local.sampling import Start  # noqa: E402

SMALL = (BatchShape(128, 3), BatchShape(256, 5))
LONGEST = 6
SPARE = 99


def start(slot: int, length: int, *, known: int = 0, limit: int = LONGEST) -> Start:
    numbers = np.full(LONGEST, slot / 100, dtype=np.float32)
    return Start(slot, [1000 * slot + n for n in range(length)], known, numbers, 0.5, None, limit)


def filled(batch: PromptBatch) -> PromptInputs:
    sizes = input_sizes(batch.shape, longest=LONGEST)
    memory = torch.randint(0, 256, (bytes_of(sizes),), dtype=torch.uint8)  # left over from an earlier batch
    inputs = PromptInputs(*(view.numpy() for view in inputs_in(memory, sizes)))
    fill(inputs, batch.pieces, spare=SPARE)
    return inputs


def rows_of(inputs: PromptInputs, starts: list[Start]) -> list[int]:
    """The slots of the rows that a batch starts, after a look at their last tokens."""
    used = int((inputs.slots != SPARE).sum())
    assert (inputs.is_read.astype(int) + inputs.is_ready).tolist() == [1] * used + [0] * (len(inputs.slots) - used)
    for index, slot in enumerate(inputs.slots[:used]):
        row = starts[slot]
        assert inputs.last_token[index] == row.tokens[-1]
        assert inputs.is_ready[index] == (row.known == len(row.tokens) - 1)
        assert inputs.is_ready[index] or inputs.tokens[inputs.last[index]] == row.tokens[-1]
    return list(inputs.slots[:used])


@pytest.mark.parametrize("seed", range(5))
def test_every_unread_token_is_read_once_at_its_own_position(seed: int) -> None:
    random = Random(seed)
    starts = []
    for slot in range(20):
        length = random.choice([1, 2, 63, 64, 65, 130, 700])
        starts.append(start(slot, length, known=random.choice([0, length // 2, max(0, length - 2), length - 1])))

    read: dict[int, list[tuple[int, int]]] = defaultdict(list)
    ended = []
    for batch in packed_batches(starts, SMALL):
        inputs = filled(batch)
        for first, count, slot, position in inputs.blocks[inputs.blocks[:, 1] > 0]:
            assert count <= QUERIES
            assert inputs.positions[first : first + count].tolist() == list(range(position, position + count))
            read[slot] += zip(range(position, position + count), inputs.tokens[first : first + count], strict=True)
        ended += rows_of(inputs, starts)

    for row in starts:
        is_ready = row.known == len(row.tokens) - 1
        assert read[row.slot] == [(n, row.tokens[n]) for n in range(row.known, len(row.tokens)) if not is_ready]
    assert sorted(ended) == list(range(20))


def test_a_reading_holds_the_settings_of_the_rows_that_it_starts() -> None:
    (batch,) = packed_batches([start(3, 10, known=4, limit=2), start(7, 20)], SMALL)

    inputs = filled(batch)

    assert inputs.slots.tolist() == [3, 7, SPARE]
    assert inputs.last.tolist() == [5, 25, 0]
    assert inputs.last_position.tolist() == [9, 19, 0]
    assert inputs.limit.tolist() == [2, LONGEST, 1]
    assert inputs.temperature.tolist() == [0.5, 0.5, 1.0]
    assert inputs.top_p.tolist() == [1.0, 1.0, 1.0]
    assert np.allclose(inputs.numbers[0, :2], 0.03)
    assert np.allclose(inputs.numbers[1], 0.07)
    assert not inputs.tokens[26:].any()


def test_the_smallest_shape_that_holds_all_is_taken() -> None:
    assert [r.shape for r in packed_batches([start(0, 100), start(1, 28)], SMALL)] == [SMALL[0]]
    assert [r.shape for r in packed_batches([start(n, 2) for n in range(4)], SMALL)] == [SMALL[1]]
    assert [r.shape for r in packed_batches([start(0, 300)], SMALL)] == [SMALL[1], SMALL[0]]


def test_every_shape_has_room_for_the_blocks_of_its_pieces() -> None:
    for shape in SHAPES[1:]:
        most = [start(n % 50, shape.tokens // shape.pieces + (n == 0)) for n in range(shape.pieces)]
        for batch in packed_batches(most, [shape]):
            filled(batch)


def test_rows_whose_last_token_alone_is_unread_are_only_set_up() -> None:
    (batch,) = packed_batches([start(slot, 1 + slot, known=slot) for slot in range(600)])

    inputs = filled(batch)

    assert len(inputs.tokens) == 0
    assert inputs.is_ready.sum() == 600
    assert inputs.last_position[:3].tolist() == [0, 1, 2]


def test_a_prompt_longer_than_every_shape_ends_once() -> None:
    parts = list(packed_batches([start(0, 1000)], SMALL))

    assert [[piece.is_last for piece in part.pieces] for part in parts] == [[False], [False], [False], [True]]
