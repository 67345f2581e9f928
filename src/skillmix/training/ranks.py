"""The processes that train together: a single process, or the processes that torchrun started."""

import atexit
import os
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as distributed
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard


@dataclass(frozen=True, slots=True)
class Ranks:
    """The number of processes, and the index of this process."""

    own: int = 0
    count: int = 1

    @property
    def is_first(self) -> bool:
        """Whether this process writes the files that all ranks share."""
        return self.own == 0

    def summed(self, numbers: torch.Tensor) -> torch.Tensor:
        """Sum a tensor over all ranks in place, and return it."""
        if self.count > 1:
            distributed.all_reduce(numbers)
        return numbers

    def minimum(self, number: float, device: torch.device) -> float:
        """Return the smallest of all ranks' numbers."""
        if self.count == 1:
            return number
        smallest = torch.tensor(number, dtype=torch.float64, device=device)
        distributed.all_reduce(smallest, op=distributed.ReduceOp.MIN)
        return float(smallest)

    def wait(self) -> None:
        """Block until all ranks have arrived."""
        if self.count > 1:
            distributed.barrier()


def joined_ranks() -> Ranks:
    """Join the other processes if torchrun started any."""
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


def shard(packed: Any, ranks: Ranks, *, reshard: bool) -> None:
    """Shard the weights, both inside and outside the layers, by rows.

    Gradients are summed over the ranks, not averaged, because each loss is already divided by the tokens of all ranks.
    """
    device = next(packed.parameters()).device
    mesh = init_device_mesh(device.type, (ranks.count,))
    policy = MixedPrecisionPolicy(reduce_dtype=torch.float32)
    for layer in packed.layers:
        fully_shard(layer, mesh=mesh, mp_policy=policy, reshard_after_forward=reshard)
    # The embeddings and the output matrix often share their weights, which both ends of the forward pass need.
    fully_shard(packed, mesh=mesh, mp_policy=policy, reshard_after_forward=False)
    for module in (*packed.layers, packed):
        module.set_gradient_divide_factor(1.0)
        module.set_force_sum_reduction_for_comms(True)


def gather(model: Any, ranks: Ranks) -> None:
    """Collect all weights in the CPU memory of the first rank; the weights on other ranks become empty."""
    gathered: dict[int, nn.Parameter] = {}
    for module in model.modules():
        for name, parameter in list(module.named_parameters(recurse=False)):
            if id(parameter) not in gathered:
                data = parameter.data
                full = data.full_tensor() if hasattr(data, "full_tensor") else data
                kept = full.cpu() if ranks.is_first else full.new_empty(0, device="cpu")
                gathered[id(parameter)] = nn.Parameter(kept, requires_grad=parameter.requires_grad)
            module._parameters[name] = gathered[id(parameter)]


def local_part(tensor: Any) -> torch.Tensor:
    """Return this rank's part of a sharded tensor, or any other tensor unchanged."""
    local: torch.Tensor = tensor.to_local() if hasattr(tensor, "to_local") else tensor
    return local


def start_of(parameter: Any) -> int:
    """Return the index of this rank's first element in the whole parameter."""
    if not hasattr(parameter, "to_local"):
        return 0
    from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

    _, offset = compute_local_shape_and_global_offset(parameter.shape, parameter.device_mesh, parameter.placements)
    return int(min(offset[0] * (parameter.numel() // parameter.shape[0]), parameter.numel()))
