"""Matrix products on a CPU in which the result for a row depends on that row alone, to the last bit.

A processor may round a row differently when a product has another number of rows, or when the row stands elsewhere in
the product. `make_rows_independent` tries this on the processor at hand. Where packed weights give every row the same
bits in products of every size in `SIZES`, products have the size that fits the work. Elsewhere each product is cut into
pieces of one small number of rows.
"""

from collections.abc import Callable, Iterator
from typing import Any, Final

import torch
from torch.nn import functional

LARGEST: Final = 256
"""The largest number of rows in a product."""
SIZES: Final = (8, *range(16, LARGEST + 1, 16))
"""The numbers of rows that products have: a multiple of 16, or 8."""
_PIECE: Final = 32
"""The largest number of rows in a piece, where pieces are necessary."""
MOST_SLOTS: Final = 64
"""Rows that write at once at most: they leave most of a batch to prompts, and the head has no larger product."""
_MARK: Final = "_skillmix_rows_are_independent"

_Product = Callable[[torch.Tensor], torch.Tensor]


def size_for(rows: int) -> int:
    """The smallest number of rows in `SIZES` that holds some rows."""
    return SIZES[0] if rows <= SIZES[0] else -(-rows // 16) * 16


@torch.inference_mode()  # type: ignore[untyped-decorator]
def make_rows_independent(model: Any) -> bool:
    """Replace the products of a model by ones that treat every row alike; False if that was done before.

    The model can then only run on this CPU.
    """
    if getattr(model, _MARK, False):
        return False
    setattr(model, _MARK, True)
    layers = [module for module in model.modules() if isinstance(module, torch.nn.Linear)]
    head = model.get_output_embeddings()
    can_pack = all(
        _packed_rows_agree(layer, MOST_SLOTS if layer is head else LARGEST) for layer in _one_of_each_shape(layers)
    )
    piece = 0 if can_pack else _largest_piece(layers)
    embeddings = model.get_input_embeddings().weight
    for layer in layers:
        product: Any = _packed(layer) if can_pack else _in_pieces(layer, piece)
        layer.forward = product
        if can_pack and layer.weight is not embeddings:
            # The packed weights take the place of the plain ones, which would double the memory.
            layer.weight = torch.nn.Parameter(product.weight, requires_grad=False)
    return True


def _one_of_each_shape(layers: list[Any]) -> Iterator[Any]:
    return iter({tuple(layer.weight.shape): layer for layer in layers}.values())


class Packed:
    """A product with weights in the layout of oneDNN; it accepts any number of rows."""

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None) -> None:
        self.weight = torch.ops.mkldnn._reorder_linear_weight(weight, LARGEST)
        self._bias = bias

    def __call__(self, rows: torch.Tensor) -> torch.Tensor:
        """The product with some rows."""
        return self._with("none", rows)

    def swish(self, rows: torch.Tensor) -> torch.Tensor:
        """The product through the activation SiLU."""
        return self._with("swish", rows)

    def times(self, rows: torch.Tensor, factors: torch.Tensor) -> torch.Tensor:
        """The product, multiplied number by number."""
        product: torch.Tensor = torch.ops.mkldnn._linear_pointwise.binary(rows, factors, self.weight, self._bias, "mul")
        return product

    def _with(self, activation: str, rows: torch.Tensor) -> torch.Tensor:
        product: torch.Tensor = torch.ops.mkldnn._linear_pointwise(rows, self.weight, self._bias, activation, [], "")
        return product


def _packed(layer: Any) -> Packed:
    return Packed(layer.weight.detach(), None if layer.bias is None else layer.bias.detach())


def _packed_rows_agree(layer: Any, most_rows: int) -> bool:
    """Whether packed weights of this shape give a row the same bits in every product."""
    try:
        return rows_agree(_packed(layer), inputs=layer.weight.shape[1], most_rows=most_rows)
    except (RuntimeError, AttributeError):  # this build of torch has no oneDNN
        return False


def rows_agree(product: _Product, *, inputs: int, most_rows: int) -> bool:
    """Whether random rows get the same bits in products of all sizes up to a limit, wherever they stand."""
    rows = torch.randn(most_rows, inputs, generator=torch.Generator().manual_seed(0))
    reference = product(rows)
    for size in SIZES:
        first = (most_rows - size) // 2
        if size < most_rows and not torch.equal(product(rows[first : first + size]), reference[first : first + size]):
            return False
    return bool((product(rows[:1].expand(most_rows, -1).contiguous()) == reference[0]).all())


def _largest_piece(layers: list[Any]) -> int:
    """The largest number of rows, up to a limit, for which every product treats all of its rows alike."""
    piece = _PIECE
    while piece > 1 and not all(_equal_rows_agree(layer, piece) for layer in _one_of_each_shape(layers)):
        piece //= 2
    return piece


def _equal_rows_agree(layer: Any, count: int) -> bool:
    row = torch.randn(1, layer.weight.shape[1], generator=torch.Generator().manual_seed(0))
    product = functional.linear(row.expand(count, -1).contiguous(), layer.weight)
    return bool((product == product[0]).all())


def _in_pieces(layer: Any, piece: int) -> _Product:
    """A product in pieces of a fixed number of rows, the last one filled up with zeros."""

    def product(rows: torch.Tensor) -> torch.Tensor:
        flat = rows.reshape(-1, rows.shape[-1])
        padded = functional.pad(flat, (0, 0, 0, -len(flat) % piece))
        pieces = [functional.linear(part, layer.weight, layer.bias) for part in padded.split(piece)]
        return torch.cat(pieces)[: len(flat)].view(*rows.shape[:-1], -1)

    return product
