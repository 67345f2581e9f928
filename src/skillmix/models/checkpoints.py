"""Checkpoints on disk: the folders in a spec, the context length in a config, bases of adapters, hashes of weights."""

import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from hashlib import blake2b, file_digest
from math import prod
from mmap import ACCESS_READ, mmap
from pathlib import Path
from typing import Any, Final, NamedTuple

from skillmix.errors import UserError
from skillmix.files import SHIPPED, json_object
from skillmix.hashing import digest
from skillmix.models.bundled import bundled_model, cache_folder
from skillmix.models.hub import cached_folder, hub_folder, is_hub_id
from skillmix.models.lineage_files import extended_chain, read_model_file
from skillmix.models.specs import ModelSpec, parse_spec, provider_of

ADAPTER: Final = "adapter_config.json"
_BLOCK: Final = 1 << 22

FileStates = tuple[tuple[str, int, int, int], ...]
"""Path, size, modification time and inode of each file; files with the same state have the same content."""


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """The folders of a model's weights and of its adapters, in the order in which the adapters are applied."""

    base: Path
    adapters: tuple[Path, ...] = ()

    @property
    def tokenizer(self) -> Path:
        """The folder with the tokenizer and chat template: the last adapter that has them, or else the base."""
        own = [folder for folder in self.adapters if (folder / "tokenizer.json").is_file()]
        return own[-1] if own else self.base

    def weights_hash(self) -> str:
        """Return a hash of all weights, independent of file names and sharding."""
        return self._hashes()[-1]

    def _hashes(self) -> list[str]:
        """Return the hash of the base, and the hash after each adapter."""
        hashes = [weights_hash(self.base)]
        for adapter in self.adapters:
            hashes.append(digest("adapter", hashes[-1], weights_hash(adapter)).hex())
        return hashes

    def check_adapters(self) -> None:
        """Reject an adapter that was trained on other weights, if it has a lineage file that records their hash."""
        files = [read_model_file(adapter) for adapter in self.adapters]
        if not any(file and file.base.hash for file in files):
            return
        for adapter, file, hash_ in zip(self.adapters, files, self._hashes()[:-1], strict=True):
            if file and file.base.hash not in (None, hash_):
                raise UserError(
                    f"The adapter {adapter} was not trained on the weights in {self.base}.",
                    hint=f"Use its base, {file.base.spec}, whose weights have the hash {file.base.hash}, not {hash_}.",
                )

    def file_states(self) -> FileStates:
        """Return the state of every file in the folders."""
        folders = (self.base, *self.adapters)
        return states_of(file for folder in folders for file in sorted(folder.iterdir()) if file.is_file())

    def bytes(self) -> int:
        """Return the size of all weights."""
        return sum(file.stat().st_size for folder in (self.base, *self.adapters) for file in _weight_files(folder))


def states_of(files: Iterable[Path]) -> FileStates:
    """Return the state of each file."""
    return tuple((str(f), f.stat().st_size, f.stat().st_mtime_ns, f.stat().st_ino) for f in files)


def checkpoint_of(spec: ModelSpec, *, chain: tuple[Path, ...] = (), fetches: bool = True) -> Checkpoint:
    """Return the folders of a local or bundled model; download a model that is not in the cache first.

    `chain` lists the adapters that led here, each with the next one as its base. If `fetches` is False, nothing is
    downloaded: the folder of a Hub id may lack weights, and an id that is not in the cache is an error.
    """

    def folder_of(name: str) -> Path:
        if not is_hub_id(name):
            own = Path(name).expanduser()
            return own if own.exists() or not (SHIPPED / "adapters" / name).is_dir() else SHIPPED / "adapters" / name
        folder = hub_folder(name) if fetches else cached_folder(name)
        if folder is None:
            raise UserError(
                f"{name} is not a local folder, and a model with this id was not downloaded yet.",
                hint="If it is an id on the Hugging Face Hub, a run downloads the model; otherwise check the path.",
            )
        return folder

    base, adapter_names = base_and_adapters(spec)
    adapters = tuple(map(folder_of, adapter_names))
    for adapter in adapters:
        if not (adapter / ADAPTER).is_file():
            raise UserError(
                f"There is no adapter in {adapter}.", hint="Name a folder that contains an adapter_config.json."
            )
    if spec.provider == "bundled":
        return Checkpoint(bundled_model(base), adapters)
    folder = folder_of(base)
    if (folder / "config.json").is_file():
        return Checkpoint(folder, adapters)
    if (folder / ADAPTER).is_file():
        file = read_model_file(folder)
        base_spec = parse_spec(file.base.spec) if file else None
        if base_spec is None or not provider_of(base_spec).has_checkpoint:
            raise UserError(
                f"{folder} is an adapter that does not name its base.",
                hint=f"Name both: {spec.provider}:BASE+{folder}.",
            )
        under = checkpoint_of(base_spec, chain=extended_chain(chain, folder), fetches=fetches)
        return Checkpoint(under.base, (*under.adapters, folder, *adapters))
    raise UserError(
        f"There is no checkpoint in {folder}.",
        hint=f"Write {spec.provider}:PATH with a folder that contains a config.json, or {spec.provider}:ORG/NAME for a "
        "model of the Hugging Face Hub.",
    )


