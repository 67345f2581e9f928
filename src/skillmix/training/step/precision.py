"""Stochastic rounding to bfloat16: a number goes up or down so that it is right on average.

The noise is a hash of a key, a tick and the element's index: the same in every process and after every restart.
"""

from typing import Final

import torch

_HIGH: Final = -(1 << 16)
"""Mask of the bits that bfloat16 keeps."""


def noise(key: torch.Tensor, tick: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
    """32 even bits for every index, all arguments int32."""
    return _mixed(index ^ _mixed(key ^ _mixed(tick)))


def rounded(values: torch.Tensor, bits: torch.Tensor) -> torch.Tensor:
    """float32 to bfloat16, by the lower 16 bits of the noise."""
    moved = (values.view(torch.int32) + (bits & 0xFFFF)) & _HIGH
    return moved.view(torch.float32).to(torch.bfloat16)


def _mixed(bits: torch.Tensor) -> torch.Tensor:
    """A bijection of 32 bits in which every input bit changes every output bit about half of the time."""
    bits = (bits ^ ((bits >> 16) & 0xFFFF)) * 0x7FEB352D
    bits = (bits ^ ((bits >> 15) & 0x1FFFF)) * -0x7B935975
    return bits ^ ((bits >> 16) & 0xFFFF)


def high_part(values: torch.Tensor) -> torch.Tensor:
    """The nearest bfloat16 of each float32, ties away from zero."""
    return ((values.view(torch.int32) + 0x8000) & _HIGH).view(torch.float32).to(torch.bfloat16)


def low_part(values: torch.Tensor) -> torch.Tensor:
    """What `high_part` leaves: 16 bits that make the float32 whole again."""
    return values.view(torch.int32).to(torch.int16)


def joined(high: torch.Tensor, low: torch.Tensor) -> torch.Tensor:
    """The float32 of both parts."""
    return (high.float().view(torch.int32) + low.to(torch.int32)).view(torch.float32)
