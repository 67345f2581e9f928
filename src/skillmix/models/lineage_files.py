"""The file `skillmix.json`, which says what a trained model or a data set was made of: its schema, reading, writing.

The schema is checked as a whole. A damaged file is an error that names the file: taken for an empty one, it would pass
a trained model off as one that saw no data.
"""

import json
from pathlib import Path
from typing import Annotated, Any, Final, Literal, Self, TypeVar

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, PrivateAttr, StringConstraints, ValidationError

from skillmix.errors import UserError, faults_error
from skillmix.files import json_object
from skillmix.models.specs import parse_spec

LINEAGE_FILE: Final = "skillmix.json"


def _parsable(spec: str) -> str:
    try:
        parse_spec(spec)
    except UserError as error:
        raise ValueError(error.message) from None
    return spec


_Count = Annotated[int, Field(ge=0)]
_Text = Annotated[str, StringConstraints(min_length=1)]
_Spec = Annotated[_Text, AfterValidator(_parsable)]
_SkillCount = Annotated[int, Field(ge=1)]
_Key = Annotated[str, StringConstraints(pattern=r"^[1-9]\d*$")]
"""A k as a key of a JSON object."""
_Counts = dict[_Text, _Count]
_CountsByK = dict[_Key, _Count]
_Pair = Annotated[list[_Text | _Count], Field(min_length=3, max_length=3)]
"""Two skills, and the number of texts that have both."""


class _Entry(BaseModel):
    """A part of a file: numbers are numbers and texts are texts; keys of a later version are kept."""

    model_config = ConfigDict(extra="allow", strict=True, frozen=True)


class _LineageFile(_Entry):
    """A whole file, with the JSON object that it was read from."""

    _document: dict[str, Any] | None = PrivateAttr(default=None)

    @classmethod
    def of(cls, document: dict[str, Any]) -> Self:
        """The checked content of a JSON object, or pydantic's ValidationError."""
        file = cls.model_validate(document)
        file._document = document
        return file

    @property
    def document(self) -> dict[str, Any]:
        """The JSON object as it was read or will be written, with keys that the schema does not know."""
        return self.model_dump(exclude_unset=True) if self._document is None else self._document


class BaseEntry(_Entry):
    """The model that was tuned."""

    spec: _Spec
    hash: _Text | None = None
    """The hash of its weights."""


class DataEntry(_Entry):
    """A data set that a model was trained on."""

    path: _Text | None = None
    hash: _Text


class ModelFile(_LineageFile):
    """The `skillmix.json` of a trained model; the order of the fields is the order in the file."""

    kind: Literal["model"]
    base: BaseEntry
    dataset: list[DataEntry] = []
    k: list[_SkillCount]
    requests: _Text | None = None
    """`one` if each request of the training texts names one skill, however many skills the texts show."""
    catalog: _Text | None = None
    partition: _Text | None = None
    combinations: list[_Text]
    """Ids of the combinations in the training data; those of a tuned base are included."""
    recipe: dict[str, Any] = {}
    seed: int | None = None
    parent: _Text | None = None
    """The hash of the base, if the base was tuned itself."""
    adapter: bool = False
    identity: _Text | None = None
    """A hash of everything that decides the weights."""

    @property
    def steps(self) -> int | None:
        """Optimiser steps that were taken, or else planned."""
        steps = self.recipe.get("steps_taken", self.recipe.get("steps"))
        return steps if isinstance(steps, int) and not isinstance(steps, bool) else None

    def merged(self) -> "ModelFile":
        """The file of the same model after its adapter was merged into the weights."""
        return ModelFile.of({**self.document, "adapter": False})

    def text(self) -> str:
        """The content of the file."""
        return json.dumps(self.document, ensure_ascii=False, indent=1) + "\n"


class WriterEntry(_Entry):
    """A student that wrote texts of a data set."""

    run: _Text
    student: _Text
    model: _Text
    texts: _Count


