"""A process that has a share of a GPU counts and takes only that share of its memory."""

import pytest

torch = pytest.importorskip("torch", reason="the extra `local` is not installed")

from skillmix.models.local.gpu_share import GPU_SHARE, claim_share, gpu_memory  # noqa: E402

GIB = 1 << 30


@pytest.fixture(autouse=True)
def gpu(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """A GPU of 80 GiB, of which 70 are free and 6 are ours; the limits that torch was given."""
    limits: list[float] = []
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda: (70 * GIB, 80 * GIB))
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda: 6 * GIB)
    monkeypatch.setattr(torch.cuda, "set_per_process_memory_fraction", limits.append)
    return limits


@pytest.mark.parametrize("share", [None, "1", "1.0", "0", "-1", "half", "nan"])
def test_without_a_share_the_whole_gpu_counts(
    share: str | None, gpu: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    if share is not None:
        monkeypatch.setenv(GPU_SHARE, share)

    claim_share()

    assert gpu_memory() == (70 * GIB, 80 * GIB)
    assert gpu == []


def test_half_of_a_gpu_is_half_of_its_memory(gpu: list[float], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(GPU_SHARE, "0.5")

    claim_share()

    assert gpu_memory() == (33 * GIB, 39 * GIB), "a GiB is left for what torch does not count"
    assert gpu == [39 / 80]


def test_memory_that_others_have_taken_is_not_free(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(GPU_SHARE, "0.5")
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda: (5 * GIB, 80 * GIB))

    assert gpu_memory()[0] == 5 * GIB
