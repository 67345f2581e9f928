"""The kernels that read prompts compute plain attention, in Triton's interpreter where there is no GPU."""

from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="the extra `local` is not installed")
pytest.importorskip("triton", reason="CPU builds of torch come without triton")

from skillmix.models.local.gpu.kernels import (  # noqa: E402
    QUERIES,
    PackedStore,
    copy_slots,
    packed_attention,
    store_packed,
)


def table(segments: list[tuple[int, int, int]], *, device: str) -> Any:
    """Query blocks of segments, each a slot, its known tokens and its new ones."""
    rows, first = [], 0
    for slot, known, new in segments:
        for start in range(0, new, QUERIES):
            rows.append((first + start, min(QUERIES, new - start), slot, known + start))
        first += new
    return torch.tensor(rows, dtype=torch.int32, device=device)


def plain(query: Any, keys: Any, values: Any, known: int) -> Any:
    """Attention of new tokens after known ones, in float64; heads come first."""
    groups = query.shape[0] // keys.shape[0]
    keys, values = keys.double().repeat_interleave(groups, 0), values.double().repeat_interleave(groups, 0)
    scores = query.double() @ keys.transpose(1, 2) * 0.2
    new = query.shape[1]
    is_hidden = torch.arange(known + new)[None, :] > (known + torch.arange(new))[:, None]
    return scores.masked_fill(is_hidden.to(query.device), float("-inf")).softmax(-1) @ values


@pytest.mark.parametrize(("heads", "key_heads", "size"), [(3, 1, 32), (4, 2, 64), (2, 2, 128)])
def test_packed_segments_get_plain_attention(heads: int, key_heads: int, size: int, kernel_device: str) -> None:
    generator = torch.Generator().manual_seed(size)
    segments = [(4, 0, 1), (2, 63, 2), (0, 0, 130), (5, 77, 65), (1, 64, 64), (3, 5, 1)]
    tokens = sum(new for _, _, new in segments)
    keys, values = (torch.randn(6, key_heads, 200, size, generator=generator).to(kernel_device) for _ in range(2))
    # The modules of a model give tensors with the tokens before the heads.
    query, key, value = (
        torch.randn(1, tokens, count, size, generator=generator).to(kernel_device).transpose(1, 2)
        for count in (heads, key_heads, key_heads)
    )
    before = keys.clone()
    store = PackedStore(keys, values, table(segments, device=kernel_device))

    store_packed(key, value, store)
    found = packed_attention(query, store, scaling=0.2)

    first = 0
    for slot, known, new in segments:
        assert torch.equal(keys[slot, :, known : known + new], key[0, :, first : first + new])
        assert torch.equal(keys[slot, :, :known], before[slot, :, :known])
        assert torch.equal(keys[slot, :, known + new :], before[slot, :, known + new :])
        held = keys[slot, :, : known + new], values[slot, :, : known + new]
        wanted = plain(query[0, :, first : first + new], *held, known).transpose(0, 1)
        assert torch.allclose(
            found[0, first : first + new].double(), wanted, atol=5e-3 if kernel_device == "cuda" else 1e-5
        )
        first += new


def test_beginnings_of_slots_are_copied_in_all_layers(kernel_device: str) -> None:
    store = torch.randn(4, 6, 2, 150, 32, generator=torch.Generator().manual_seed(1)).to(kernel_device)
    before = store.clone()
    copies = torch.tensor([(0, 3, 130), (1, 4, 1), (0, 5, 64)], device=kernel_device)

    copy_slots(store, copies, longest=130)

    for source, target, length in copies.tolist():
        assert torch.equal(store[:, target, :, :length], before[:, source, :, :length])
        assert torch.equal(store[:, target, :, length:], before[:, target, :, length:])
    assert torch.equal(store[:, :3], before[:, :3])
