"""Load a checkpoint folder and its LoRA adapters into memory: safetensors only, and never code from checkpoints.

Adapters are merged into the weights, so that a tuned model runs as fast as its base.
"""

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from threading import Lock
from typing import Any, Final, NamedTuple

import torch
from safetensors.torch import load_file
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, PreTrainedModel
from transformers.utils import logging

from skillmix.errors import UserError
from skillmix.files import json_object
from skillmix.models.checkpoints import Checkpoint, parameters_in
from skillmix.models.local.chat import Renderer


class Loaded(NamedTuple):
    """A loaded model, with its tokenizer and chat template."""

    model: Any
    renderer: Renderer


def load(checkpoint: Path | Checkpoint, *, device: str | None = None) -> Loaded:
    """Load a model onto a GPU in bfloat16 if there is a GPU, otherwise onto the CPU or Apple's GPU in float32."""
    mps = getattr(torch.backends, "mps", None)
    free = "cuda" if torch.cuda.is_available() else "mps" if mps is not None and mps.is_available() else "cpu"
    device = device or os.environ.get("SKILLMIX_DEVICE") or free
    # bfloat16 is slower on most CPUs.
    dtype = torch.bfloat16 if device == "cuda" else torch.float32
    model, tokenizer = read_checkpoint(checkpoint, dtype=dtype, device=device)
    name = str(checkpoint.base if isinstance(checkpoint, Checkpoint) else checkpoint)
    return Loaded(model.eval().requires_grad_(False), Renderer(tokenizer, name=name))


def load_for_training(checkpoint: Checkpoint, *, device: str, is_fp32: bool) -> Any:
    """Load a model with its adapters merged, in its stored precision, or in float32 on a CPU or if `is_fp32`."""
    dtype = torch.float32 if is_fp32 or device == "cpu" else "auto"
    return read_checkpoint(checkpoint, dtype=dtype, device=device)[0]


def read_tokenizer(checkpoint: Checkpoint) -> tuple[Any, list[int]]:
    """Read a checkpoint's tokenizer and, from its model's config files, the tokens that end a text."""
    with reading_weights(
        checkpoint.tokenizer, hint="The folder must contain a Hugging Face checkpoint with a tokenizer.json."
    ):
        tokenizer = _tokenizer_in(checkpoint.tokenizer)
    ends: set[int] = set()
    for name in ("generation_config.json", "config.json"):
        file = checkpoint.base / name
        if not file.is_file():
            continue
        setting = json_object(file.read_bytes(), source=str(file), hint=_CHECKPOINT_HINT).get("eos_token_id")
        listed = setting if isinstance(setting, list) else [] if setting is None else [setting]
        if not all(isinstance(token, int) for token in listed):
            hint = "Fix the file, or download it again."
            raise UserError(f"{file}: eos_token_id is not a token id.", hint=hint)
        ends.update(listed)
    return tokenizer, sorted(ends)


def _tokenizer_in(folder: Path) -> Any:
    """Load a folder's tokenizer, but never mistral_common's, which ignores tokenizer.json."""
    return AutoTokenizer.from_pretrained(folder, trust_remote_code=False, mistral_format=False)


def architecture_of(checkpoint: Checkpoint) -> Any:
    """Build a checkpoint's model without reading its weights or allocating memory for them."""
    with reading_weights(checkpoint.base, hint=_CHECKPOINT_HINT):
        config = AutoConfig.from_pretrained(checkpoint.base, trust_remote_code=False)
        _refuse_absurd_sizes(config, checkpoint.base)
        with torch.device("meta"):
            return AutoModelForCausalLM.from_config(config, trust_remote_code=False)


_CHECKPOINT_HINT: Final = (
    "The folder must contain a Hugging Face checkpoint with safetensors weights and a fast tokenizer."
)


def training_device() -> str:
    """Return the device on which this process trains: its own GPU under torchrun, the first GPU, or the CPU."""
    own = os.environ.get("SKILLMIX_DEVICE") or ("cuda" if torch.cuda.is_available() else "cpu")
    device = "cpu" if own == "mps" else own  # Apple's GPU is supported for generation only, not for training
    rank = os.environ.get("LOCAL_RANK")
    return f"cuda:{rank}" if device == "cuda" and rank is not None else device


_ONE_AT_A_TIME: Final = Lock()
"""`from_pretrained` replaces functions of transformers while it runs.

Two simultaneous calls would restore each other's replacements, and tied weights would never be tied again in this
process.
"""
_TIE_WEIGHTS: Final = PreTrainedModel.tie_weights


