"""Models and data sets on the Hugging Face Hub, by id: `ORG/NAME`, or `ORG/NAME@REVISION` for a branch, tag or commit.

A run pins each id to a commit. Cached files are used without access to the Hub, and `HF_HUB_OFFLINE=1` forbids access.
Only a model's safetensors, tokenizer and JSON files are downloaded, never code.
"""

import os
import re
from importlib.util import find_spec
from pathlib import Path
from typing import Final, Literal

from skillmix.errors import UserError
from skillmix.files import json_object
from skillmix.models.lineage_files import LINEAGE_FILE

Kind = Literal["model", "dataset"]
_ID: Final = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*(@[\w./-]+)?")
_COMMIT: Final = re.compile(r"[0-9a-f]{40}")
_FILES: Final[dict[Kind, list[str]]] = {
    "model": ["*.safetensors", "*.json", "*.jinja", "*.txt", "tokenizer.model"],
    "dataset": ["train.jsonl", "validation.jsonl", LINEAGE_FILE],
}
_FIRST: Final[dict[Kind, list[str]]] = {
    "model": ["config.json", "adapter_config.json", LINEAGE_FILE],
    "dataset": [LINEAGE_FILE],
}
"""Small files that describe a repository, downloaded when its commit is resolved."""


def is_hub_id(name: str) -> bool:
    """Return whether a name has the form of a Hub id and is not an existing file or folder.

    >>> is_hub_id("org/name"), is_hub_id("org/name@v1.0"), is_hub_id("./org/name"), is_hub_id("name")
    (True, True, False, False)
    """
    return _ID.fullmatch(name) is not None and not Path(name).exists()


def is_pinned(name: str) -> bool:
    """Return whether the revision of an id is a commit, whose content never changes."""
    return _COMMIT.fullmatch(name.partition("@")[2]) is not None


def pinned(name: str, kind: Kind = "model") -> str:
    """Replace the revision in an id with the commit that it denotes on the Hub or, offline, in the cache."""
    return name if is_pinned(name) else f"{name.partition('@')[0]}@{_fetched(name, kind, _FIRST[kind]).name}"


def cached_folder(name: str, kind: Kind = "model") -> Path | None:
    """Return the folder of a Hub id in the user's cache, which may be incomplete; None if it is not cached."""
    if not is_hub_id(name) or find_spec("huggingface_hub") is None:
        return None
    try:
        return _fetched(name, kind, _FIRST[kind], is_offline=True)
    except UserError:
        return None


def hub_folder(name: str, kind: Kind = "model") -> Path:
    """Return the local folder for a Hub id; download missing files first."""
    is_cached = is_pinned(name) and not is_missing(name, kind)
    return _fetched(name, kind, _FILES[kind], is_offline=is_cached)


def is_missing(name: str, kind: Kind = "model") -> bool:
    """Return whether the cache lacks the weights of a model or the conversations of a data set."""
    folder = cached_folder(name, kind)
    if folder is None:
        return True
    index = folder / "model.safetensors.index.json"
    if index.is_file():
        parts = json_object(index.read_bytes(), source=str(index), hint="Delete the file to download it again.")
        return not all((folder / name).is_file() for name in set(parts.get("weight_map", {}).values()))
    return not any(folder.glob("*.safetensors")) and not (folder / "train.jsonl").is_file()


def _fetched(name: str, kind: Kind, files: list[str], *, is_offline: bool = False) -> Path:
    if find_spec("huggingface_hub") is None:
        raise UserError(
            f"{name} is not a local folder, and downloading it from the Hugging Face Hub needs huggingface_hub.",
            hint="Check the path, or install the package: pip install 'skillmix[hub]'.",
        )
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError

    repository, _, revision = name.partition("@")
    offline = is_offline or os.environ.get("HF_HUB_OFFLINE", "").upper() in ("1", "ON", "YES", "TRUE")
    choice = {"allow_patterns": files, "ignore_patterns": ["*/*"], "local_files_only": offline}
    try:
        return Path(snapshot_download(repository, repo_type=kind, revision=revision or None, **choice))
    except (HfHubHTTPError, OSError, ValueError) as error:
        reason = next(iter(str(error).strip().splitlines()), type(error).__name__).rstrip(".")
        raise UserError(
            f"{name} is not a local folder, and the {kind} cannot be downloaded from the Hugging Face Hub: {reason}.",
            hint="Check the spelling, the network and, for private and gated repositories, HF_TOKEN. On a machine with "
            f"network access, `hf download {repository}` fetches it.",
        ) from None
