"""Merge a model and its adapters into one plain checkpoint."""

from pathlib import Path

from skillmix.errors import UserError
from skillmix.models.checkpoints import checkpoint_of
from skillmix.models.lineage_files import read_model_file
from skillmix.models.specs import parse_spec, provider_of, require_packages
from skillmix.runs.folder_replacement import MODEL, replacing
from skillmix.training.job import write_lineage


def merge_adapters(spec: str, output: Path) -> Path:
    """Write the checkpoint that a spec with an adapter stands for."""
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
    from skillmix.training.saving import write_model

    with replacing(output, MODEL) as new:
        model, tokenizer = read_checkpoint(checkpoint, dtype="auto", device="cpu")
        write_model(model, tokenizer, new)
        file = read_model_file(checkpoint.adapters[-1])
        if file is not None:
            write_lineage(new, file.merged())
    return output
