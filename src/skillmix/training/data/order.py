"""The conversations and replayed texts of an optimiser step, as a function of the step's number."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil, floor

from skillmix.hashing import digest, permuted
from skillmix.training.data.examples import Example
from skillmix.training.data.replay import Replay


@dataclass(frozen=True)
class TrainingOrder:
    """Conversations in a new order in each epoch, in batches, with replayed texts.

    A batch may hold the last conversations of one epoch and the first of the next.
    """

    conversations: Sequence[Example]
    batch: int
    seed: int
    total: int | None = None
    """Conversations of the whole training, if the last batch may be smaller."""
    replay: Replay | None = None
    replay_ratio: float = 0.0
    """Replayed texts per conversation."""

    @property
    def steps_per_epoch(self) -> int:
        """Steps until every conversation was used once."""
        return ceil(len(self.conversations) / self.batch)

    def step(self, number: int) -> Sequence[Example]:
        """All examples of a step, counted from 0."""
        start = number * self.batch
        end = start + self.batch if self.total is None else min(start + self.batch, self.total)
        examples = [self._conversation(number) for number in range(start, end)]
        if self.replay is not None:
            first, last = (floor(number * self.replay_ratio + 1e-9) for number in (start, end))
            examples += [self.replay.text(number) for number in range(first, last)]
        return examples

    def _conversation(self, number: int) -> Example:
        """The conversation of a number, counted from the start of the training."""
        epoch, index = divmod(number, len(self.conversations))
        key = digest("training order", self.seed, epoch, size=16)
        return self.conversations[permuted(index, len(self.conversations), key)]


def steps_of(epochs: float, *, conversations: int, batch: int) -> tuple[int, int]:
    """The steps and the conversations of a number of epochs.

    >>> steps_of(2, conversations=100, batch=64)
    (4, 200)
    """
    total = max(1, round(epochs * conversations))
    return ceil(total / batch), total
