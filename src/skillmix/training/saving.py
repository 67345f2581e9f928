"""LoRA adapters, and the files of a trained model: a Hugging Face checkpoint or a PEFT adapter."""

import shutil
import warnings
from pathlib import Path
from typing import Any

import torch
from transformers.utils import logging

from skillmix.errors import UserError
from skillmix.experiment.train_step import LoraSettings, Precision
from skillmix.files import replacing, require_package
from skillmix.models.checkpoints import checkpoint_of
from skillmix.models.lineage_files import read_model_file
from skillmix.models.specs import parse_spec, provider_of, require_packages
from skillmix.training.job import MODEL, write_lineage


def with_adapter(model: Any, lora: LoraSettings, *, seed: int) -> Any:
    """Add an adapter, so that only the adapter is trained; its initial weights depend only on the seed."""
    require_package("peft", "LoRA", extra="train")
    from peft import LoraConfig, get_peft_model

    config = LoraConfig(
        r=lora.rank,
        lora_alpha=int(lora.alpha) if float(lora.alpha).is_integer() else lora.alpha,
        lora_dropout=lora.dropout,
        target_modules=lora.targets,
        task_type="CAUSAL_LM",
    )
    with torch.random.fork_rng(), warnings.catch_warnings():
        # PEFT reads a property that transformers 5.23 has renamed, and users cannot do anything about the warning.
        warnings.filterwarnings("ignore", "`is_gradient_checkpointing` is deprecated", FutureWarning)
        torch.manual_seed(seed)
        try:
            return get_peft_model(model, config)
        except ValueError as error:
            raise UserError(
                f"The adapter does not fit: {error}", hint="lora.targets names layers, such as q_proj."
            ) from None


def write_model(model: Any, tokenizer: Any, folder: Path) -> None:
    """Write weights, tokenizer and chat template; for a model with an adapter, only the adapter's weights."""
    logging.disable_progress_bar()
    folder.mkdir(parents=True)
    causal = model.get_base_model() if hasattr(model, "get_base_model") else model
    causal.config.use_cache = True  # training switches the cache off, and generation elsewhere would be slow
    model.save_pretrained(folder, safe_serialization=True)
    (folder / "README.md").unlink(missing_ok=True)  # PEFT adds an empty model card
    tokenizer.save_pretrained(folder)


def require_space(model: Any, folder: Path, *, precision: Precision, checkpoints: int, is_adapter: bool) -> None:
    """Raise an error before training if the disk lacks space for the trained model and a number of checkpoints."""
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    result = sum(p.numel() * p.element_size() for p in (trained if is_adapter else model.parameters()))
    needed = checkpoints * sum(p.numel() for p in trained) * precision.checkpoint_bytes + result
    free = shutil.disk_usage(next(path for path in (folder, *folder.absolute().parents) if path.exists())).free
    if free < needed:
        raise UserError(
            f"The disk of {folder} has {free / 1e9:.1f} GB free, and training writes up to {needed / 1e9:.1f} GB.",
            hint="Make room, or put the run on another disk.",
        )


def merge_adapters(spec: str, output: Path) -> Path:
    """Merge the adapters in a model string into its base, and write the resulting checkpoint."""
    parsed = parse_spec(spec)
    if not provider_of(parsed).has_checkpoint:
        raise UserError(
            f"{spec} is not a model on this machine.", hint="Give local:PATH+ADAPTER or bundled:NAME+ADAPTER."
        )
    checkpoint = checkpoint_of(parsed)
    if not checkpoint.adapters:
        raise UserError(f"{spec} has no adapter to merge.", hint="Give local:PATH+ADAPTER or bundled:NAME+ADAPTER.")
    if output.exists():
        raise UserError(f"The folder {output} already exists.", hint="Give --output a folder that does not exist yet.")
    require_packages(parsed)
    from skillmix.models.local.loading import read_checkpoint

    with replacing(output, MODEL) as new:
        model, tokenizer = read_checkpoint(checkpoint, dtype="auto", device="cpu")
        write_model(model, tokenizer, new)
        file = read_model_file(checkpoint.adapters[-1])
        if file is not None:
            write_lineage(new, file.merged())
    return output
