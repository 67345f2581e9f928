"""Pinned memory through which the processor and the GPU exchange numbers without waiting for each other.

The processor works one round ahead. It queues the steps of a round, and then looks at the rows as they were after the
previous round. `Staging` contains the data sent to the device, and `Snapshots` contains the data that come back.
"""

from collections.abc import Callable, Sequence
from typing import Any, Final

import numpy as np
import torch

_STAGING_BYTES: Final = 32 << 20
"""Bytes of pinned memory for everything that is sent to the device in one round."""
_ALIGNMENT: Final = 16
_DTYPES: Final = {"int64": torch.int64, "float32": torch.float32}


class Staging:
    """Two halves of pinned memory; a round fills one while the device may still read the other."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        is_pinned = device.type == "cuda"
        self._halves = [torch.empty(_STAGING_BYTES, dtype=torch.uint8, pin_memory=is_pinned) for _ in range(2)]
        self._used = 0

    def next_round(self) -> None:
        """Use the other half; the device must have finished the round that filled it."""
        self._halves.reverse()
        self._used = 0

    def take(self, size: int) -> torch.Tensor:
        """Return memory of a given size to fill; it is not pinned if the round sends more than one half can hold."""
        start, end = self._used, self._used + size
        if end > len(self._halves[0]):
            return torch.empty(size, dtype=torch.uint8)
        self._used = -(-end // _ALIGNMENT) * _ALIGNMENT
        return self._halves[0][start:end]

    def to_device(self, array: np.ndarray) -> torch.Tensor:
        """Copy numbers to the device."""
        staged = self.take(array.nbytes)
        staged.copy_(torch.from_numpy(array.reshape(-1).view(np.uint8)))
        copy = staged.to(self.device, non_blocking=True)
        return copy.view(_DTYPES[array.dtype.name]).view(array.shape)


class Snapshots:
    """The rows as they were after the last two rounds."""

    def __init__(self, make_event: Callable[[], Any], state: Sequence[torch.Tensor]) -> None:
        """Keep copies of some of the device's tensors, whose first dimension is the slot."""
        self._state = list(state)
        self._events = [make_event() for _ in range(2)]
        self._copies = [
            [torch.zeros(tensor.shape, dtype=tensor.dtype, pin_memory=tensor.is_cuda) for tensor in state]
            for _ in range(2)
        ]
        self._rounds = 0
        self._started = np.zeros(len(state[0]), dtype=np.int64)
        """The round after which a snapshot first shows the row of a slot."""
        self.newest_shown: list[np.ndarray] = []
        """What `newest` returned last; the next `take` may overwrite it."""

    def note_started(self, slots: Sequence[int]) -> None:
        """Record that rows start in some slots before the next round."""
        self._started[list(slots)] = self._rounds

    def take(self) -> None:
        """Copy the state once the device has completed the steps of a round."""
        for copy, tensor in zip(self._copies[self._rounds % 2], self._state, strict=True):
            copy.copy_(tensor, non_blocking=True)
        self._events[self._rounds % 2].record()
        self._rounds += 1

    def newest(self) -> tuple[list[np.ndarray], np.ndarray]:
        """Return the newest state that is available without waiting, or else the state of the round before the last.

        The second array states for each slot whether the state describes its current row.
        """
        index = self._rounds - 1
        if index > 0 and not self._events[index % 2].query():
            index -= 1
        self._events[index % 2].synchronize()
        self.newest_shown = [copy.numpy() for copy in self._copies[index % 2]]
        return self.newest_shown, self._started <= index
