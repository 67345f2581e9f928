"""Content hashes and hash-driven draws; the only source of randomness for what a run contains."""

import json
from hashlib import blake2b
from typing import Final

HEX_ID: Final = 16
"""Hex digits of a printed id: 64 bits, so a million ids collide with a chance of 3e-8."""


# `json.dumps` with settings of its own makes an encoder for each call, which takes longer than the encoding.
_canonical: Final = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"), sort_keys=True, allow_nan=False).encode


def digest(*parts: object, size: int = 16) -> bytes:
    """Hash of JSON-able parts; their boundaries count, so ("ab", "c") and ("a", "bc") differ."""
    return blake2b(_canonical(parts).encode("utf-8", "surrogatepass"), digest_size=size).digest()


def short_id(*parts: object) -> str:
    """Printable id of JSON-able parts.

    >>> len(short_id("a", 1))
    16
    """
    return digest(*parts, size=HEX_ID // 2).hex()


def ranked(items: list[str], *purpose: object) -> list[str]:
    """The items in an order that depends on the purpose and on each item alone.

    >>> sorted(ranked(["a", "b", "c"], "demo")) == ["a", "b", "c"]
    True
    """
    return sorted(items, key=lambda item: digest(*purpose, item))


def seed_of(experiment_seed: int, *key: object) -> int:
    """The 31-bit seed of one call: a function of the experiment's seed and the call's key."""
    return int.from_bytes(digest(experiment_seed, *key, size=4)) >> 1


def permuted(index: int, total: int, key: bytes) -> int:
    """Where a keyed permutation of range(total) sends an index.

    A Feistel network over the next even number of bits, walked until it lands inside: a draw without
    replacement whose n-th item is known without the others, for totals of any size.

    >>> sorted(permuted(i, 10, b"key") for i in range(10)) == list(range(10))
    True
    """
    half = max(1, ((total - 1).bit_length() + 1) // 2)
    mask = (1 << half) - 1
    size = (half + 7) // 8
    from_bytes = int.from_bytes
    while True:
        left, right = index >> half, index & mask
        for number in _ROUND_NUMBERS:
            mixed = blake2b(number + right.to_bytes(size, "big"), key=key, digest_size=size).digest()
            left, right = right, left ^ (from_bytes(mixed, "big") & mask)
        index = left << half | right
        if index < total:
            return index


_ROUND_NUMBERS: Final = [bytes([number]) for number in range(8)]
