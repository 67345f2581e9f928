"""Matrix products on a CPU in which the result for a row depends on that row alone, bit for bit.

A processor may round a row differently when the product has a different number of rows, or when the row is at a
different index. `make_rows_independent` tests this on the current processor. If every row has the same bits in products
of every size in `SIZES` with packed weights, each product has the smallest sufficient size. Otherwise each product is
cut into pieces with a small, fixed number of rows. `fuse_layers` computes norms and MLPs in fewer passes over memory;
each fused layer is used only if a trial on random rows gives the same results.
"""

from collections.abc import Callable, Iterable
from typing import Any, Final

import torch
from torch.nn import functional

LARGEST: Final = 256
"""The largest number of rows in a product."""
SIZES: Final = (8, *range(16, LARGEST + 1, 16))
"""The possible numbers of rows in a product: 8, or a multiple of 16."""
_PIECE: Final = 32
"""The largest number of rows in a piece, for processors that need pieces."""
MOST_SLOTS: Final = 64
"""The most rows that generate at once; most of a batch is left for prompts, and the head has no larger product."""
_TRIED_ROWS: Final = 16
_MARK: Final = "_skillmix_rows_are_independent"

_Product = Callable[[torch.Tensor], torch.Tensor]


def size_for(rows: int) -> int:
    """Return the smallest number of rows in `SIZES` that is large enough."""
    return SIZES[0] if rows <= SIZES[0] else -(-rows // 16) * 16


@torch.inference_mode()  # type: ignore[untyped-decorator]
def make_rows_independent(model: Any) -> bool:
    """Replace a model's products with products that treat every row alike; return False if this was already done.

    The model can then only run on this CPU.
    """
    if getattr(model, _MARK, False):
        return False
    setattr(model, _MARK, True)
    layers = [module for module in model.modules() if isinstance(module, torch.nn.Linear)]
    one_of_each_shape = {tuple(layer.weight.shape): layer for layer in layers}.values()
    head = model.get_output_embeddings()
    try:
        can_pack = all(
            rows_agree(Packed(layer), inputs=layer.in_features, most_rows=MOST_SLOTS if layer is head else LARGEST)
            for layer in one_of_each_shape
        )
    except (RuntimeError, AttributeError):  # this build of torch has no oneDNN
        can_pack = False
    piece = _PIECE
    while piece > 1 and not can_pack and not _treats_rows_alike(one_of_each_shape, piece):
        piece //= 2
    embeddings = model.get_input_embeddings().weight
    for layer in layers:
        product: Any = Packed(layer) if can_pack else _in_pieces(layer, piece)
        layer.forward = product
        if can_pack and layer.weight is not embeddings:
            # The packed weights replace the plain weights, because both together would take twice the memory.
            layer.weight = torch.nn.Parameter(product.weight, requires_grad=False)
    return True


class Packed:
    """A product whose weights have the layout of oneDNN; it accepts any number of rows."""

    def __init__(self, layer: Any) -> None:
        self.weight = torch.ops.mkldnn._reorder_linear_weight(layer.weight.detach(), LARGEST)
        self._bias = None if layer.bias is None else layer.bias.detach()

    def __call__(self, rows: torch.Tensor, activation: str = "none") -> torch.Tensor:
        """Compute the product for some rows, followed by an activation."""
        product: torch.Tensor = torch.ops.mkldnn._linear_pointwise(rows, self.weight, self._bias, activation, [], "")
        return product

    def times(self, rows: torch.Tensor, factors: torch.Tensor) -> torch.Tensor:
        """Compute the product and multiply it by factors, element by element."""
        product: torch.Tensor = torch.ops.mkldnn._linear_pointwise.binary(rows, factors, self.weight, self._bias, "mul")
        return product


def rows_agree(product: _Product, *, inputs: int, most_rows: int) -> bool:
    """Return whether random rows have the same bits in products of all sizes up to a limit, at every index."""
    rows = torch.randn(most_rows, inputs, generator=torch.Generator().manual_seed(0))
    reference = product(rows)
    for size in SIZES:
        first = (most_rows - size) // 2
        if size < most_rows and not torch.equal(product(rows[first : first + size]), reference[first : first + size]):
            return False
    return bool((product(rows[:1].expand(most_rows, -1).contiguous()) == reference[0]).all())


def _treats_rows_alike(layers: Iterable[Any], count: int) -> bool:
    """Return whether equal rows have equal results in plain products."""
    for layer in layers:
        row = torch.randn(1, layer.in_features, generator=torch.Generator().manual_seed(0))
        product = functional.linear(row.expand(count, -1).contiguous(), layer.weight)
        if not (product == product[0]).all():
            return False
    return True


def _in_pieces(layer: Any, piece: int) -> _Product:
    """Compute a product in pieces of a fixed number of rows, the last one padded with zeros."""

    def product(rows: torch.Tensor) -> torch.Tensor:
        flat = rows.reshape(-1, rows.shape[-1])
        padded = functional.pad(flat, (0, 0, 0, -len(flat) % piece))
        pieces = [functional.linear(part, layer.weight, layer.bias) for part in padded.split(piece)]
        return torch.cat(pieces)[: len(flat)].view(*rows.shape[:-1], -1)

    return product


@torch.inference_mode()  # type: ignore[untyped-decorator]
def fuse_layers(model: Any) -> None:
    """Replace the norms and MLPs of a model whose products treat every row alike."""
    verdicts: dict[object, bool] = {}
    for module in model.modules():
        epsilon = getattr(module, "variance_epsilon", None)
        parts = (getattr(module, name, None) for name in ("gate_proj", "up_proj", "down_proj"))
        gates = [getattr(part, "forward", None) for part in parts]
        layer: _Norm | _Mlp
        if type(module).__name__.endswith("RMSNorm") and isinstance(epsilon, float):
            layer = _Norm(module.weight.detach(), epsilon)
        elif all(isinstance(part, Packed) for part in gates):
            layer = _Mlp(*gates)  # type: ignore[arg-type]
        else:
            continue
        kind = type(module), layer.inputs
        if kind not in verdicts:
            rows = torch.randn(1, _TRIED_ROWS, layer.inputs, generator=torch.Generator().manual_seed(1))
            try:
                is_same = bool(torch.allclose(layer(rows), module(rows), rtol=1e-4, atol=1e-5))
            except RuntimeError:  # this build of torch has no such operation
                is_same = False
            verdicts[kind] = is_same and rows_agree(layer, inputs=layer.inputs, most_rows=LARGEST)
        if verdicts[kind]:
            module.forward = layer


class _Norm:
    """A root mean square norm that is computed in one call."""

    def __init__(self, weight: torch.Tensor, epsilon: float) -> None:
        self.inputs = len(weight)
        self._weight = weight
        self._epsilon = epsilon

    def __call__(self, rows: torch.Tensor) -> torch.Tensor:
        return functional.rms_norm(rows, (self.inputs,), self._weight, self._epsilon)


class _Mlp:
    """A gated MLP whose activation and multiplication by the gate are part of the matrix products."""

    def __init__(self, gate: Packed, up: Packed, down: Packed) -> None:
        self.inputs = int(gate.weight.shape[1])
        self._gate, self._up, self._down = gate, up, down

    def __call__(self, rows: torch.Tensor) -> torch.Tensor:
        return self._down(self._up.times(rows, self._gate(rows, "swish")))
