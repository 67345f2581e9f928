"""Checkpoints on disk: which folders a spec names, what they hold, and whether an adapter belongs to its base."""

import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from hashlib import blake2b
from math import prod
from pathlib import Path
from typing import Any, Final

from skillmix.catalog.json import json_object
from skillmix.errors import UserError
from skillmix.hashing import digest
from skillmix.models.bundled import bundled_model, cache_folder
from skillmix.models.lineage_files import BaseEntry, extended_chain, read_model_file
from skillmix.models.specs import ModelSpec, parse_spec, provider_of

ADAPTER: Final = "adapter_config.json"
_BLOCK: Final = 1 << 22


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A model's weights and the adapters on top of them, the first applied first."""

    base: Path
    adapters: tuple[Path, ...] = ()

    @property
    def tokenizer(self) -> Path:
        """The folder with the tokenizer and chat template: an adapter may have its own."""
        own = [folder for folder in self.adapters if (folder / "tokenizer.json").is_file()]
        return own[-1] if own else self.base

    def weights_hash(self) -> str:
        """What the model is: changes with any weight, but neither with file names nor with how files are cut."""
        found = weights_hash(self.base)
        for adapter in self.adapters:
            found = _with_adapter(found, adapter)
        return found

    def check_adapters(self) -> None:
        """Refuse an adapter that was made for other weights; one that does not say for which is taken."""
        bases = [_base_of(adapter) for adapter in self.adapters]
        if not any(base and base.hash for base in bases):
            return
        found = weights_hash(self.base)
        for adapter, base in zip(self.adapters, bases, strict=True):
            if base and base.hash and base.hash != found:
                raise UserError(
                    f"The adapter {adapter} was made for other weights than those in {self.base}.",
                    hint=f"It belongs to {base.spec} with hash {base.hash}; this is {found}.",
                )
            found = _with_adapter(found, adapter)

    def bytes(self) -> int:
        """Size of all weights."""
        return sum(file.stat().st_size for folder in (self.base, *self.adapters) for file in _weight_files(folder))


def checkpoint_of(spec: ModelSpec, *, chain: tuple[Path, ...] = ()) -> Checkpoint:
    """The folders of a local or bundled model; a bundled one is fetched if it is not there.

    `chain` holds the adapters that led here, each naming the next as its base.
    """
    base, added = base_and_adapters(spec)
    if spec.provider == "bundled":
        return Checkpoint(bundled_model(base), tuple(_adapter_folder(name) for name in added))
    folder = Path(base).expanduser()
    adapters = tuple(_adapter_folder(name) for name in added)
    if (folder / "config.json").is_file():
        return Checkpoint(folder, adapters)
    if (folder / ADAPTER).is_file():
        under = checkpoint_of(_base_spec(folder), chain=extended_chain(chain, folder))
        return Checkpoint(under.base, (*under.adapters, folder, *adapters))
    raise UserError(
        f"There is no checkpoint in {folder}.",
        hint="local:PATH names a folder with config.json, local:PATH+ADAPTER one with adapter_config.json beside it.",
    )


def base_and_adapters(spec: ModelSpec) -> tuple[str, tuple[str, ...]]:
    """The base that a spec names, and the paths of the adapters behind it.

    A '+' may be part of a folder's name: of the ways to read a spec, the longest folder that exists counts.

    >>> base_and_adapters(ModelSpec("bundled", "smollm2-135m+adapter"))
    ('smollm2-135m', ('adapter',))
    """
    parts = spec.name.split("+")
    if spec.provider == "local":
        base, *adapters = _folder_names(parts)
        return base, tuple(adapters)
    return parts[0], tuple(_folder_names(parts[1:]))


def named_folders(spec: ModelSpec) -> tuple[Path, ...]:
    """The folders that a local or bundled spec names, the base first; a bundled base has no folder of its own."""
    base, adapters = base_and_adapters(spec)
    names = (base, *adapters) if spec.provider == "local" else adapters
    return tuple(Path(name).expanduser() for name in names)


def weights_hash(folder: Path) -> str:
    """Hash of every tensor in a folder's safetensors files; of the same files it is computed once."""
    files = _weight_files(folder)
    if not files:
        raise UserError(f"There are no safetensors weights in {folder}.", hint="Convert them with transformers.")
    state = [[str(f.resolve()), f.stat().st_size, f.stat().st_mtime_ns] for f in files]
    note = cache_folder() / "hashes" / digest("weights", state).hex()
    try:
        return note.read_text(encoding="ascii")
    except OSError:
        found = _hashed(files)
    try:
        note.parent.mkdir(parents=True, exist_ok=True)
        partial = note.with_name(f"{note.name}.{os.getpid()}.partial")
        partial.write_text(found, encoding="ascii")
        partial.replace(note)
    except OSError:  # the next one computes it again
        pass
    return found


