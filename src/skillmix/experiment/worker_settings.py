"""Where and how the calls of a run are made and stored; these settings change no request and no result."""

from typing import Annotated, Final

from pydantic import Field, field_validator

from skillmix.experiment.step_base import Section

MOST_WRITERS: Final = 16
"""Journal files of a run; its ids are divided among them by their first two hexadecimal digits."""
_MOST_LEASES: Final = 64
_MOST_OF_A_NODE: Final = 4096


class WorkerSettings(Section):
    """Workers on a cluster, and the files that store their rows."""

    gpus: Annotated[float, Field(gt=0, le=_MOST_OF_A_NODE)] | None = None
    """GPUs of a worker; a share such as 0.5 lets workers share a GPU. None leaves it to the models of a step."""
    cpus: Annotated[float, Field(gt=0, le=_MOST_OF_A_NODE)] | None = None
    """CPUs of a worker; a node has as many workers as fit. None stands for one worker on each node."""
    leases: Annotated[int, Field(ge=1, le=_MOST_LEASES)] = 2
    """Leases of a worker: while the last calls of one are under way, the other has work."""
    writers: Annotated[int, Field(ge=1, le=MOST_WRITERS)] = 1
    """Journal files that are written at the same time."""

    @field_validator("gpus", "cpus")
    @classmethod
    def _is_share_or_whole(cls, amount: float | None) -> float | None:
        if amount is not None and amount > 1 and amount != int(amount):
            raise ValueError("above 1 this must be a whole number, because Ray divides only one of them")
        return amount
