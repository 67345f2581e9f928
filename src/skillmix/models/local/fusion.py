"""The small operations between matrix products, compiled into few: they are most of a small model's step on a GPU."""

import sys
from typing import Any, Final

import torch

_FUSED: Final = ("RMSNorm", "MLP")
"""Ends of the names of modules that are mostly small operations."""
_MARK: Final = "is_fused_by_skillmix"


def fuse(model: Any) -> None:
    """Compile parts of a model, once; shapes stay free, so that one compilation serves steps and prompts."""
    if getattr(model, _MARK, False):
        return
    setattr(model, _MARK, True)
    modeling: Any = sys.modules[type(model).__module__]
    rotate = getattr(modeling, "apply_rotary_pos_emb", None)
    if rotate is not None and not getattr(rotate, _MARK, False):
        modeling.apply_rotary_pos_emb = torch.compile(rotate, dynamic=True)
        setattr(modeling.apply_rotary_pos_emb, _MARK, True)
    for module in model.modules():
        if type(module).__name__.endswith(_FUSED):
            module.forward = torch.compile(module.forward, dynamic=True)
