"""The processes that train together: one, or those that torchrun started."""

import atexit
import os
from dataclasses import dataclass

import torch
import torch.distributed as distributed


@dataclass(frozen=True, slots=True)
class Ranks:
    """How many processes there are, and which of them this is."""

    own: int = 0
    count: int = 1

    @property
    def is_first(self) -> bool:
        """Whether this process writes the files that exist once."""
        return self.own == 0

    def summed(self, numbers: torch.Tensor) -> torch.Tensor:
        """The sum over all ranks."""
        if self.count > 1:
            distributed.all_reduce(numbers)
        return numbers

    def least(self, number: float, device: torch.device) -> float:
        """The smallest of all ranks' numbers."""
        if self.count == 1:
            return number
        found = torch.tensor(number, dtype=torch.float64, device=device)
        distributed.all_reduce(found, op=distributed.ReduceOp.MIN)
        return float(found)

    def wait(self) -> None:
        """Go on when all ranks are here."""
        if self.count > 1:
            distributed.barrier()


def joined_ranks() -> Ranks:
    """Meet the other processes, if torchrun started any."""
    count = int(os.environ.get("WORLD_SIZE", "1"))
    if count == 1:
        return Ranks()
    if not distributed.is_initialized():
        if torch.cuda.is_available() and os.environ.get("SKILLMIX_DEVICE", "cuda") == "cuda":
            torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")))
            distributed.init_process_group("cuda:nccl,cpu:gloo")
        else:
            distributed.init_process_group("gloo")
        atexit.register(distributed.destroy_process_group)
    return Ranks(distributed.get_rank(), distributed.get_world_size())
