"""Buckets of combinations: leases and files of a journal are made of them, whatever the number of workers and files."""

from typing import Final

BUCKETS: Final = 256


def bucket_of(combination: str) -> int:
    """The bucket of a combination id: its first two hexadecimal digits, so that a range of buckets is one of ids.

    >>> bucket_of("0f3a99"), bucket_of("ffff")
    (15, 255)
    """
    return int(combination[:2], 16)


def starts_of(parts: int) -> list[str]:
    """Where each of so many ranges of buckets begins, as the first digits of an id.

    >>> starts_of(4)
    ['', '40', '80', 'c0']
    """
    return ["", *(f"{BUCKETS * number // parts:02x}" for number in range(1, parts))]
