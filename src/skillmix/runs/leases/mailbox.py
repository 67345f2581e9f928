"""Letters between two processes: each arrives once and in order, however often packets are lost, repeated or late.

A packet holds every letter that the other side has not confirmed. The other side takes those that are new to it.
"""

from dataclasses import dataclass, field
from typing import Generic, TypeVar

Sent = TypeVar("Sent")
Taken = TypeVar("Taken")


@dataclass(frozen=True, slots=True)
class Packet(Generic[Sent]):
    """Letters on their way, with the number of letters that its sender has taken."""

    taken: int
    first: int
    """The number of the first letter."""
    letters: tuple[Sent, ...]


@dataclass(slots=True)
class Mailbox(Generic[Sent, Taken]):
    """One end of the exchange.

    >>> here, there = Mailbox[str, str](), Mailbox[str, str]()
    >>> here.put("a")
    >>> packet = here.packet()
    >>> there.take(packet), there.take(packet)
    (['a'], [])
    >>> here.take(there.packet())
    []
    >>> here.packet().letters
    ()
    """

    _confirmed: int = 0
    _waiting: list[Sent] = field(default_factory=list)
    """Letters that the other side has not confirmed."""
    _taken: int = 0

    @property
    def has_letters(self) -> bool:
        """Whether a letter is not confirmed yet."""
        return bool(self._waiting)

    def put(self, letter: Sent) -> None:
        """Send a letter with the next packet."""
        self._waiting.append(letter)

    def packet(self) -> Packet[Sent]:
        """Every letter that is not confirmed."""
        return Packet(self._taken, self._confirmed, tuple(self._waiting))

    def take(self, packet: Packet[Taken]) -> list[Taken]:
        """The letters of a packet that are new, in order; letters that the other side has taken are dropped here."""
        confirmed = max(0, packet.taken - self._confirmed)
        del self._waiting[:confirmed]
        self._confirmed += confirmed
        new = list(packet.letters[max(0, self._taken - packet.first) :])
        self._taken += len(new)
        return new
