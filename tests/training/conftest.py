"""Training on processors that claim instructions they do not have."""

from collections.abc import Iterator

import pytest


@pytest.fixture
def no_amx() -> Iterator[None]:
    """Products in bfloat16 without oneDNN, which kills the process on CPUs that claim more than they can."""
    torch = pytest.importorskip("torch", reason="the extra `local` is not installed")
    before = torch._C._get_mkldnn_enabled()
    torch._C._set_mkldnn_enabled(False)
    yield
    torch._C._set_mkldnn_enabled(before)
