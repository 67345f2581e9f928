"""A checkpoint folder becomes a model in memory: safetensors only, no code of strangers."""

from pathlib import Path
from typing import Any, NamedTuple

import torch
from transformers import AttentionInterface, AutoConfig, AutoModelForCausalLM, AutoTokenizer
from transformers.utils import logging

from skillmix.core.errors import UserError
from skillmix.models.local.cache import ATTENTION, slot_attention
from skillmix.models.local.prompts import Renderer

AttentionInterface.register(ATTENTION, slot_attention)


class Loaded(NamedTuple):
    """A model ready to generate."""

    model: Any
    renderer: Renderer


def load(folder: Path, *, device: str | None = None) -> Loaded:
    """Load a model onto the GPU in bfloat16 where there is one, else onto the CPU in float32."""
    logging.disable_progress_bar()
    place = device or ("cuda" if torch.cuda.is_available() else "cpu")
    # bfloat16 is slower on most CPUs, and kills the process on some that claim to have it.
    dtype = torch.bfloat16 if place == "cuda" else torch.float32
    try:
        config = AutoConfig.from_pretrained(folder, trust_remote_code=False)
        model = AutoModelForCausalLM.from_pretrained(
            folder, config=config, dtype=dtype, use_safetensors=True, trust_remote_code=False
        )
        tokenizer = AutoTokenizer.from_pretrained(folder, trust_remote_code=False)
    except (OSError, ValueError, KeyError) as error:
        raise UserError(
            f"{folder} cannot be loaded: {str(error).splitlines()[0]}",
            hint="It must be a Hugging Face checkpoint with safetensors weights and a fast tokenizer.",
        ) from None
    return Loaded(prepared(model.to(place), name=str(folder)), Renderer(tokenizer, name=str(folder)))


def prepared(model: Any, *, name: str) -> Any:
    """Set a model up for slots."""
    config = model.config.get_text_config()
    if getattr(config, "sliding_window", None) and getattr(config, "use_sliding_window", True):
        raise UserError(f"{name} attends through a sliding window.", hint="Serve it with vLLM and use openai:NAME@URL.")
    if not getattr(model, "_supports_attention_backend", False):
        raise UserError(f"{name} has an attention of its own.", hint="Serve it with vLLM and use openai:NAME@URL.")
    model.set_attn_implementation(ATTENTION)
    return model.eval().requires_grad_(False)
