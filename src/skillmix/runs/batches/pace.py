"""How often a provider is asked about its batches, and how long a run waits for them."""

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class BatchPace:
    """Seconds, and numbers of looks."""

    first_look: float = 5.0
    """From the creation of a batch to the first look at it; every further wait is half as long again."""
    longest_wait: float = 120.0
    """Between two looks at a batch."""
    tick: float = 0.05
    """Between two looks for calls that can go into the next batch."""
    settled: float = 60.0
    """From the call that creates a batch until a batch that is not in the provider's list does not exist."""
    late: float = 600.0
    """From the end of a batch until results that are missing do not exist."""
    pause: float = 30.0
    """After a batch that was refused as a whole, until the next; every further pause is twice as long."""
    longest_pause: float = 600.0
    refusals: int = 3
    """Batches that may be refused in a row for a reason that may pass."""


PACE = BatchPace()
"""The pace of this process; tests put a faster one here."""
WAIT: Final = 26 * 3600.0
"""Seconds without a result after which a run leaves its batches; providers end theirs after 24 hours."""


@dataclass(frozen=True, slots=True)
class BatchWishes:
    """What the user wants of the batches of a run."""

    wait: float = WAIT
    """Seconds without a result after which the run leaves its batches; 0 leaves them as soon as they are sent."""
    forgets: bool = False
    """Whether calls that are part of batches are made again, although they may be paid for."""


USUAL: Final = BatchWishes()