def positions_of(checkpoint: Checkpoint) -> int | None:
    """Return the context length stated in config.json, which limits a prompt and its reply together; None if absent."""
    file = checkpoint.base / "config.json"
    config = json_object(file.read_bytes(), source=str(file), hint="Download the checkpoint again.")
    own = config.get("text_config")
    positions = (own if isinstance(own, Mapping) else config).get("max_position_embeddings")
    return positions if isinstance(positions, int) else None


def lacks_chat_template(folder: Path) -> bool:
    """Return whether a folder has a tokenizer, but no chat template in a file where transformers looks for one."""
    own = (folder / name for name in ("chat_template.jinja", "additional_chat_templates/default.jinja"))
    file = folder / "tokenizer_config.json"
    if any(template.is_file() for template in own) or not file.is_file():
        return False
    config = json_object(file.read_bytes(), source=str(file), hint="Download the tokenizer again.")
    return not config.get("chat_template")


def base_and_adapters(spec: ModelSpec) -> tuple[str, tuple[str, ...]]:
    """Split the name in a spec into its base and its adapters; the longest name of an existing folder wins.

    >>> base_and_adapters(ModelSpec("bundled", "smollm2-135m+adapter"))
    ('smollm2-135m', ('adapter',))
    """
    parts = spec.name.split("+")
    names = [parts.pop(0)] if spec.provider == "bundled" else []
    while parts:
        size = len(parts)
        while size > 1:
            with suppress(OSError):  # the name may be too long for a file system
                if Path("+".join(parts[:size])).expanduser().is_dir():
                    break
            size -= 1
        names.append("+".join(parts[:size]))
        del parts[:size]
    return names[0], tuple(names[1:])


def named_folders(spec: ModelSpec) -> tuple[Path, ...]:
    """Return the folders in a local or bundled spec, the base first; a bundled base is omitted."""
    base, adapters = base_and_adapters(spec)
    names = (base, *adapters) if spec.provider != "bundled" else adapters
    return tuple(cached_folder(name) or Path(name).expanduser() for name in names)


def weights_hash(folder: Path) -> str:
    """Return the hash of all tensors in a folder's safetensors files; it is cached until a file changes."""
    files = _weight_files(folder)
    if not files:
        raise UserError(
            f"There are no safetensors weights in {folder}.",
            hint="Convert the weights: load them with transformers, and call save_pretrained.",
        )

    def hashed() -> str:
        with ThreadPoolExecutor(min(8, os.cpu_count() or 1)) as pool:
            listed = sorted(pool.map(_Tensor.entry, [tensor for file in files for tensor in _tensors(file)]))
        return digest("weights", listed).hex()

    return _noted("weights", files, hashed)


def content_hash_of(file: Path) -> str:
    """Return the hash of a file's bytes, cached until the file changes."""

    def hashed() -> str:
        with file.open("rb") as content:
            return file_digest(content, lambda: blake2b(digest_size=16)).hexdigest()

    return _noted("content", [file], hashed)


def _noted(kind: str, files: list[Path], hashed: Callable[[], str]) -> str:
    """Return the cached hash of the given files; compute it if it is missing or a file has changed."""
    state = [[str(f.resolve()), f.stat().st_size, f.stat().st_mtime_ns] for f in files]
    note = cache_folder() / "hashes" / digest(kind, state).hex()
    try:
        return note.read_text(encoding="ascii")
    except OSError:
        hash_ = hashed()
    try:
        note.parent.mkdir(parents=True, exist_ok=True)
        partial = note.with_name(f"{note.name}.{os.getpid()}.partial")
        partial.write_text(hash_, encoding="ascii")
        partial.replace(note)
    except OSError:  # the next process computes the hash again
        pass
    return hash_


def parameters_in(folder: Path) -> int:
    """Return the number of weights in a folder."""
    return sum(prod(tensor.shape) for file in _weight_files(folder) for tensor in _tensors(file))


class _Tensor(NamedTuple):
    """A tensor in a safetensors file."""

    file: Path
    name: str
    type: str
    shape: list[int]
    start: int
    end: int

    def entry(self) -> list[Any]:
        """Return the name, the type and shape, and the hash of the values."""
        hash_ = blake2b(digest_size=16)
        with self.file.open("rb") as file, mmap(file.fileno(), 0, access=ACCESS_READ) as content:
            for start in range(self.start, self.end, _BLOCK):
                hash_.update(content[start : min(start + _BLOCK, self.end)])
        return [self.name, [self.type, self.shape], hash_.hexdigest()]


def _tensors(file: Path) -> Iterator[_Tensor]:
    """Yield the tensors in a safetensors file, and raise an error for an invalid entry."""
    hint = "The file is damaged; download or copy it again."
    with file.open("rb") as stream:
        length = int.from_bytes(stream.read(8), "little")
        if not 0 < length < file.stat().st_size:
            raise UserError(f"{file} is not a safetensors file.", hint=hint)
        header = json_object(stream.read(length), source=f"The header of {file}", hint=hint)
    first, size = 8 + length, file.stat().st_size - 8 - length
    for name, entry in header.items():
        if name == "__metadata__":
            continue
        match entry:
            case {"dtype": str(kind), "shape": [*shape], "data_offsets": [int(start), int(end)]} if (
                0 <= start <= end <= size and all(isinstance(length, int) and length >= 0 for length in shape)
            ):
                yield _Tensor(file, name, kind, shape, first + start, first + end)
            case _:
                raise UserError(f"The header of {file} has an invalid entry for the tensor {name!r}.", hint=hint)


def _weight_files(folder: Path) -> list[Path]:
    return sorted(folder.glob("*.safetensors"))
