"""The file `skillmix.json`, which records how a trained model or a data set was made.

A damaged file raises an error: if it were treated as missing, a trained model would look untrained.
"""

import json
from pathlib import Path
from typing import Annotated, Any, Final, Literal, NamedTuple, TypeVar

from pydantic import BaseModel, ConfigDict, Field, PrivateAttr, StringConstraints, field_validator

from skillmix.errors import UserError
from skillmix.files import json_object, validated
from skillmix.models.specs import parse_spec

LINEAGE_FILE: Final = "skillmix.json"
_Count = Annotated[int, Field(ge=0)]
_Text = Annotated[str, StringConstraints(min_length=1)]
_SkillCount = Annotated[int, Field(ge=1)]
_Counts = dict[_Text, _Count]
_CountsByK = dict[Annotated[str, StringConstraints(pattern=r"^[1-9]\d*$")], _Count]
_Pair = Annotated[list[_Text | _Count], Field(min_length=3, max_length=3)]
"""Two skills, and the number of texts that show both."""


class _Entry(BaseModel):
    """Part of a lineage file; unknown keys, perhaps from a later version, are kept."""

    model_config = ConfigDict(extra="allow", strict=True, frozen=True)


class _LineageFile(_Entry):
    """A lineage file, with the JSON object from which it was read."""

    _document: dict[str, Any] | None = PrivateAttr(default=None)

    @property
    def document(self) -> dict[str, Any]:
        """The file's JSON object, including unknown keys."""
        return self.model_dump(exclude_unset=True) if self._document is None else self._document


class BaseEntry(_Entry):
    """The model that was tuned, with the hash of its weights."""

    spec: _Text
    hash: _Text | None = None

    @field_validator("spec")
    @classmethod
    def _is_model(cls, spec: str) -> str:
        try:
            parse_spec(spec)
        except UserError as error:
            raise ValueError(error.message) from None
        return spec


class DataEntry(_Entry):
    """A data set on which a model was trained."""

    path: _Text | None = None
    hash: _Text


class ModelFile(_LineageFile):
    """The `skillmix.json` of a trained model; the order of the fields is the order in the file."""

    kind: Literal["model"]
    base: BaseEntry
    dataset: list[DataEntry] = []
    k: list[_SkillCount]
    requests: _Text | None = None
    """`one` if every training prompt requests a single skill, even if its text shows several."""
    catalog: _Text | None = None
    partition: _Text | None = None
    combinations: list[_Text]  # ids of the combinations on which the model and its base were trained
    recipe: dict[str, Any] = {}
    seed: int | None = None
    parent: _Text | None = None  # the hash of the base, if the base itself was tuned
    adapter: bool = False
    identity: _Text | None = None  # a hash of everything that determines the weights

    @property
    def steps(self) -> int | None:
        """The number of optimizer steps taken; older files record only the number planned."""
        steps = self.recipe.get("steps_taken", self.recipe.get("steps"))
        return steps if isinstance(steps, int) and not isinstance(steps, bool) else None

    def merged(self) -> "ModelFile":
        """Return the lineage file for this model with its adapter merged into the weights."""
        file = self.model_copy(update={"adapter": False})
        file._document = {**self.document, "adapter": False}
        return file

    def text(self) -> str:
        """Return the content of the file."""
        return json.dumps(self.document, ensure_ascii=False, indent=1) + "\n"


class WriterEntry(_Entry):
    """A student that wrote texts of a data set."""

    run: _Text
    student: _Text
    model: _Text
    texts: _Count


class CountsEntry(_Entry):
    """Text counts of a data set; `generated`, `full_marks` and `kept` are unknown if it was joined from others."""

    train: _Count | None = None
    validation: _Count | None = None
    k: _CountsByK = {}
    generated: _CountsByK = {}
    full_marks: _CountsByK = {}
    kept: _CountsByK = {}
    skills: _Counts = {}
    topics: _Counts = {}
    pairs: list[_Pair] = []
    left_out: _Counts = {}  # texts with full marks that were excluded, by reason


