"""A training that several processes of a cluster do together, as its ranks."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from skillmix.models.checkpoints import Checkpoint

OWN_DISKS: Final = "SKILLMIX_OWN_DISKS"
"""Set in the environment of ranks whose machines share no disk: each machine has its part of a checkpoint."""

RankEvent = tuple[str, tuple[Any, ...], dict[str, Any]]
"""What the first rank reports: the name of a method of the run's progress or `say`, and its arguments."""


@dataclass(frozen=True, slots=True)
class RankWork:
    """What the ranks of one train step do."""

    step: str
    train: Callable[..., None]
    """A function of a module. A rank calls it with a function that takes events, the base on its machine, the folder
    of the training on its machine and the payload."""
    payload: Any
    base: Checkpoint
    folder: Path
    """The folder of the training on the driver's machine."""
    model: Path
    """The folder of the trained model on the driver's machine; it is `model` in the folder of the training."""
    ranks: int | None
    """Processes that the experiment file asks for."""
    on_event: Callable[[RankEvent], None]
    """Is given the events of the first rank."""
    steps_saved: Callable[[], int]
    """Steps of the last checkpoint in the folder; 0 without one."""
    paths: tuple[str, ...] = ()
    """Further files and folders that every machine must see."""
