"""Weights, moments and gradients divided among ranks by PyTorch's FSDP2, and put together again."""

from typing import Any

import torch
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

from skillmix.training.ranks import Ranks


def shard(packed: Any, ranks: Ranks, *, reshard: bool) -> None:
    """Divide every layer, and what is outside of them, by rows; gradients of all ranks are added up, not averaged."""
    device = next(packed.parameters()).device
    mesh = init_device_mesh(device.type, (ranks.count,))
    policy = MixedPrecisionPolicy(reduce_dtype=torch.float32)
    for layer in packed.layers:
        fully_shard(layer, mesh=mesh, mp_policy=policy, reshard_after_forward=reshard)
    # Embeddings and the output matrix, often the same, are needed at both ends of the forward pass.
    fully_shard(packed, mesh=mesh, mp_policy=policy, reshard_after_forward=False)
    for module in (*packed.layers, packed):
        module.set_gradient_divide_factor(1.0)
        module.set_force_sum_reduction_for_comms(True)


def gather(model: Any, ranks: Ranks) -> None:
    """Make the first rank's weights whole again, in ordinary memory; the other ranks are left with empty ones."""
    whole: dict[int, nn.Parameter] = {}
    for module in model.modules():
        for name, parameter in list(module.named_parameters(recurse=False)):
            if id(parameter) not in whole:
                full = _whole(parameter.data)
                kept = full.cpu() if ranks.is_first else full.new_empty(0, device="cpu")
                whole[id(parameter)] = nn.Parameter(kept, requires_grad=parameter.requires_grad)
            module._parameters[name] = whole[id(parameter)]


def local_part(tensor: Any) -> torch.Tensor:
    """This rank's part of a divided tensor; any other as it is."""
    found: torch.Tensor = tensor.to_local() if hasattr(tensor, "to_local") else tensor
    return found


def start_of(parameter: Any) -> int:
    """Index of this rank's first element in the whole parameter."""
    if not hasattr(parameter, "to_local"):
        return 0
    from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

    _, offset = compute_local_shape_and_global_offset(parameter.shape, parameter.device_mesh, parameter.placements)
    return int(min(offset[0] * (parameter.numel() // parameter.shape[0]), parameter.numel()))


def _whole(tensor: Any) -> torch.Tensor:
    found: torch.Tensor = tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor
    return found
