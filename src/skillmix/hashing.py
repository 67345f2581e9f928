"""Content hashes, and draws by hash, which are the only source of randomness in a run."""

import json
from hashlib import blake2b
from typing import Final

HEX_ID: Final = 16
"""The number of hex digits in a printed id. With 64 bits, two of a million ids collide with a probability of 3e-8."""
# A shared encoder, because `json.dumps` with settings would create one for each call.
_canonical: Final = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"), sort_keys=True, allow_nan=False).encode


def digest(*parts: object, size: int = 16) -> bytes:
    """Hash JSON-serializable parts and their boundaries, so that ("ab", "c") and ("a", "bc") differ."""
    return blake2b(_canonical(parts).encode("utf-8", "surrogatepass"), digest_size=size).digest()


def short_id(*parts: object) -> str:
    """Make a printable id from JSON-serializable parts.

    >>> len(short_id("a", 1))
    16
    """
    return digest(*parts, size=HEX_ID // 2).hex()


def ranked(items: list[str], *purpose: object) -> list[str]:
    """Sort items by a hash of the purpose and the item, so that a new item does not reorder the existing items.

    >>> sorted(ranked(["a", "b", "c"], "demo")) == ["a", "b", "c"]
    True
    """
    return sorted(items, key=lambda item: digest(*purpose, item))


def seed_of(experiment_seed: int, *key: object) -> int:
    """Derive the 31-bit seed of a call from the experiment's seed and the call's key."""
    return int.from_bytes(digest(experiment_seed, *key, size=4)) >> 1


def permuted(index: int, total: int, key: bytes) -> int:
    """Map an index to its image under a keyed permutation of range(total).

    Draws without replacement can then compute the n-th item directly. The permutation is a Feistel network over an even
    number of bits, repeated until the result is below `total`.

    >>> sorted(permuted(i, 10, b"key") for i in range(10)) == list(range(10))
    True
    """
    return _image(index, total, key, is_inverse=False)


def unpermuted(image: int, total: int, key: bytes) -> int:
    """Invert `permuted`: return the index of an image.

    >>> [unpermuted(permuted(i, 10, b"key"), 10, b"key") for i in range(4)]
    [0, 1, 2, 3]
    """
    return _image(image, total, key, is_inverse=True)


def _image(place: int, total: int, key: bytes, *, is_inverse: bool) -> int:
    half = max(1, ((total - 1).bit_length() + 1) // 2)  # the number of bits in each half of the network
    size, mask = (half + 7) // 8, (1 << half) - 1

    def mixed(number: int, value: int) -> int:
        content = bytes([number]) + value.to_bytes(size, "big")
        return int.from_bytes(blake2b(content, key=key, digest_size=size).digest(), "big") & mask

    while True:
        left, right = place >> half, place & mask
        for number in reversed(range(_ROUNDS)) if is_inverse else range(_ROUNDS):
            if is_inverse:
                left, right = right ^ mixed(number, left), left
            else:
                left, right = right, left ^ mixed(number, right)
        place = left << half | right
        if place < total:
            return place


_ROUNDS: Final = 8
