"""What a train step learns from: data sets and files, read, split, and known by their hashes."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from hashlib import file_digest
from pathlib import Path
from typing import Any

from skillmix.config.train_step import TrainStep
from skillmix.core.errors import UserError
from skillmix.core.hashing import digest
from skillmix.core.json_texts import json_object
from skillmix.models.checkpoints import LINEAGE
from skillmix.training.conversations import Conversation, read_conversations


@dataclass(frozen=True, slots=True)
class Source:
    """A data set's files and what it says of itself."""

    name: str
    path: Path
    train: Path
    validation: Path | None
    about: dict[str, Any]
    """Its skillmix.json, or only its hash."""


@dataclass(frozen=True, slots=True)
class Lessons:
    """Conversations for training and for validation."""

    train: list[Conversation]
    validation: list[Conversation]


def sources_of(step: TrainStep, run: Path) -> list[Source]:
    """The data of a step; an error names what is not there."""
    return [_file_or_folder(name) if "/" in name else _of_step(name, run) for name in step.data]


def read_lessons(sources: Sequence[Source], *, validation_share: float) -> Lessons:
    """All conversations; of data without a validation part, a share is held back by hash."""
    train: list[Conversation] = []
    validation: list[Conversation] = []
    for source in sources:
        found = read_conversations(source.train, name=source.name)
        if source.validation is not None:
            train += found
            validation += read_conversations(source.validation, name=f"{source.name}/validation")
            continue
        for conversation in found:
            (validation if _is_held_back(conversation, validation_share) else train).append(conversation)
    if not train:
        raise UserError(
            f"There is nothing to train on in {', '.join(source.name for source in sources)}.",
            hint="The data set is empty; see its README.md for what was kept.",
        )
    return Lessons(train, validation)


def united(sources: Iterable[dict[str, Any]], key: str) -> list[Any]:
    """What several data sets say under one key, each thing once, in order."""
    said = [about.get(key) for about in sources]
    items = {item for listed in said if isinstance(listed, list) for item in listed if isinstance(item, str | int)}
    return sorted(items, key=lambda item: (isinstance(item, str), item))


def _of_step(name: str, run: Path) -> Source:
    folder = run / name / "dataset"
    if not (folder / "train.jsonl").is_file():
        raise UserError(f"The data set of step {name!r} is not there yet.", hint="Run that step first.")
    return _of_folder(name, folder)


def _file_or_folder(name: str) -> Source:
    path = Path(name).expanduser()
    if path.is_dir():
        return _of_folder(name, path)
    if not path.is_file():
        raise UserError(f"There is no data set {name}.", hint="data: names dataset steps, folders or JSON Lines files.")
    return Source(name, path, path, None, {"hash": _hash_of([path])})


def _of_folder(name: str, folder: Path) -> Source:
    files = [folder / "train.jsonl", folder / "validation.jsonl"]
    if not files[0].is_file():
        raise UserError(f"There is no data set in {folder}.", hint="Its conversations are in train.jsonl.")
    there = [file for file in files if file.is_file()]
    file = folder / LINEAGE
    content = file.read_bytes() if file.is_file() else b"{}"
    about = json_object(content, source=str(file), hint="It is damaged. Make the data set again.")
    return Source(name, folder, files[0], files[1] if len(there) == 2 else None, {"hash": _hash_of(there), **about})


def _hash_of(files: Sequence[Path]) -> str:
    found = []
    for file in files:
        with file.open("rb") as content:
            found.append(file_digest(content, "blake2b").hexdigest())
    return digest("data set", found).hex()


def _is_held_back(conversation: Conversation, share: float) -> bool:
    said = [list(turn) for turn in conversation.turns]
    return int.from_bytes(digest("validation", said, size=4)) < share * 2**32
