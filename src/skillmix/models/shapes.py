"""`new:SHAPE` and `new:MODEL`: the shape of a model whose weights a train step initializes at random."""

import re
from dataclasses import dataclass
from typing import Final

from skillmix.errors import UserError
from skillmix.hashing import digest
from skillmix.models.specs import ModelSpec, parse_spec, provider_of

_NAMED: Final = {"tiny": "96x2x4", "small": "160x3x5", "base": "256x5x8"}
"""Shapes with about 0.27, 1 and 4 million weights, given a vocabulary of 500 tokens."""
_LARGEST: Final = (1024, 32, 32)  # the largest width, number of layers and number of heads
_SHAPE: Final = re.compile(r"(\d{1,4})x(\d{1,2})x(\d{1,2})")
POSITIONS: Final = 2048
"""The context length in tokens; it adds no weights, because Llama's position embeddings are not learned."""


@dataclass(frozen=True, slots=True)
class ModelShape:
    """The dimensions of a model with Llama's architecture, except the size of its vocabulary."""

    width: int
    layers: int
    heads: int

    @property
    def inner(self) -> int:
        """The width of the feed-forward layers: 8/3 of the model's width, rounded up to a multiple of 32."""
        return -(-8 * self.width // 96) * 32

    @property
    def weights(self) -> int:
        """The number of weights, excluding embeddings.

        >>> ModelShape(96, 2, 4).weights
        221664
        """
        return self.layers * (4 * self.width**2 + 3 * self.width * self.inner + 2 * self.width) + self.width

    def hash(self) -> str:
        """Return a substitute for the hash of the weights, which do not exist yet."""
        return digest("new model", self.width, self.layers, self.heads, self.inner).hex()


@dataclass(frozen=True, slots=True)
class CopiedShape:
    """The architecture and tokenizer of another model, such as `bundled:smollm2-135m`, without its weights."""

    spec: str


def shape_of(spec: ModelSpec | str) -> ModelShape | CopiedShape | None:
    """Return the shape that a spec names; None for a spec of another provider.

    >>> shape_of("new:tiny"), shape_of("local:models/a")
    (ModelShape(width=96, layers=2, heads=4), None)
    >>> shape_of("new:local:models/a")
    CopiedShape(spec='local:models/a')
    """
    parsed = parse_spec(spec) if isinstance(spec, str) else spec
    if parsed.provider != "new":
        return None
    if ":" in parsed.name:
        if not provider_of(parsed.name).has_checkpoint:
            raise UserError(
                f"{str(parsed)!r} would copy the shape of a model that is not on this machine.",
                hint="Name a local model: new:local:PATH or new:bundled:NAME.",
            )
        return CopiedShape(parsed.name)
    match = _SHAPE.fullmatch(_NAMED.get(parsed.name, parsed.name))
    sizes = [int(size) for size in match.groups()] if match else []
    is_possible = bool(sizes) and all(0 < size <= most for size, most in zip(sizes, _LARGEST, strict=True))
    if not is_possible or sizes[0] % (8 * sizes[2]):  # attention kernels need heads whose size is a multiple of 8
        named = ", ".join(f"new:{name} ({form})" for name, form in _NAMED.items())
        raise UserError(
            f"{str(parsed)!r} is not a valid shape for a new model.",
            hint=f"Write {named}, or new:WIDTHxLAYERSxHEADS with at most {'x'.join(map(str, _LARGEST))} and a width "
            "that is a multiple of 8 times the heads; new:local:PATH copies the shape and tokenizer of a model.",
        )
    return ModelShape(*sizes)
