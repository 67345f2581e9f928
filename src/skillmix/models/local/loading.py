"""A checkpoint folder becomes a model in memory: safetensors only, no code of strangers."""

import json
import os
from pathlib import Path
from typing import Any, NamedTuple

import torch
from transformers import AttentionInterface, AutoConfig, AutoModelForCausalLM, AutoTokenizer
from transformers.utils import logging

from skillmix.core.errors import UserError
from skillmix.models.checkpoints import Checkpoint
from skillmix.models.local.adapters import merge_adapter
from skillmix.models.local.cache import ATTENTION, slot_attention
from skillmix.models.local.prompts import Renderer

AttentionInterface.register(ATTENTION, slot_attention)


class Loaded(NamedTuple):
    """A model ready to generate."""

    model: Any
    renderer: Renderer


def load(checkpoint: Path | Checkpoint, *, device: str | None = None) -> Loaded:
    """Load a model onto the GPU in bfloat16 where there is one, else onto the CPU in float32."""
    place = device or ("cuda" if torch.cuda.is_available() else "cpu")
    # bfloat16 is slower on most CPUs, and kills the process on some that claim to have it.
    dtype = torch.bfloat16 if place == "cuda" else torch.float32
    model, tokenizer = read_checkpoint(checkpoint, dtype=dtype, device=place)
    name = str(checkpoint.base if isinstance(checkpoint, Checkpoint) else checkpoint)
    return Loaded(prepared(model, name=name), Renderer(tokenizer, name=name))


def load_for_training(checkpoint: Checkpoint, *, device: str, is_fp32: bool) -> Any:
    """A model with its adapters merged, as it is stored; in float32 on a CPU, or if asked for."""
    dtype = torch.float32 if is_fp32 or device == "cpu" else "auto"
    return read_checkpoint(checkpoint, dtype=dtype, device=device)[0]


def read_tokenizer(checkpoint: Checkpoint) -> tuple[Any, list[int]]:
    """A checkpoint's tokenizer, and the tokens at which its model stops."""
    try:
        tokenizer = AutoTokenizer.from_pretrained(checkpoint.tokenizer, trust_remote_code=False)
    except (OSError, ValueError, KeyError) as error:
        raise UserError(
            f"The tokenizer in {checkpoint.tokenizer} cannot be loaded: {str(error).splitlines()[0]}",
            hint="It must be a Hugging Face checkpoint with a tokenizer.json.",
        ) from None
    ends: set[int] = set()
    for name in ("generation_config.json", "config.json"):
        file = checkpoint.base / name
        named = json.loads(file.read_text(encoding="utf-8")).get("eos_token_id") if file.is_file() else None
        ends |= set(named if isinstance(named, list) else [] if named is None else [named])
    return tokenizer, sorted(ends)


def training_device() -> str:
    """Where this process trains: its own GPU under torchrun, the first one, or the CPU."""
    asked = os.environ.get("SKILLMIX_DEVICE") or ("cuda" if torch.cuda.is_available() else "cpu")
    rank = os.environ.get("LOCAL_RANK")
    return f"cuda:{rank}" if asked == "cuda" and rank is not None else asked


def read_checkpoint(checkpoint: Path | Checkpoint, *, dtype: torch.dtype | str, device: str) -> tuple[Any, Any]:
    """A model with its adapters merged, and its tokenizer."""
    logging.disable_progress_bar()
    found = checkpoint if isinstance(checkpoint, Checkpoint) else Checkpoint(checkpoint)
    found.check_adapters()
    try:
        config = AutoConfig.from_pretrained(found.base, trust_remote_code=False)
        model = AutoModelForCausalLM.from_pretrained(
            found.base, config=config, dtype=dtype, use_safetensors=True, trust_remote_code=False
        )
        tokenizer = AutoTokenizer.from_pretrained(found.tokenizer, trust_remote_code=False)
    except (OSError, ValueError, KeyError) as error:
        raise UserError(
            f"{found.base} cannot be loaded: {str(error).splitlines()[0]}",
            hint="It must be a Hugging Face checkpoint with safetensors weights and a fast tokenizer.",
        ) from None
    model = model.to(device)
    for adapter in found.adapters:
        merge_adapter(model, adapter)
    return model, tokenizer


def prepared(model: Any, *, name: str) -> Any:
    """Set a model up for slots."""
    config = model.config.get_text_config()
    if getattr(config, "sliding_window", None) and getattr(config, "use_sliding_window", True):
        raise UserError(f"{name} attends through a sliding window.", hint="Serve it with vLLM and use openai:NAME@URL.")
    if not getattr(model, "_supports_attention_backend", False):
        raise UserError(f"{name} has an attention of its own.", hint="Serve it with vLLM and use openai:NAME@URL.")
    model.set_attn_implementation(ATTENTION)
    return model.eval().requires_grad_(False)
