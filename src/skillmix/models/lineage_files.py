"""What a `skillmix.json` says of a data set or a model, checked before anything is trained on its word."""

from pathlib import Path
from typing import Annotated, Any, Final, Literal

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, ValidationError

from skillmix.catalog.json import json_object
from skillmix.errors import UserError, faults_error

LINEAGE: Final = "skillmix.json"
_Count = Annotated[int, Field(ge=0)]
_Text = Annotated[str, StringConstraints(min_length=1)]
_Number = Annotated[str, StringConstraints(pattern=r"^[1-9]\d*$")]
"""A k, as JSON writes a number that is a key."""
_Counts = dict[_Text, _Count]
_CountsByK = dict[_Number, _Count]


class _Strict(BaseModel):
    """Numbers are numbers and texts are texts; what a later version adds is kept."""

    model_config = ConfigDict(extra="allow", strict=True)


class _Writer(_Strict):
    run: _Text
    student: _Text
    model: _Text
    texts: _Count


class _Figures(_Strict):
    train: _Count | None = None
    validation: _Count | None = None
    k: _CountsByK = {}
    generated: _CountsByK = {}
    full_marks: _CountsByK = {}
    kept: _CountsByK = {}
    skills: _Counts = {}
    topics: _Counts = {}
    pairs: list[Annotated[list[_Text | _Count], Field(min_length=3, max_length=3)]] = []


class _About(_Strict):
    kind: Literal["dataset"]
    hash: _Text
    k: list[Annotated[int, Field(ge=1)]]
    combinations: list[_Text]
    partition: _Text | None = None
    catalog: _Text | None = None
    catalog_hash: _Text | None = None
    skill_sets: list[list[_Text]] | None = None
    writers: list[_Text] | None = None
    written_by: list[_Writer] = []
    counts: _Figures = _Figures()


class _Base(_Strict):
    spec: _Text
    hash: _Text


class _ModelAbout(_Strict):
    kind: Literal["model"]
    base: _Base
    k: list[Annotated[int, Field(ge=1)]]
    combinations: list[_Text]


def read_lineage(folder: Path) -> dict[str, Any] | None:
    """The content of a folder's `skillmix.json`; None if there is no such file, an error if it is damaged."""
    file = folder / LINEAGE
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


def read_model_lineage(folder: Path) -> dict[str, Any] | None:
    """The same for a folder that training writes: a file that does not describe a trained model is damaged too."""
    document = read_lineage(folder)
    if document is not None:
        check_model_about(document, source=str(folder / LINEAGE))
    return document


def check_model_about(document: dict[str, Any], *, source: str) -> None:
    """Refuse what a trained model says of itself if a model trained from it could not say the same."""
    try:
        _ModelAbout.model_validate(document)
    except ValidationError as error:
        raise _faults(source, error, hint="Restore the file, or train that model again.") from None


def check_dataset_about(document: dict[str, Any], *, source: str) -> None:
    """Refuse what a data set says of itself unless all of it makes sense; the error lists every fault."""
    try:
        _About.model_validate(document)
    except ValidationError as error:
        raise _faults(source, error, hint="Make the data set again, or train on its train.jsonl alone.") from None


def _faults(source: str, error: ValidationError, *, hint: str) -> UserError:
    faults = []
    for fault in error.errors():
        where = ".".join(map(str, fault["loc"]))
        faults.append(f"{where}: {fault['msg']}" if where else fault["msg"])
    return faults_error(source, faults, hint=hint)
