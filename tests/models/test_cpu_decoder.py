"""Steps on a CPU: what a batch reads and copies, and what a row then writes."""

from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="the extra `local` is not installed")
pytest.importorskip("transformers", reason="the extra `local` is not installed")

from skillmix.models.local.attention import prepared  # noqa: E402
from skillmix.models.local.cpu.cpu_decoder import CpuDecoder  # noqa: E402
from skillmix.models.local.sampling import Start, uniforms  # noqa: E402
from tests.models.test_cpu_products import small_model  # noqa: E402

pytestmark = pytest.mark.machine

SHARED = [(7 * n) % 300 for n in range(64)]
"""A beginning of whole pieces."""


@cache
def model() -> Any:
    return prepared(small_model())


def prompt(number: int, *, rest: int = 25) -> list[int]:
    return [*SHARED, *((number + 3 * n) % 300 for n in range(rest))]


def start(slot: int, tokens: Sequence[int], *, known: int = 0, limit: int = 4) -> Start:
    numbers = uniforms(sum(tokens), limit)
    return Start(slot=slot, tokens=tokens, known=known, numbers=numbers, temperature=1.0, top_p=None, limit=limit)


def decoder(*, slots: int) -> CpuDecoder:
    made = CpuDecoder(model(), slots=slots, length=512, longest=8, ends=[])
    made.rows.note_chances()
    return made


def step(running: CpuDecoder) -> np.ndarray:
    """Make one step; how many tokens each slot has written."""
    running.run(1, rows=running.slots, with_top_p=False)
    return running.progress()[0]


def finish(running: CpuDecoder) -> None:
    while running.progress()[1].any():
        step(running)


def result(running: CpuDecoder, slot: int) -> tuple[list[int], list[float]]:
    assert running.rows.chances is not None
    return running.written([slot])[0].tolist(), running.rows.chances[slot].tolist()


def alone(tokens: Sequence[int], *, limit: int = 4) -> tuple[list[int], list[float]]:
    running = decoder(slots=1)
    running.start([start(0, tokens, limit=limit)])
    finish(running)
    return result(running, 0)


def test_rows_of_one_round_share_a_beginning_that_is_not_read_yet() -> None:
    prompts = [prompt(n) for n in range(3)]
    running = decoder(slots=3)

    running.copy([(0, 1, 64), (1, 2, 64)])
    running.start([start(slot, tokens, known=64 if slot else 0) for slot, tokens in enumerate(prompts)])
    finish(running)

    assert [result(running, slot) for slot in range(3)] == [alone(tokens) for tokens in prompts]


def test_a_slot_is_not_overwritten_before_it_has_been_copied() -> None:
    """Slot 1 copies from slot 0, which must be read first; a third prompt then takes slot 0."""
    long, other = prompt(1, rest=230), [(11 * n) % 300 for n in range(90)]
    running = decoder(slots=2)
    running.start([start(0, long, limit=1)])
    running.copy([(0, 1, 64)])
    running.start([start(1, prompt(2), known=64)])
    while running.progress()[1][0]:
        assert step(running)[1] == 0
    running.start([start(0, other)])
    finish(running)

    assert result(running, 1) == alone(prompt(2))
    assert result(running, 0) == alone(other)


def test_a_batch_mixes_rows_that_write_with_a_long_prompt() -> None:
    running = decoder(slots=2)
    running.start([start(0, prompt(1), limit=8)])
    assert step(running).tolist() == [1, 0]

    running.start([start(1, prompt(2, rest=336), limit=8)])

    assert step(running).tolist() == [2, 0]  # 255 of 400 tokens
    assert step(running).tolist() == [3, 1]
    finish(running)
    assert result(running, 0) == alone(prompt(1), limit=8)
    assert result(running, 1) == alone(prompt(2, rest=336), limit=8)