def read_checkpoint(checkpoint: Path | Checkpoint, *, dtype: torch.dtype | str, device: str) -> tuple[Any, Any]:
    """Read a model with its adapters merged, and its tokenizer."""
    logging.disable_progress_bar()
    folders = checkpoint if isinstance(checkpoint, Checkpoint) else Checkpoint(checkpoint)
    folders.check_adapters()
    with reading_weights(folders.base, hint=_CHECKPOINT_HINT):
        config = AutoConfig.from_pretrained(folders.base, trust_remote_code=False)
        _refuse_absurd_sizes(config, folders.base)
        with _ONE_AT_A_TIME:
            PreTrainedModel.tie_weights = _TIE_WEIGHTS  # a load outside this lock may have left a replacement here
            model, report = AutoModelForCausalLM.from_pretrained(
                folders.base,
                config=config,
                dtype=dtype,
                use_safetensors=True,
                trust_remote_code=False,
                output_loading_info=True,
                ignore_mismatched_sizes=True,  # the error below lists all mismatches
            )
        _refuse_partly_loaded(report, folders.base)
        tokenizer = _tokenizer_in(folders.tokenizer)
    model = model.to(device)
    for adapter in folders.adapters:
        merge_adapter(model, adapter)
    return model, tokenizer


def _refuse_partly_loaded(report: dict[str, Any], folder: Path) -> None:
    """Reject a checkpoint whose files and architecture disagree, because weights that are not loaded would be random.

    The report of transformers omits tied output embeddings and buffers that a model computes itself.
    """
    kinds = {
        "has no weights for": report.get("missing_keys") or (),
        "has weights of another shape for": [entry[0] for entry in report.get("mismatched_keys") or ()],
        "has weights that its architecture lacks:": report.get("unexpected_keys") or (),
    }
    faults = [f"{what} {some_of(sorted(map(str, names)))}" for what, names in kinds.items() if names]
    if faults:
        raise UserError(
            f"The checkpoint {folder} {'; it '.join(faults)}.",
            hint="Its config.json and its safetensors files must match; save it again with transformers.",
        )


def _refuse_absurd_sizes(config: Any, folder: Path) -> None:
    """Reject a config.json that describes far more weights than the files contain, before memory is allocated."""
    text = config.get_text_config()
    settings = {name: getattr(text, name, None) for name in _SIZES}
    # Some architectures list a size for each layer; such lists are not checked.
    sizes = {name: size for name, size in settings.items() if size is not None and not isinstance(size, list)}
    wrong = [name for name, size in sizes.items() if not isinstance(size, int) or not 0 < size < _SIZES[name]]
    if wrong:
        shown = ", ".join(f"{name} is {sizes[name]!r:.40}" for name in wrong)
        raise UserError(
            f"{folder / 'config.json'} has an invalid value: {shown}.",
            hint="The file may be corrupt; download the checkpoint again.",
        )
    vocabulary, hidden, inner, layers, heads, _, per_head = (sizes.get(name, 0) for name in _SIZES)
    described = hidden * (vocabulary + layers * (inner + heads * per_head))
    stored = parameters_in(folder)
    if described > _MAX_DESCRIBED_PER_STORED * stored:
        raise UserError(
            f"{folder / 'config.json'} describes at least {described} weights, but the files contain {stored}.",
            hint="The file may be corrupt; download the checkpoint again.",
        )


_SIZES: Final = {
    "vocab_size": 10_000_000,
    "hidden_size": 1_000_000,
    "intermediate_size": 10_000_000,
    "num_hidden_layers": 1_000,
    "num_attention_heads": 10_000,
    "num_key_value_heads": 10_000,
    "head_dim": 100_000,
}
"""Sizes in a config.json, with bounds far above any real model's."""
_MAX_DESCRIBED_PER_STORED: Final = 16
"""The most quantized weights that one stored number may contain."""


_PREFIX: Final = "base_model.model."
_LARGEST_ALPHA: Final = 1e6
_UNSUPPORTED: Final = (
    "use_dora",
    "fan_in_fan_out",
    "modules_to_save",
    "trainable_token_indices",
    "alpha_pattern",
    "layer_replication",
)
_CHOOSES_AMONG_TARGETS: Final = ("layers_to_transform", "layers_pattern", "exclude_modules")


