"""LoRA adapters, added to the weights when a model is loaded: it then runs as fast as any other."""

import json
from pathlib import Path
from typing import Any, Final

import torch
from safetensors.torch import load_file

from skillmix.core.errors import UserError

_PREFIX: Final = "base_model.model."
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
    scale = _scale(folder)
    weights = dict(model.named_parameters())
    factors = _factors(folder)
    with torch.no_grad():
        for module, (down, up) in factors.items():
            weight = weights.get(f"{module}.weight")
            if weight is None or tuple(weight.shape) != (up.shape[0], down.shape[1]):
                raise UserError(
                    f"The adapter {folder} changes {module}, which this model does not have in that shape.",
                    hint="It was made for another model.",
                )
            down, up = (factor.to(weight.device, torch.float32) for factor in (down, up))
            weight.copy_(weight.float() + scale(down.shape[0]) * (up @ down))


def _scale(folder: Path) -> Any:
    config = json.loads((folder / "adapter_config.json").read_text(encoding="utf-8"))
    unknown = [name for name in _MUST_BE_EMPTY if config.get(name)]
    if config.get("peft_type") != "LORA" or unknown or config.get("bias", "none") != "none":
        why = ", ".join(unknown) or f"{config.get('peft_type')}, bias {config.get('bias')}"
        raise UserError(
            f"The adapter {folder} is not a plain LoRA ({why}).", hint="Merge it with peft and use local:PATH."
        )
    alpha = float(config["lora_alpha"])
    return (lambda rank: alpha / rank**0.5) if config.get("use_rslora") else (lambda rank: alpha / rank)


def _factors(folder: Path) -> dict[str, tuple[torch.Tensor, torch.Tensor]]:
    """The two factors of every module that an adapter changes."""
    file = folder / "adapter_model.safetensors"
    if not file.is_file():
        raise UserError(f"{folder} has no adapter_model.safetensors.", hint="Save it again in that format.")
    tensors = load_file(file)
    found = {}
    for name in sorted(tensors):
        module, kind, _ = name.removeprefix(_PREFIX).rpartition(".lora_A.weight")
        if kind:
            found[module] = tensors.pop(name), tensors.pop(f"{_PREFIX}{module}.lora_B.weight")
    if tensors or not found:
        raise UserError(
            f"The adapter {folder} has weights that are no LoRA factors: {next(iter(tensors), 'none at all')}.",
            hint="Merge it with peft and use local:PATH.",
        )
    return found
