"""Triton's kernels on a machine without a GPU."""

from typing import Any

import pytest


@pytest.fixture
def kernel_device(monkeypatch: pytest.MonkeyPatch) -> str:
    """The device on which kernels run: the GPU, or the CPU in Triton's interpreter."""
    torch = pytest.importorskip("torch", reason="the extra `local` is not installed")
    triton = pytest.importorskip("triton", reason="CPU builds of torch come without triton")
    if torch.cuda.is_available():
        return "cuda"
    if not triton.knobs.runtime.interpret:
        pytest.skip("there is no GPU, and Triton's interpreter is off (TRITON_INTERPRET)")
    from triton.runtime import interpreter

    patch = interpreter._patch_lang_tensor

    def patched(tensor: Any, *arguments: Any) -> None:
        """Let loops end at loaded numbers: numpy 2.4 refuses the conversion that Triton makes."""
        patch(tensor, *arguments)
        tensor.__index__ = lambda self: int(self.handle.data.item())

    monkeypatch.setattr(interpreter, "_patch_lang_tensor", patched)
    return "cpu"
