"""The result of training as others load it: a Hugging Face checkpoint, or a PEFT adapter."""

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from transformers.utils import logging

from skillmix.errors import UserError
from skillmix.experiment.precisions import Precision


def write_model(model: Any, tokenizer: Any, folder: Path, *, state: Mapping[str, torch.Tensor] | None = None) -> None:
    """Write weights, tokenizer and chat template; of a model with an adapter, the adapter alone."""
    logging.disable_progress_bar()
    folder.mkdir(parents=True)
    causal = model.get_base_model() if hasattr(model, "get_base_model") else model
    causal.config.use_cache = True  # training switches it off, and generation elsewhere would be slow
    named = {} if state is None else {"state_dict": dict(state)}
    model.save_pretrained(folder, safe_serialization=True, **named)
    (folder / "README.md").unlink(missing_ok=True)  # PEFT's form to fill in
    tokenizer.save_pretrained(folder)


def merged(model: Any) -> Any:
    """The model with its adapter in its weights."""
    return model.merge_and_unload()


def require_space(model: Any, folder: Path, *, precision: Precision, checkpoints: int, result_bytes: int) -> None:
    """Refuse to start what the disk cannot hold: some checkpoints at once, and the result."""
    trained = sum(parameter.numel() for parameter in model.parameters() if parameter.requires_grad)
    needed = checkpoints * trained * precision.checkpoint_bytes + result_bytes
    free = shutil.disk_usage(_existing(folder)).free
    if free < needed:
        raise UserError(
            f"The disk of {folder} has {free / 1e9:.1f} GB free, and training writes up to {needed / 1e9:.1f} GB.",
            hint="Make room, or put the run on another disk.",
        )


def bytes_of(model: Any, *, only_trained: bool) -> int:
    """Size of a model's weights, or of those that are trained."""
    return sum(p.numel() * p.element_size() for p in model.parameters() if p.requires_grad or not only_trained)


def _existing(folder: Path) -> Path:
    return next(path for path in (folder, *folder.absolute().parents) if path.exists())
