"""LoRA adapters, added to the weights when a model is loaded: it then runs as fast as any other."""

from collections.abc import Collection, Iterable
from pathlib import Path
from typing import Any, Final

import torch
from safetensors.torch import load_file

from skillmix.catalog.json import json_object
from skillmix.errors import UserError
from skillmix.models.local.strangers import reading_weights, some_of

_PREFIX: Final = "base_model.model."
_LARGEST_ALPHA: Final = 1e6
_MUST_BE_EMPTY: Final = (
    "use_dora",
    "fan_in_fan_out",
    "modules_to_save",
    "trainable_token_indices",
    "alpha_pattern",
    "layer_replication",
)


def merge_adapter(model: Any, folder: Path) -> None:
    """Add what an adapter learned to the weights it was learned for."""
    config = _config(folder)
    scale = _scale(config, folder)
    weights = dict(model.named_parameters())
    factors = _factors(folder)
    _refuse_missing(config, folder, weights, factors)
    with torch.no_grad():
        for module, (down, up) in factors.items():
            weight = weights.get(f"{module}.weight")
            shapes = (tuple(up.shape), tuple(down.shape))
            if weight is None or shapes != ((weight.shape[0], len(down)), (len(down), weight.shape[-1])):
                raise UserError(
                    f"The adapter {folder} changes {module}, which this model does not have in that shape.",
                    hint="It was made for another model.",
                )
            down, up = (factor.to(weight.device, torch.float32) for factor in (down, up))
            weight.copy_(weight.float() + scale(down.shape[0]) * (up @ down))


def _config(folder: Path) -> dict[str, Any]:
    file = folder / "adapter_config.json"
    return json_object(file.read_bytes(), source=str(file), hint="Save the adapter again with peft.")


def _refuse_missing(config: dict[str, Any], folder: Path, weights: Iterable[str], found: Collection[str]) -> None:
    """Refuse an adapter that lacks a module which its own settings name; where they are a pattern, nobody knows."""
    targets = config.get("target_modules")
    if not isinstance(targets, list) or any(config.get(name) for name in _CHOOSES_AMONG_TARGETS):
        return
    ends = tuple(f".{target}" for target in targets)
    modules = [name.removesuffix(".weight") for name in weights if name.endswith(".weight")]
    missing = [module for module in modules if f".{module}".endswith(ends) and module not in found]
    if missing:
        raise UserError(
            f"The adapter {folder} has no weights for {some_of(missing)}.", hint="It is incomplete; save it again."
        )


_CHOOSES_AMONG_TARGETS: Final = ("layers_to_transform", "layers_pattern", "exclude_modules")


def _scale(config: dict[str, Any], folder: Path) -> Any:
    unknown = [name for name in _MUST_BE_EMPTY if config.get(name)]
    if config.get("peft_type") != "LORA" or unknown or config.get("bias", "none") != "none":
        why = ", ".join(unknown) or f"{config.get('peft_type')}, bias {config.get('bias')}"
        raise UserError(
            f"The adapter {folder} is not a plain LoRA ({why}).", hint="Merge it with peft and use local:PATH."
        )
    alpha = config.get("lora_alpha")
    if not isinstance(alpha, int | float) or not 0 < alpha < _LARGEST_ALPHA:
        raise UserError(f"The adapter {folder} has no usable lora_alpha.", hint="Save the adapter again with peft.")
    return (lambda rank: alpha / rank**0.5) if config.get("use_rslora") else (lambda rank: alpha / rank)


def _factors(folder: Path) -> dict[str, tuple[torch.Tensor, torch.Tensor]]:
    """The two factors of every module that an adapter changes."""
    file = folder / "adapter_model.safetensors"
    if not file.is_file():
        raise UserError(f"{folder} has no adapter_model.safetensors.", hint="Save it again in that format.")
    with reading_weights(file):
        tensors = load_file(file)
    found = {}
    for name in sorted(tensors):
        module, kind, _ = name.removeprefix(_PREFIX).rpartition(".lora_A.weight")
        other = f"{_PREFIX}{module}.lora_B.weight"
        if kind and other in tensors:
            found[module] = tensors.pop(name), tensors.pop(other)
    if tensors or not found:
        raise UserError(
            f"The adapter {folder} has weights that are no LoRA factors: {next(iter(tensors), 'none at all')}.",
            hint="Merge it with peft and use local:PATH.",
        )
    return found
