"""Adapters: saved as PEFT does, merged when loaded, and never onto other weights."""

import json
from pathlib import Path
from shutil import copytree
from typing import Any

import pytest
import torch

from skillmix.errors import UserError
from skillmix.experiment.train_step import LoraSettings
from skillmix.models.checkpoints import Checkpoint, checkpoint_of, weights_hash
from skillmix.models.local.loading import load, read_checkpoint
from skillmix.models.specs import parse_spec
from skillmix.training.job_run import merge_adapters, with_adapter, write_model

pytestmark = pytest.mark.machine

LORA = LoraSettings(rank=4, alpha=8)


def adapted(small_model: Path, folder: Path, *, base: str | None = None) -> Any:
    """A model whose adapter does something, saved; `base` is the hash that it names."""
    model, tokenizer = read_checkpoint(small_model, dtype=torch.float32, device="cpu")
    found = with_adapter(model, LORA, seed=1)
    with torch.no_grad(), torch.random.fork_rng():
        torch.manual_seed(2)
        for name, parameter in found.named_parameters():
            if "lora_B" in name:
                parameter.normal_(std=0.3)
    write_model(found, tokenizer, folder)
    about = {"kind": "model", "base": {"spec": f"local:{small_model}", "hash": base or weights_hash(small_model)}}
    (folder / "skillmix.json").write_text(
        json.dumps({**about, "k": [1], "combinations": [], "adapter": True}), encoding="utf-8"
    )
    return found


def logits(model: Any) -> Any:
    with torch.no_grad():
        return model(torch.arange(3, 40)[None]).logits


def test_a_merged_adapter_gives_the_logits_of_peft(small_model: Path, tmp_path: Path) -> None:
    wanted = logits(adapted(small_model, tmp_path / "adapter").eval())

    checkpoint = checkpoint_of(parse_spec(f"local:{small_model}+{tmp_path / 'adapter'}"))
    merged, _ = read_checkpoint(checkpoint, dtype=torch.float32, device="cpu")
    base, _ = read_checkpoint(small_model, dtype=torch.float32, device="cpu")

    assert torch.allclose(logits(merged), wanted, atol=1e-5)
    assert (logits(base) - wanted).abs().max() > 0.01


def test_an_adapter_alone_finds_its_base(small_model: Path, tmp_path: Path) -> None:
    adapted(small_model, tmp_path / "adapter")

    found = checkpoint_of(parse_spec(f"local:{tmp_path / 'adapter'}"))

    assert found == Checkpoint(small_model, (tmp_path / "adapter",))


def test_an_adapter_on_other_weights_is_an_error(small_model: Path, tmp_path: Path) -> None:
    adapted(small_model, tmp_path / "adapter", base="0" * 32)

    with pytest.raises(UserError, match="was not trained on the weights"):
        load(checkpoint_of(parse_spec(f"local:{small_model}+{tmp_path / 'adapter'}")), device="cpu")


def test_an_adapter_of_another_shape_is_an_error(small_model: Path, tmp_path: Path) -> None:
    adapted(small_model, tmp_path / "adapter")
    (tmp_path / "adapter" / "skillmix.json").unlink()
    config = json.loads((small_model / "config.json").read_text(encoding="utf-8"))

    from transformers import AutoTokenizer, LlamaConfig, LlamaForCausalLM

    other = LlamaForCausalLM(LlamaConfig(**{**config, "intermediate_size": 48}))
    write_model(other, AutoTokenizer.from_pretrained(small_model), tmp_path / "other")

    with pytest.raises(UserError, match="does not exist with that shape"):
        load(checkpoint_of(parse_spec(f"local:{tmp_path / 'other'}+{tmp_path / 'adapter'}")), device="cpu")


def test_what_is_no_plain_lora_is_refused(small_model: Path, tmp_path: Path) -> None:
    adapted(small_model, tmp_path / "adapter")
    file = tmp_path / "adapter" / "adapter_config.json"
    file.write_text(json.dumps({**json.loads(file.read_text(encoding="utf-8")), "use_dora": True}), encoding="utf-8")

    with pytest.raises(UserError, match="not a plain LoRA"):
        load(checkpoint_of(parse_spec(f"local:{small_model}+{tmp_path / 'adapter'}")), device="cpu")


def test_adapters_stack_and_each_checks_what_is_below(small_model: Path, tmp_path: Path) -> None:
    adapted(small_model, tmp_path / "one")
    both = Checkpoint(small_model, (tmp_path / "one", tmp_path / "two"))
    adapted(small_model, tmp_path / "two", base=Checkpoint(small_model, (tmp_path / "one",)).weights_hash())

    both.check_adapters()

    with pytest.raises(UserError, match="not trained on the weights"):
        Checkpoint(small_model, (tmp_path / "two",)).check_adapters()


def test_merging_writes_a_plain_checkpoint(small_model: Path, tmp_path: Path) -> None:
    wanted = logits(adapted(small_model, tmp_path / "adapter").eval())

    folder = merge_adapters(f"local:{small_model}+{tmp_path / 'adapter'}", tmp_path / "merged")

    from transformers import AutoModelForCausalLM, AutoTokenizer

    assert torch.allclose(logits(AutoModelForCausalLM.from_pretrained(folder)), wanted, atol=1e-5)
    assert AutoTokenizer.from_pretrained(folder).chat_template
    assert json.loads((folder / "skillmix.json").read_text(encoding="utf-8"))["adapter"] is False
    assert json.loads((folder / "config.json").read_text(encoding="utf-8"))["use_cache"] is True
    with pytest.raises(UserError, match="exists"):
        merge_adapters(f"local:{small_model}+{tmp_path / 'adapter'}", tmp_path / "merged")


def test_the_hash_is_of_weights_and_not_of_files(small_model: Path, tmp_path: Path) -> None:
    model, _ = read_checkpoint(small_model, dtype=torch.float32, device="cpu")
    model.save_pretrained(tmp_path / "cut", max_shard_size="500KB")
    before = weights_hash(small_model)

    same = weights_hash(tmp_path / "cut")
    with torch.no_grad():
        model.model.norm.weight[0] += 1e-3
    model.save_pretrained(tmp_path / "other")

    assert len(list((tmp_path / "cut").glob("*.safetensors"))) > 1
    assert same == before
    assert weights_hash(tmp_path / "other") != before


def test_the_bundled_model_takes_adapters_and_says_if_there_is_none(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="There is no adapter in"):
        checkpoint_of(parse_spec(f"bundled:smollm2-135m+{tmp_path}"))


def test_a_plus_may_be_part_of_a_path(small_model: Path, tmp_path: Path) -> None:
    copied = copytree(small_model, tmp_path / "c++")

    assert checkpoint_of(parse_spec(f"local:{copied}")) == Checkpoint(copied)