class CountsEntry(_Entry):
    """How many texts a data set has; `generated`, `full_marks` and `kept` are unknown for joined data sets."""

    train: _Count | None = None
    validation: _Count | None = None
    k: _CountsByK = {}
    generated: _CountsByK = {}
    full_marks: _CountsByK = {}
    kept: _CountsByK = {}
    skills: _Counts = {}
    topics: _Counts = {}
    pairs: list[_Pair] = []
    left_out: _Counts = {}
    """Texts with full marks that the data set does not have, by reason."""


class DatasetFile(_LineageFile):
    """The `skillmix.json` of a data set; the order of the fields is the order in the file."""

    kind: Literal["dataset"]
    name: str | None = None
    hash: _Text
    recipe: str | None = None
    catalog: _Text | None = None
    catalog_hash: _Text | None = None
    partition: _Text | None = None
    groups: list[_Text] = []
    """Further groups of the partition that the texts were drawn from."""
    k: list[_SkillCount]
    requests: _Text | None = None
    """`one` if each request names one skill, however many skills its text shows."""
    combinations: list[_Text]
    skill_sets: list[list[_Text]] | None = None
    """Sets of two skills or more."""
    writers: list[_Text] | None = None
    written_by: list[WriterEntry] = []
    counts: CountsEntry = CountsEntry()

    def text(self) -> str:
        """The content of the file: one line per key, because some values are as long as the data set."""
        lines = [f"{json.dumps(key)}: {json.dumps(value, ensure_ascii=False)}" for key, value in self.document.items()]
        return "{\n" + ",\n".join(lines) + "\n}\n"


def read_model_file(folder: Path, *, strict: bool = False) -> ModelFile | None:
    """What a folder's file says of a trained model; None if there is no file or it is not about a trained model.

    `strict` is for folders that only training writes: there, a file about anything else is damaged.
    """
    document = _read(folder)
    if document is None or (not strict and document.get("kind") != "model"):
        return None
    return _checked(ModelFile, document, folder, hint="Restore the file, or train that model again.")


def read_dataset_file(folder: Path, *, strict: bool = False) -> DatasetFile | None:
    """What a folder's file says of a data set; None if there is no file or it is not about a data set.

    `strict` is for folders that are used as data sets: there, a file about anything else is damaged.
    """
    document = _read(folder)
    if document is None or (not strict and document.get("kind") != "dataset"):
        return None
    return _checked(DatasetFile, document, folder, hint="Make the data set again, or train on its train.jsonl alone.")


def is_dataset_folder(folder: Path) -> bool:
    """Whether a folder's file says that it is a data set; no folder is replaced on the word of a damaged file."""
    try:
        document = _read(folder)
    except UserError:
        return False
    return document is not None and document.get("kind") == "dataset"


def extended_chain(chain: tuple[Path, ...], folder: Path) -> tuple[Path, ...]:
    """A chain of models, each made from the next, with one more; an error if that model is in the chain already."""
    resolved = folder.resolve()
    if resolved in chain:
        raise UserError(
            f"The model in {folder} was made from itself, as {folder / LINEAGE_FILE} says.",
            hint="Restore the file; or, if its base had the name that this folder has now, rename the folder.",
        )
    return (*chain, resolved)


def _read(folder: Path) -> dict[str, Any] | None:
    """The JSON object in a folder's file; None if there is no file."""
    file = folder / LINEAGE_FILE
    try:
        content = file.read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else "no file can have this name"
        raise UserError(
            f"{str(file)!r} cannot be read: {reason}.", hint="Check the path and its permissions."
        ) from None
    return json_object(content, source=str(file), hint="It is damaged. Restore it, or make the folder again.")


_File = TypeVar("_File", bound=_LineageFile)


def _checked(kind: type[_File], document: dict[str, Any], folder: Path, *, hint: str) -> _File:
    try:
        return kind.of(document)
    except ValidationError as error:
        faults = []
        for fault in error.errors():
            key, message = ".".join(map(str, fault["loc"])), fault["msg"].removeprefix("Value error, ")
            faults.append(f"{key}: {message}" if key else message)
        raise faults_error(str(folder / LINEAGE_FILE), faults, hint=hint) from None
