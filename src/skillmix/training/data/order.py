"""Which conversations and which replayed texts belong to an optimiser step: a function of the step's number."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil, floor

from skillmix.hashing import digest, permuted
from skillmix.training.data.examples import Example
from skillmix.training.data.replay import Replay


@dataclass(frozen=True)
class TrainingOrder:
    """Conversations in a new order in each epoch, batch by batch, with replayed texts beside them.

    A batch is so many conversations, however they are packed. Epochs follow each other without a gap: a batch may
    hold the last conversations of one and the first of the next.
    """

    conversations: Sequence[Example]
    batch: int
    seed: int
    total: int | None = None
    """Conversations in all, if the last batch may be smaller."""
    replay: Replay | None = None
    replay_ratio: float = 0.0
    """Replayed texts for each conversation."""

    @property
    def steps_per_epoch(self) -> int:
        """Steps until every conversation was seen."""
        return ceil(len(self.conversations) / self.batch)

    def step(self, number: int) -> Sequence[Example]:
        """Everything that one step learns from."""
        start = number * self.batch
        end = start + self.batch if self.total is None else min(start + self.batch, self.total)
        found = [self._conversation(place) for place in range(start, end)]
        if self.replay is not None:
            first, last = (floor(place * self.replay_ratio + 1e-9) for place in (start, end))
            found += [self.replay.text(place) for place in range(first, last)]
        return found

    def _conversation(self, place: int) -> Example:
        epoch, index = divmod(place, len(self.conversations))
        key = digest("training order", self.seed, epoch, size=16)
        return self.conversations[permuted(index, len(self.conversations), key)]


def steps_of(epochs: float, *, conversations: int, batch: int) -> tuple[int, int]:
    """Steps and conversations of so many epochs.

    >>> steps_of(2, conversations=100, batch=64)
    (4, 200)
    """
    total = max(1, round(epochs * conversations))
    return ceil(total / batch), total
