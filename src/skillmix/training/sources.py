"""What a train step learns from: data sets and files, read, split, and known by their hashes."""

from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import file_digest
from pathlib import Path

from skillmix.datasets.files import content_hash
from skillmix.errors import UserError
from skillmix.experiment.train_step import TrainStep
from skillmix.hashing import digest
from skillmix.models.lineage_files import LINEAGE_FILE, DatasetFile, read_dataset_file
from skillmix.runs.progress.terminal import say
from skillmix.training.data.examples import Conversation, read_conversations


@dataclass(frozen=True, slots=True)
class TrainingSource:
    """The files of a data set."""

    name: str
    path: Path
    train: Path
    validation: Path | None
    hash: str
    """The hash of the conversations that are in it now."""
    about: DatasetFile | None
    """Its `skillmix.json`, if it has one."""


@dataclass(frozen=True, slots=True)
class Lessons:
    """Conversations for training and for validation."""

    train: list[Conversation]
    validation: list[Conversation]


def sources_of(step: TrainStep, run: Path) -> list[TrainingSource]:
    """The data of a step; an error names what is not there."""
    return [_file_or_folder(name) if "/" in name else _of_step(name, run) for name in step.data]


def read_lessons(sources: Sequence[TrainingSource], *, validation_share: float) -> Lessons:
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


def _of_step(name: str, run: Path) -> TrainingSource:
    folder = run / name / "dataset"
    if not (folder / "train.jsonl").is_file():
        raise UserError(f"The data set of step {name!r} is not there yet.", hint="Run that step first.")
    return _of_folder(name, folder)


def _file_or_folder(name: str) -> TrainingSource:
    path = Path(name).expanduser()
    if path.is_dir():
        return _of_folder(name, path)
    if not path.is_file():
        raise _no_data(name, path)
    return TrainingSource(name, path, path, None, _hash_of([path]), about=None)


def _of_folder(name: str, folder: Path) -> TrainingSource:
    files = [folder / "train.jsonl", folder / "validation.jsonl"]
    if not files[0].is_file():
        raise _no_data(name, folder)
    there = [file for file in files if file.is_file()]
    about = read_dataset_file(folder, strict=True)
    found = _hash_of(there) if about is None else content_hash(files)
    if about is not None and about.hash != found:
        say(
            f"{name}: its conversations are not those that its {LINEAGE_FILE} was written for; what that file says of "
            "combinations and k may be wrong"
        )
    validation = files[1] if len(there) == 2 else None
    return TrainingSource(name, folder, files[0], validation, found, about)


def check_data(step: TrainStep) -> None:
    """Refuse files and folders that a step could not train on, long before it is their turn."""
    for name in step.data:
        if "/" not in name:
            continue
        path = Path(name).expanduser()
        if not path.is_file() and not (path / "train.jsonl").is_file():
            raise _no_data(name, path)
        read_dataset_file(path, strict=True)


def _no_data(name: str, path: Path) -> UserError:
    if path.is_dir():
        return UserError(f"There is no data set in {path}.", hint="Its conversations are in train.jsonl.")
    return UserError(f"There is no data set {name}.", hint="data: names dataset steps, folders or JSON Lines files.")


def _hash_of(files: Sequence[Path]) -> str:
    found = []
    for file in files:
        with file.open("rb") as content:
            found.append(file_digest(content, "blake2b").hexdigest())
    return digest("data set", found).hex()


def _is_held_back(conversation: Conversation, share: float) -> bool:
    said = [list(turn) for turn in conversation.turns]
    return int.from_bytes(digest("validation", said, size=4)) < share * 2**32
