"""Replace a model's small operations with kernels, and matrix products that share an input with a single product.

Only modules of a known form are replaced, and only if the replacement computes the same numbers as the module on random
inputs. A model with other modules still works, but more slowly.
"""

import sys
from collections.abc import Callable
from typing import Any, Final

import torch
from torch import nn
from torch.nn.functional import linear

from skillmix.models.local.attention import CacheShape
from skillmix.models.local.gpu.kernels import rms_norm, rotate, silu_and_multiply

_MARK: Final = "is_fused_by_skillmix"
_TOLERANCE: Final = 0.02
"""The largest relative difference between a module and its replacement; bfloat16 rounds by 0.004."""
_TRIED_ROWS: Final = 3


@torch.no_grad()
def fuse(model: Any) -> None:
    """Replace the known modules of a model, once.

    THIS PATCHES TRANSFORMERS FOR THE WHOLE PROCESS. Attention layers call `apply_rotary_pos_emb` as a global function
    of the model's module, so the kernel replaces that name. Calls with gradients, on a CPU or with other arguments
    still use the original function.
    """
    if getattr(model, _MARK, False):
        return
    setattr(model, _MARK, True)
    _fuse_rotary(model)
    is_right: dict[type, bool] = {}
    for module in model.modules():
        kind = type(module)
        replacement = _replacement(module)
        if replacement is None:
            continue
        if kind not in is_right:
            weight = next(module.parameters())
            generator = torch.Generator().manual_seed(0)
            hidden = torch.randn(_TRIED_ROWS, 1, weight.shape[-1], generator=generator).to(weight.device, weight.dtype)
            is_right[kind] = _is_close(replacement(hidden), module.forward(hidden))
        if is_right[kind]:
            module.forward = replacement
    for module in model.modules():
        _share_product(module, ("q_proj", "k_proj", "v_proj"))


def _replacement(module: Any) -> Callable[[torch.Tensor], torch.Tensor] | None:
    name = type(module).__name__
    if name.endswith("RMSNorm") and hasattr(module, "variance_epsilon"):
        return lambda hidden: rms_norm(hidden, module.weight, module.variance_epsilon)
    if name.endswith("MLP") and all(_is_plain(getattr(module, part, None)) for part in ("gate_proj", "up_proj")):
        both = _joined([module.gate_proj, module.up_proj])
        return lambda hidden: module.down_proj(silu_and_multiply(linear(hidden, both)))
    return None


def _is_plain(module: Any) -> bool:
    return type(module) is nn.Linear and module.bias is None


def _joined(modules: list[Any]) -> torch.Tensor:
    """Concatenate the weights of several products; the modules' weights become views of the result to save memory."""
    joined = torch.cat([module.weight.data for module in modules])
    first = 0
    for module in modules:
        module.weight.data = joined[first : first + len(module.weight)]
        first += len(module.weight)
    return joined


def _is_close(found: torch.Tensor, wanted: torch.Tensor) -> bool:
    difference = (found.float() - wanted.float()).norm() / wanted.float().norm()
    return found.shape == wanted.shape and bool(difference < _TOLERANCE)


def _share_product(module: Any, names: tuple[str, ...]) -> None:
    """Compute several products of one input together when the first is called; the other modules take their parts."""
    parts: list[Any] = [getattr(module, name, None) for name in names]
    if not all(_is_plain(part) for part in parts) or len({part.weight.shape[1] for part in parts}) > 1:
        return
    joined = _joined(parts)
    sizes = [len(part.weight) for part in parts]
    taken: dict[int, Any] = {}

    def first(hidden: torch.Tensor) -> torch.Tensor:
        results = linear(hidden, joined).split(sizes, dim=-1)
        # A part is dropped as soon as a module has taken it, because a kept tensor would keep the memory of a captured
        # graph in use.
        taken.update({index: (hidden, results[index]) for index in range(1, len(results))})
        return results[0]

    def other(index: int, hidden: torch.Tensor) -> torch.Tensor:
        given, result = taken.pop(index, (None, None))
        if given is hidden:
            return result
        return linear(hidden, parts[index].weight)

    parts[0].forward = first
    for index in range(1, len(parts)):
        parts[index].forward = lambda hidden, index=index: other(index, hidden)


def _fuse_rotary(model: Any) -> None:
    modeling: Any = sys.modules[type(model).__module__]
    plain = getattr(modeling, "apply_rotary_pos_emb", None)
    if plain is None or getattr(plain, _MARK, False):
        return

    def rotated(query: torch.Tensor, key: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, **options: Any) -> Any:
        is_known = query.is_cuda and not options and not torch.is_grad_enabled() and cos.shape[-1] == query.shape[-1]
        return rotate(query, key, cos, sin) if is_known else plain(query, key, cos, sin, **options)

    generator = torch.Generator().manual_seed(0)
    # The sizes are fixed for a model, so the kernel is compiled once.
    shape = CacheShape(model)
    heads = shape.heads * shape.groups, shape.heads
    query, key = (
        torch.randn(2, n, 3, shape.head_size, generator=generator).to(shape.device, shape.dtype) for n in heads
    )
    angles = torch.rand(2, 3, shape.head_size // 2, generator=generator).repeat(1, 1, 2).to(shape.device)
    inputs = query, key, angles.cos().to(model.dtype), angles.sin().to(model.dtype)
    if all(_is_close(found, wanted) for found, wanted in zip(rotate(*inputs), plain(*inputs), strict=True)):
        setattr(rotated, _MARK, True)
        modeling.apply_rotary_pos_emb = rotated
