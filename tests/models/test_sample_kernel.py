"""The kernel that chooses tokens chooses those of the plain function, in Triton's interpreter where there is no GPU."""

from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="the extra `local` is not installed")
pytest.importorskip("triton", reason="CPU builds of torch come without triton")

from skillmix.models.local.gpu.kernels import RowSettings, RowState, accept_tokens  # noqa: E402
from skillmix.models.local.sampling import choose, uniforms  # noqa: E402

SLOTS = 30


def state(device: str, *, longest: int = 4) -> RowState:
    def zeros(*size: int) -> Any:
        return torch.zeros(size, dtype=torch.long, device=device)

    is_active = torch.ones(SLOTS, dtype=torch.bool, device=device)
    return RowState(zeros(SLOTS), zeros(SLOTS) + 10, zeros(SLOTS), zeros(SLOTS, longest), is_active)


def settings(device: str, *, temperature: float = 0.7, limit: int = 4, ends: tuple[int, ...] = ()) -> RowSettings:
    numbers = torch.from_numpy(np.stack([uniforms(slot, 4) for slot in range(SLOTS)])).to(device)
    return RowSettings(
        numbers,
        torch.full((SLOTS,), temperature, device=device),
        torch.full((SLOTS,), limit, device=device),
        torch.tensor(ends, dtype=torch.long, device=device),
    )


def logits(rows: int, vocabulary: int, device: str) -> Any:
    return 4 * torch.randn(rows, vocabulary, generator=torch.Generator().manual_seed(vocabulary)).to(device)


@pytest.mark.parametrize("vocabulary", [11, 4096, 4097, 20_000])
@pytest.mark.parametrize("temperature", [0.0, 0.7, 2.0])
def test_tokens_are_those_of_the_plain_function(vocabulary: int, temperature: float, kernel_device: str) -> None:
    rows, now, given = (
        logits(SLOTS, vocabulary, kernel_device),
        state(kernel_device),
        settings(kernel_device, temperature=temperature),
    )
    slots = torch.arange(SLOTS - 1, -1, -1, device=kernel_device)

    accept_tokens(slots, rows, now, given)

    wanted = choose(rows, given.numbers[slots, 0], given.temperature[slots], None)
    assert (now.token[slots] == wanted).float().mean() > 0.95  # sums in another order round differently
    assert torch.equal(now.written[:, 0], now.token)
    assert now.position.tolist() == [11] * SLOTS
    assert now.count.tolist() == [1] * SLOTS


def test_impossible_tokens_are_never_chosen(kernel_device: str) -> None:
    rows = torch.full((SLOTS, 9000), float("-inf"), device=kernel_device)
    rows[:, 5000] = 1.0
    now = state(kernel_device)

    accept_tokens(torch.arange(SLOTS, device=kernel_device), rows, now, settings(kernel_device))

    assert now.token.tolist() == [5000] * SLOTS


def test_a_row_ends_at_an_end_token_or_at_its_limit_and_ended_rows_stay(kernel_device: str) -> None:
    rows = torch.full((SLOTS, 50), -100.0, device=kernel_device)
    rows[:, 7] = 100.0
    rows[::2, 8] = 200.0
    now, given = state(kernel_device), settings(kernel_device, temperature=0.0, limit=2, ends=(3, 8))
    slots = torch.arange(SLOTS, device=kernel_device)

    accept_tokens(slots, rows, now, given)
    assert now.is_active.tolist() == [False, True] * (SLOTS // 2)
    accept_tokens(slots, rows, now, given)

    assert not now.is_active.any()
    assert now.count.tolist() == [1, 2] * (SLOTS // 2)
    assert now.written[:, :2].tolist() == [[8, 0], [7, 7]] * (SLOTS // 2)