def merge_adapter(model: Any, folder: Path) -> None:
    """Merge an adapter into its model's weights."""
    config, factors = _plain_lora(folder)
    weights = dict(model.named_parameters())
    targets = config.get("target_modules")
    # Settings that select modules by a pattern are not checked.
    if isinstance(targets, list) and not any(config.get(name) for name in _CHOOSES_AMONG_TARGETS):
        ends = tuple(f".{target}" for target in targets)
        modules = [name.removesuffix(".weight") for name in weights if name.endswith(".weight")]
        missing = [module for module in modules if f".{module}".endswith(ends) and module not in factors]
        if missing:
            raise UserError(
                f"The adapter {folder} has no weights for {some_of(missing)}.",
                hint="The adapter is incomplete; save it again.",
            )
    with torch.no_grad():
        for module, (down, up) in factors.items():
            weight, rank = weights.get(f"{module}.weight"), len(down)
            if weight is None or (up.shape, down.shape) != ((weight.shape[0], rank), (rank, weight.shape[-1])):
                raise UserError(
                    f"The adapter {folder} changes {module}, which does not exist with that shape in this model.",
                    hint="The adapter was made for another model.",
                )
            down, up = (factor.to(weight.device, torch.float32) for factor in (down, up))
            scale = config["lora_alpha"] / (rank**0.5 if config.get("use_rslora") else rank)
            weight.copy_(weight.float() + scale * (up @ down))


def _plain_lora(folder: Path) -> tuple[dict[str, Any], dict[str, tuple[torch.Tensor, torch.Tensor]]]:
    """Return an adapter's settings, and the two LoRA factors of every module that the adapter changes."""
    settings, file = folder / "adapter_config.json", folder / "adapter_model.safetensors"
    config = json_object(settings.read_bytes(), source=str(settings), hint="Save the adapter again with peft.")
    unsupported = [name for name in _UNSUPPORTED if config.get(name)]
    if config.get("peft_type") != "LORA" or unsupported or config.get("bias", "none") != "none":
        why = ", ".join(unsupported) or f"{config.get('peft_type')}, bias {config.get('bias')}"
        raise UserError(
            f"The adapter {folder} is not a plain LoRA ({why}).", hint="Merge it with peft and use local:PATH."
        )
    alpha = config.get("lora_alpha")
    if not isinstance(alpha, int | float) or not 0 < alpha < _LARGEST_ALPHA:
        raise UserError(f"The adapter {folder} has an invalid lora_alpha.", hint="Save the adapter again with peft.")
    if not file.is_file():
        raise UserError(
            f"{folder} has no adapter_model.safetensors.", hint="Save the adapter again in the safetensors format."
        )
    with reading_weights(file):
        tensors = load_file(file)
    factors = {}
    for name in sorted(tensors):
        module, kind, _ = name.removeprefix(_PREFIX).rpartition(".lora_A.weight")
        other = f"{_PREFIX}{module}.lora_B.weight"
        if kind and other in tensors:
            factors[module] = tensors.pop(name), tensors.pop(other)
    if tensors or not factors:
        raise UserError(
            f"The adapter {folder} must contain only pairs of LoRA factors, but it contains "
            f"{next(iter(tensors), 'no weights')}.",
            hint="Merge it with peft and use local:PATH.",
        )
    return config, factors


_SHOWN: Final = 3
_LONGEST_REASON: Final = 300
_PANIC: Final = "PanicException"
"""The exception raised by libraries written in Rust; it is not an `Exception`, and it cannot be imported."""


@contextmanager
def reading_weights(source: Path, *, hint: str = "The file is damaged; download or save it again.") -> Iterator[None]:
    """Turn any exception that a library raises while it reads an untrusted file into a `UserError`."""
    try:
        yield
    except UserError:
        raise
    except BaseException as error:  # every library has its own exceptions, and a bad file can cause any of them
        if not isinstance(error, Exception) and type(error).__name__ != _PANIC:
            raise
        lines = str(error).strip().splitlines() or [type(error).__name__]
        raise UserError(f"{source} cannot be loaded: {lines[0][:_LONGEST_REASON]}", hint=hint) from None


def some_of(names: Sequence[str]) -> str:
    """List the first few of many names, with the number of all names.

    >>> some_of(["a", "b", "c", "d"])
    'a, b, c and 1 more (4 in all)'
    """
    shown = ", ".join(names[:_SHOWN])
    return shown if len(names) <= _SHOWN else f"{shown} and {len(names) - _SHOWN} more ({len(names)} in all)"