class DatasetYield(NamedTuple):
    """The number of conversations written for one k, and how many of them earned full marks."""

    written: int
    full_marks: int


class DatasetFile(_LineageFile):
    """The `skillmix.json` of a data set; the order of the fields is the order in the file."""

    kind: Literal["dataset"]
    name: str | None = None
    hash: _Text
    recipe: str | None = None
    catalog: _Text | None = None
    catalog_hash: _Text | None = None
    partition: _Text | None = None
    groups: list[_Text] = []  # additional groups of the partition from which texts were drawn
    k: list[_SkillCount]
    requests: _Text | None = None  # `one` if every prompt requests a single skill, even if its text shows several
    combinations: list[_Text]
    skill_sets: list[list[_Text]] | None = None  # the sets of two or more skills in the texts
    writers: list[_Text] | None = None
    written_by: list[WriterEntry] = []
    counts: CountsEntry = CountsEntry()

    @property
    def rows(self) -> int | None:
        """The number of training conversations."""
        return self.counts.train

    @property
    def yields(self) -> dict[int, DatasetYield]:
        """For each k, the number of conversations written and how many of them earned full marks."""
        generated, full_marks = self.counts.generated, self.counts.full_marks
        return {
            k: DatasetYield(generated[str(k)], full_marks[str(k)])
            for k in sorted(map(int, generated.keys() & full_marks.keys()))
        }

    def text(self) -> str:
        """Return the content of the file, with one line per key because some values are long."""
        lines = [f"{json.dumps(key)}: {json.dumps(value, ensure_ascii=False)}" for key, value in self.document.items()]
        return "{\n" + ",\n".join(lines) + "\n}\n"


def read_model_file(folder: Path, *, strict: bool = False) -> ModelFile | None:
    """Read a trained model's lineage file; return None if it is missing or, unless `strict`, not about a model."""
    return _checked(ModelFile, "model", folder, strict=strict, hint="Restore the file, or train the model again.")


def read_dataset_file(folder: Path, *, strict: bool = False) -> DatasetFile | None:
    """Read a data set's lineage file; return None if it is missing or, unless `strict`, not about a data set."""
    hint = "Make the data set again, or train on its train.jsonl alone."
    return _checked(DatasetFile, "dataset", folder, strict=strict, hint=hint)


def is_dataset_folder(folder: Path) -> bool:
    """Return whether a folder contains a data set; False for a damaged file, so that nothing overwrites the folder."""
    try:
        document = _read(folder)
    except UserError:
        return False
    return document is not None and document.get("kind") == "dataset"


def extended_chain(chain: tuple[Path, ...], folder: Path) -> tuple[Path, ...]:
    """Add a folder to a chain in which each model is the base of the one before it, and reject a cycle."""
    resolved = folder.resolve()
    if resolved in chain:
        raise UserError(
            f"According to {folder / LINEAGE_FILE}, the model in {folder} was tuned from itself.",
            hint="Restore the file. If the base used to have the name of this folder, rename the folder.",
        )
    return (*chain, resolved)


def _read(folder: Path) -> dict[str, Any] | None:
    """Read the JSON object in a folder's file; return None if the file does not exist."""
    file = folder / LINEAGE_FILE
    try:
        content = file.read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else "the name is invalid"
        raise UserError(
            f"{str(file)!r} cannot be read: {reason}.", hint="Check the path and its permissions."
        ) from None
    hint = "The file is damaged. Restore it, or recreate the folder."
    return json_object(content, source=str(file), hint=hint)


_File = TypeVar("_File", bound=_LineageFile)


def _checked(schema: type[_File], kind: str, folder: Path, *, strict: bool, hint: str) -> _File | None:
    document = _read(folder)
    if document is None or (not strict and document.get("kind") != kind):
        return None
    file = validated(schema, document, source=str(folder / LINEAGE_FILE), hint=hint)
    file._document = document
    return file
