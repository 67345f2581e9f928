"""Norms and MLPs in fewer passes over memory; each is used only where a trial on random rows gives the same results."""

from collections.abc import Callable
from typing import Any, Final

import torch
from torch.nn import functional

from skillmix.models.local.cpu.products import LARGEST, Packed, rows_agree

_TRIED_ROWS: Final = 16
_Layer = Callable[[torch.Tensor], torch.Tensor]


@torch.inference_mode()  # type: ignore[untyped-decorator]
def fuse_layers(model: Any) -> None:
    """Replace the norms and MLPs of a model whose products treat every row alike."""
    verdicts: dict[object, bool] = {}
    for module in model.modules():
        layer = _norm(module) or _mlp(module)
        if layer is None:
            continue
        kind = type(module), layer.inputs
        if kind not in verdicts:
            verdicts[kind] = _is_same(layer, module) and rows_agree(layer, inputs=layer.inputs, most_rows=LARGEST)
        if verdicts[kind]:
            module.forward = layer


class _Norm:
    """A root mean square norm in one call."""

    def __init__(self, weight: torch.Tensor, epsilon: float) -> None:
        self.inputs = len(weight)
        self._weight = weight
        self._epsilon = epsilon

    def __call__(self, rows: torch.Tensor) -> torch.Tensor:
        return functional.rms_norm(rows, (self.inputs,), self._weight, self._epsilon)


class _Mlp:
    """A gated MLP whose activation and product of gates are part of the matrix products."""

    def __init__(self, gate: Packed, up: Packed, down: Packed) -> None:
        self.inputs = int(gate.weight.shape[1])
        self._gate, self._up, self._down = gate, up, down

    def __call__(self, rows: torch.Tensor) -> torch.Tensor:
        return self._down(self._up.times(rows, self._gate.swish(rows)))


def _norm(module: Any) -> _Norm | None:
    epsilon = getattr(module, "variance_epsilon", None)
    if not type(module).__name__.endswith("RMSNorm") or not isinstance(epsilon, float):
        return None
    return _Norm(module.weight.detach(), epsilon)


def _mlp(module: Any) -> _Mlp | None:
    parts = [getattr(getattr(module, name, None), "forward", None) for name in ("gate_proj", "up_proj", "down_proj")]
    if not all(isinstance(part, Packed) for part in parts):
        return None
    gate, up, down = parts
    return _Mlp(gate, up, down)  # type: ignore[arg-type]


def _is_same(layer: Any, module: Any) -> bool:
    """Whether a layer computes the same as a module, up to rounding."""
    rows = torch.randn(1, _TRIED_ROWS, layer.inputs, generator=torch.Generator().manual_seed(1))
    try:
        return bool(torch.allclose(layer(rows), module(rows), rtol=1e-4, atol=1e-5))
    except RuntimeError:  # this build of torch has no such operation
        return False
