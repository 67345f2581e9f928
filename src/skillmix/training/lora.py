"""Adapters of low rank, in the form that PEFT saves and others load."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from skillmix.errors import UserError


@dataclass(frozen=True, slots=True)
class Lora:
    """How an adapter is shaped."""

    rank: int
    alpha: float
    dropout: float
    targets: Sequence[str] | str
    """Names of layers, or `all-linear`."""


def with_adapter(model: Any, lora: Lora, *, seed: int) -> Any:
    """A model of which only a new adapter is trained; what it starts from depends on the seed alone."""
    try:
        from peft import LoraConfig, get_peft_model
    except ImportError:
        raise UserError("LoRA needs peft.", hint="pip install 'skillmix[train]'") from None
    targets = lora.targets if isinstance(lora.targets, str) else list(lora.targets)
    config = LoraConfig(
        r=lora.rank,
        lora_alpha=int(lora.alpha) if float(lora.alpha).is_integer() else lora.alpha,
        lora_dropout=lora.dropout,
        target_modules=targets,
        task_type="CAUSAL_LM",
    )
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        try:
            return get_peft_model(model, config)
        except ValueError as error:
            raise UserError(
                f"The adapter does not fit: {error}", hint="lora.targets names layers, such as q_proj."
            ) from None
