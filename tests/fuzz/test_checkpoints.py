"""Checkpoints, adapters and lineage files with any fault are loaded or refused in one line, and never changed."""

import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import Any, Final

import pytest

from skillmix.experiment.train_step import TrainStep
from skillmix.models import checkpoints
from skillmix.models.checkpoints import Checkpoint, checkpoint_of
from skillmix.models.lineage import lineage_of
from skillmix.models.specs import parse_spec
from skillmix.training.job import read_lessons, sources_of
from tests.fuzz.common import cases, damaged_bytes, mutated, nothing_changes_in, refused
from tests.models.tiny_checkpoint import torch, write_adapter, write_checkpoint


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A base, two adapters on top of each other, and a data set."""
    folder = tmp_path_factory.mktemp("world")
    base = write_checkpoint(folder / "base")
    first = write_adapter(folder / "first", base)
    write_adapter(folder / "second", first)
    data = folder / "data"
    data.mkdir()
    row = {"messages": [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "a b"}]}
    (data / "train.jsonl").write_text(f"{json.dumps(row)}\n" * 3, encoding="utf-8")
    facts = {"hash": "abc", "k": [1, 2], "combinations": ["c1"], "skill_sets": [["a", "b"]], "counts": {"train": 3}}
    about = {"kind": "dataset", **facts}
    (data / "skillmix.json").write_text(json.dumps(about), encoding="utf-8")
    return folder


@pytest.fixture(autouse=True)
def own_cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """Hashes of weights are noted in a cache, which is not the user's here."""
    folder = tmp_path_factory.mktemp("cache")
    monkeypatch.setattr(checkpoints, "cache_folder", lambda: folder)


def changed_json(file: Path, draw: Random) -> None:
    document = mutated(json.loads(file.read_text("utf-8")), draw)
    file.write_bytes(json.dumps(document).encode("utf-8", "surrogatepass"))
    if draw.random() < 0.15:
        file.write_bytes(damaged_bytes(file.read_bytes(), draw))


def pointed_elsewhere(file: Path, draw: Random) -> None:
    """A lineage that names a folder of the world, its own included, as its base."""
    folder = file.parents[1] / draw.choice(("base", "first", "second", "data", "nowhere"))
    spec = draw.choice((f"local:{folder}", f"local:{folder}+{folder}", f"bundled:none+{folder}", f"openai:{folder}"))
    about = {"kind": "model", "base": {"spec": spec, "hash": draw.choice((None, 1, "x"))}, "k": [1], "combinations": []}
    file.write_text(json.dumps(about), "utf-8")


def worlds(kind: str, world: Path, there: Path, *, few: int, many: int) -> Iterator[tuple[int, Random]]:
    """A fresh copy of the world for each case."""
    for number, draw in cases(kind, few=few, many=many):
        shutil.rmtree(there, ignore_errors=True)
        shutil.copytree(world, there)
        for lineage in there.glob("*/skillmix.json"):
            lineage.write_text(lineage.read_text("utf-8").replace(str(world), str(there)), encoding="utf-8")
        yield number, draw


def read_lineage(spec: str) -> None:
    refused(lambda: checkpoint_of(parse_spec(spec)).check_adapters())
    refused(lambda: lineage_of(spec))
    refused(lambda: lineage_of(spec, {}))


def read_lineages(there: Path) -> None:
    for name in ("second", "first"):
        read_lineage(f"local:{there / name}")
    step = TrainStep(name="t", stage="train", base="step:x", data=[f"{there / 'data'}"])

    def data() -> None:
        sources = sources_of(step, there)
        read_lessons(sources, validation_share=0.2)

    refused(data)


LINEAGES: Final = ("first/skillmix.json", "second/skillmix.json", "data/skillmix.json", "data/train.jsonl")


def test_any_lineage_is_read_or_refused(world: Path, tmp_path: Path) -> None:
    there = tmp_path / "world"
    for number, draw in worlds("lineages", world, there, few=500, many=200_000):
        file = there / LINEAGES[number % len(LINEAGES)]
        if file.suffix == ".jsonl":
            row = mutated(json.loads(file.read_text("utf-8").splitlines()[0]), draw)
            file.write_bytes(damaged_bytes(file.read_bytes() + json.dumps(row).encode(), draw))
        else:
            draw.choice((changed_json, pointed_elsewhere))(file, draw)

        with nothing_changes_in(tmp_path):
            read_lineages(there)


def load(checkpoint: Checkpoint) -> Any:
    from skillmix.models.local.loading import load, read_tokenizer

    checkpoint.weights_hash()
    read_tokenizer(checkpoint)
    loaded = load(checkpoint, device="cpu")
    return loaded.model(torch.arange(4)[None]).logits


PARTS: Final[dict[str, Callable[[Path, Random], None]]] = {
    "base/config.json": changed_json,
    "first/adapter_config.json": changed_json,
    "base/generation_config.json": changed_json,
    "base/tokenizer_config.json": changed_json,
    "base/tokenizer.json": changed_json,
    "base/model.safetensors": lambda file, draw: _write(file, damaged_bytes(file.read_bytes(), draw)),
    "first/adapter_model.safetensors": lambda file, draw: _write(file, damaged_bytes(file.read_bytes(), draw)),
}


def _write(file: Path, content: bytes) -> None:
    file.write_bytes(content)


@pytest.mark.filterwarnings("ignore")
def test_any_checkpoint_is_loaded_or_refused(world: Path, tmp_path: Path) -> None:
    there = tmp_path / "world"
    names = list(PARTS)
    refusals = count = 0
    for number, draw in worlds("checkpoints", world, there, few=120, many=20_000):
        name = names[number % len(names)]
        PARTS[name](there / name, draw)

        with nothing_changes_in(tmp_path):
            refusals += refused(lambda: load(Checkpoint(there / "base", (there / "first",)))) is not None
        count += 1
    assert count / 4 < refusals < count