def parameters_in(folder: Path) -> int:
    """How many weights a folder's files hold."""
    return sum(prod(about[1]) for file in _weight_files(folder) for _, about, _, _ in _tensors(file))


def _hashed(files: list[Path]) -> str:
    tensors = [(file, *entry) for file in files for entry in _tensors(file)]
    with ThreadPoolExecutor(min(8, os.cpu_count() or 1)) as pool:
        hashes = pool.map(lambda tensor: _hash_of_bytes(tensor[0], tensor[3], tensor[4]), tensors)
        listed = sorted([name, about, found] for (_, name, about, _, _), found in zip(tensors, hashes, strict=True))
    return digest("weights", listed).hex()


def _tensors(file: Path) -> Iterator[tuple[str, list[Any], int, int]]:
    """Name, kind and place of every tensor in a safetensors file."""
    with file.open("rb") as stream:
        length = int.from_bytes(stream.read(8), "little")
        if not 0 < length < file.stat().st_size:
            raise UserError(f"{file} is not a safetensors file.", hint=_FETCH_AGAIN)
        header = json_object(stream.read(length), source=f"The header of {file}", hint=_FETCH_AGAIN)
    for name, entry in header.items():
        if name != "__metadata__":
            start, end = _offsets(entry, size=file.stat().st_size - 8 - length, of=f"{name!r} in {file}")
            yield name, [entry["dtype"], entry["shape"]], 8 + length + start, 8 + length + end


_FETCH_AGAIN: Final = "It is damaged; fetch it again."


def _offsets(entry: object, *, size: int, of: str) -> tuple[int, int]:
    """Where a tensor starts and ends, by an entry that has a type, a shape and offsets inside the file."""
    match entry:
        case {"dtype": str(), "shape": [*shape], "data_offsets": [int(start), int(end)]} if (
            0 <= start <= end <= size and all(isinstance(length, int) and length >= 0 for length in shape)
        ):
            return start, end
    raise UserError(f"The entry of the tensor {of} makes no sense.", hint=_FETCH_AGAIN)


def _hash_of_bytes(file: Path, start: int, end: int) -> str:
    found = blake2b(digest_size=16)
    with file.open("rb") as stream:
        stream.seek(start)
        left = end - start
        while left:
            block = stream.read(min(_BLOCK, left))
            if not block:
                raise UserError(f"{file} ends too early.", hint=_FETCH_AGAIN)
            found.update(block)
            left -= len(block)
    return found.hexdigest()


def _weight_files(folder: Path) -> list[Path]:
    return sorted(folder.glob("*.safetensors"))


def _with_adapter(base: str, adapter: Path) -> str:
    return digest("adapter", base, weights_hash(adapter)).hex()


def _base_of(adapter: Path) -> BaseEntry | None:
    """The model that an adapter was made for, if a file says so."""
    file = read_model_file(adapter)
    return file.base if file else None


def _base_spec(adapter: Path) -> ModelSpec:
    base = _base_of(adapter)
    spec = parse_spec(base.spec) if base else None
    if spec is None or not provider_of(spec).has_checkpoint:
        raise UserError(
            f"{adapter} is an adapter and does not say for which model.", hint="Use local:PATH+ADAPTER and name both."
        )
    return spec


def _adapter_folder(name: str) -> Path:
    folder = Path(name).expanduser()
    if not (folder / ADAPTER).is_file():
        raise UserError(f"There is no adapter in {folder}.", hint="It is a folder with adapter_config.json.")
    return folder


def _folder_names(parts: Sequence[str]) -> Iterator[str]:
    """Join parts of a spec to the longest names of folders that exist; a part of no folder stands alone."""
    start = 0
    while start < len(parts):
        ends = range(len(parts), start, -1)
        end = next((e for e in ends if _is_folder("+".join(parts[start:e]))), start + 1)
        yield "+".join(parts[start:end])
        start = end


def _is_folder(name: str) -> bool:
    try:
        return Path(name).expanduser().is_dir()
    except OSError:  # the name is too long, for instance
        return False
