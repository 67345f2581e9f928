"""The shipped adapter: it loads with PEFT as with skillmix, and no evaluation repeats its training combinations."""

from pathlib import Path

import pytest
import torch
from peft import PeftModel

from skillmix.commands import main
from skillmix.files import SHIPPED
from skillmix.models.bundled import bundled_models
from skillmix.models.checkpoints import checkpoint_of
from skillmix.models.lineage_files import read_model_file
from skillmix.models.local.loading import read_checkpoint
from skillmix.models.specs import parse_spec
from skillmix.runs.run import open_run

ADAPTER = SHIPPED / "adapters" / "figures-m123"
IS_HERE = bundled_models()[0].folder is not None


@pytest.mark.skipif(not IS_HERE, reason="the bundled model is not in the cache: skillmix models --fetch")
@pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing` is deprecated:FutureWarning")  # PEFT reads it
def test_peft_and_skillmix_load_the_same_weights() -> None:
    base = checkpoint_of(parse_spec("bundled:smollm2-135m"))
    model, _ = read_checkpoint(base, dtype=torch.float32, device="cpu")
    theirs = PeftModel.from_pretrained(model, ADAPTER).merge_and_unload()

    ours, _ = read_checkpoint(
        checkpoint_of(parse_spec("bundled:smollm2-135m+figures-m123")), dtype=torch.float32, device="cpu"
    )

    found = dict(ours.named_parameters())
    assert all(torch.allclose(weight, found[name], atol=1e-6) for name, weight in theirs.named_parameters())


def test_a_folder_of_that_name_in_the_working_directory_comes_first(in_folder: Path) -> None:
    own = in_folder / "figures-m123"
    own.mkdir()
    (own / "adapter_config.json").write_text("{}", encoding="utf-8")
    (in_folder / "base").mkdir()
    (in_folder / "base" / "config.json").write_text("{}", encoding="utf-8")

    assert checkpoint_of(parse_spec("local:base+figures-m123")).adapters == (Path("figures-m123"),)


@pytest.mark.skipif(not IS_HERE, reason="the bundled model is not in the cache: skillmix models --fetch")
def test_an_evaluation_excludes_the_combinations_that_the_adapter_was_trained_on(in_folder: Path) -> None:
    file = read_model_file(ADAPTER)
    assert file is not None and len(file.combinations) > 10_000
    small = ["steps.eval.settings=[train]", "steps.eval.k=[1]", "steps.eval.combinations=3", "steps.eval.generations=1"]
    small += ["students.base.max_tokens=2", "students.adapter.max_tokens=2"]

    assert main(["evaluate", "pretrained", *(word for change in small for word in ("--set", change))]) == 0

    drawn = {c.id for cell in open_run("pretrained").cells for c in cell.combinations}
    assert len(drawn) == 3 and not drawn & set(file.combinations)
