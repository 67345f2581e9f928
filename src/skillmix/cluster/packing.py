"""Packets of letters as bytes; both ends have the same version of skillmix and trust each other."""

import pickle
import zlib
from typing import Any, Final

from skillmix.runs.leases.mailbox import Packet

_INLINE: Final = 95_000
"""Bytes. Ray sends up to 100 kB with the answer itself; more goes through its object store, at twice the time."""
_PICKLE: Final = b"\x80"
"""The first byte of a pickle; compressed data begins with another."""


def packed(packet: Packet[Any]) -> bytes:
    """The bytes of a packet, compressed if they are many: prompts repeat each other.

    >>> len(packed(Packet(0, 0, ("word " * 100_000,)))) < 10_000
    True
    """
    # Ray would pickle a packet with a pickler of its own, which is several times as slow.
    data = pickle.dumps(packet, pickle.HIGHEST_PROTOCOL)
    return data if len(data) <= _INLINE else zlib.compress(data, level=1)


def unpacked(data: bytes) -> Packet[Any]:
    """The packet of these bytes.

    >>> unpacked(packed(Packet(2, 1, ("a", "b"))))
    Packet(taken=2, first=1, letters=('a', 'b'))
    >>> len(unpacked(packed(Packet(0, 0, ("word " * 100_000,)))).letters[0])
    500000
    """
    packet: Packet[Any] = pickle.loads(data if data[:1] == _PICKLE else zlib.decompress(data))
    return packet
