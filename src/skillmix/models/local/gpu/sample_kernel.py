"""A kernel that chooses each row's next token and notes it, in one pass over the logits."""

from typing import Final, NamedTuple

import torch

try:
    import triton
    import triton.language as tl
except ImportError:  # CPU builds of torch come without triton
    triton = None

_BLOCK: Final = 4096


class RowState(NamedTuple):
    """The state of all slots that a chosen token changes."""

    token: torch.Tensor
    position: torch.Tensor
    count: torch.Tensor
    written: torch.Tensor
    is_active: torch.Tensor


class RowSettings(NamedTuple):
    """The settings of all slots that decide a token."""

    numbers: torch.Tensor
    temperature: torch.Tensor
    limit: torch.Tensor
    ends: torch.Tensor
    """Tokens that end a row, the same for all slots."""


def accept_tokens(slots: torch.Tensor, logits: torch.Tensor, state: RowState, settings: RowSettings) -> None:
    """Choose a token for each active slot by inverse transform sampling, or the likeliest at temperature 0."""
    rows, vocabulary = logits.shape
    blocks = triton.next_power_of_2(triton.cdiv(vocabulary, _BLOCK))
    _accept[(rows,)](
        slots, logits, *state, *settings, logits.stride(0), state.written.stride(0), settings.numbers.stride(0),
        vocabulary=vocabulary, ends_count=len(settings.ends), blocks=blocks, block=_BLOCK, num_warps=8,
    )  # fmt: skip


if triton is not None:

    @triton.jit(do_not_specialize=["written_row", "numbers_row"])
    def _accept(
        slots, logits, tokens, positions, counts, written, is_active, numbers, temperatures, limits, ends,
        logits_row, written_row, numbers_row,
        vocabulary: tl.constexpr, ends_count: tl.constexpr, blocks: tl.constexpr, block: tl.constexpr,
    ) -> None:  # fmt: skip
        """Choose the token of one row."""
        row = tl.program_id(0).to(tl.int64)
        slot = tl.load(slots + row)
        if tl.load(is_active + slot) == 0:
            return
        count = tl.load(counts + slot)
        temperature = tl.load(temperatures + slot)
        is_greedy = temperature <= 0
        divisor = tl.where(is_greedy, 1.0, temperature)
        source = logits + row * logits_row
        # The largest value of each block, and the sum of exponentials relative to it.
        number = tl.arange(0, blocks)
        best = tl.full((blocks,), float("-inf"), tl.float32)
        sums = tl.zeros((blocks,), tl.float32)
        for index in range(0, (vocabulary + block - 1) // block):
            at = index * block + tl.arange(0, block)
            scaled = tl.load(source + at, mask=at < vocabulary, other=float("-inf")) / divisor
            highest = tl.max(scaled, 0)
            base = tl.where(highest == float("-inf"), 0.0, highest)
            best = tl.where(number == index, highest, best)
            sums = tl.where(number == index, tl.sum(tl.exp(scaled - base), 0), sums)
        top = tl.max(best, 0)
        shares = sums * tl.exp(best - top)
        cumulative = tl.cumsum(shares, 0)
        target = tl.load(numbers + slot * numbers_row + count) * tl.sum(shares, 0)
        drawn = tl.sum((cumulative <= target).to(tl.int32), 0)
        last = (vocabulary + block - 1) // block - 1
        likeliest = tl.min(tl.where(best == top, number, blocks), 0)
        chosen = tl.minimum(tl.where(is_greedy, likeliest, drawn), last)
        before = tl.sum(tl.where(number < chosen, shares, 0.0), 0)
        # Only the block that holds the token is read again.
        inside = tl.arange(0, block)
        at = chosen * block + inside
        scaled = tl.load(source + at, mask=at < vocabulary, other=float("-inf")) / divisor
        share = tl.exp(scaled - top)
        drawn = tl.sum((tl.cumsum(share, 0) + before <= target).to(tl.int32), 0)
        # Sums in another order round differently; a token without any chance is never chosen.
        drawn = tl.minimum(drawn, tl.max(tl.where(share > 0, inside, 0), 0))
        likeliest = tl.min(tl.where(scaled == top, inside, block - 1), 0)
        token = (chosen * block + tl.where(is_greedy, likeliest, drawn)).to(tl.int64)
        token = tl.minimum(token, vocabulary - 1)
        tl.store(written + slot * written_row + count, token)
        tl.store(tokens + slot, token)
        tl.store(counts + slot, count + 1)
        tl.store(positions + slot, tl.load(positions + slot) + 1)
        goes_on = count + 1 < tl.load(limits + slot)
        for index in range(0, ends_count):
            goes_on = goes_on & (token != tl.load(ends + index))
        tl.store(is_active + slot, goes_on)
