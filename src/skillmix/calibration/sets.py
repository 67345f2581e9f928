"""Read calibration sets: YAML lists of texts with known labels, shipped with the package or written by users."""

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Final, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    StringConstraints,
    TypeAdapter,
    ValidationError,
    model_validator,
)

from skillmix.calibration.bigbench import BIGBENCH, bigbench_set
from skillmix.calibration.known_texts import LONGEST_TEXT, NO_TOPIC, CalibrationSet, KnownText, repeated
from skillmix.catalog.catalog import Catalog
from skillmix.catalog.files import SHIPPED
from skillmix.catalog.validation import fault_words
from skillmix.catalog.yaml import read_yaml
from skillmix.errors import UserError, faults_error
from skillmix.grading.answers import plain_answer
from skillmix.render import name_hint

FOLDER: Final = SHIPPED / "calibration"
DISAGREEMENTS: Final = "disagreements.yaml"
"""A file beside the texts of a set: labels on which the author and a second reader differ."""
_HINT: Final = (
    "An entry has skill, text and label (shows or near), and may have topic, off (topic or sense), why and disputed; "
    "nothing was asked."
)


def _with_words(text: str) -> str:
    if not any(character.isalnum() for character in text):
        raise ValueError("the text has no letter or digit" if text.strip() else "the text is empty")
    return text


_Prose = Annotated[str, StringConstraints(max_length=LONGEST_TEXT), AfterValidator(_with_words)]


class _Entry(BaseModel):
    """One entry of the file."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    skill: _Prose
    topic: _Prose | None = None
    """None for a text that has a label for the skill alone."""
    text: _Prose
    label: Literal["shows", "near"]
    off: Literal["topic", "sense"] | None = None
    why: str = ""
    disputed: bool = False

    @model_validator(mode="after")
    def _has_what_it_is_off(self) -> "_Entry":
        if self.off is not None and self.topic is None:
            raise ValueError("off needs a topic: a text without one has a label for the skill alone")
        return self


_ENTRY: Final = TypeAdapter(_Entry)
_KEYS: Final = list(_Entry.model_fields)


def shipped_sets() -> list[str]:
    """Names of the sets in the package."""
    return sorted(folder.name for folder in FOLDER.iterdir() if folder.is_dir() and any(folder.glob("*.yaml")))


def load_set(name: str, catalog: Catalog, *, bigbench: Path | None = None) -> CalibrationSet:
    """Load a shipped set by name, a YAML file or a folder of them by path, or `bigbench:TASK`."""
    if name.startswith(BIGBENCH):
        return bigbench_set(name.removeprefix(BIGBENCH), catalog, source=bigbench)
    if bigbench is not None:
        raise UserError("--bigbench goes with a set bigbench:TASK.", hint="Leave it out, or name such a set.")
    if name in shipped_sets():
        return _shipped_set(name, catalog)
    path = Path(name)
    if not path.exists():
        known = shipped_sets()
        listed = f"Shipped: {', '.join(known)}. Or give a YAML file, a folder of them, or bigbench:TASK."
        raise UserError(f"There is no calibration set {name!r}.", hint=name_hint(name, known, otherwise=listed))
    files = _files_in(path) if path.is_dir() else [path]
    if not files:
        raise UserError(f"The folder {path} has no YAML file.", hint=_HINT)
    return CalibrationSet(path.stem, _texts_of(files, catalog))


def _shipped_set(name: str, catalog: Catalog) -> CalibrationSet:
    """A set of the package; each is for the catalogue of its name, and a test holds it to that."""
    try:
        return CalibrationSet(name, _texts_of(_files_in(FOLDER / name), catalog))
    except UserError:
        if catalog.name == name:
            raise
        raise UserError(
            f"The calibration set {name} is for the catalogue {name}; {catalog.name} lacks skills or topics of it.",
            hint=f"Use --catalog {name}, or write a set of your own for {catalog.name}.",
        ) from None


def _files_in(folder: Path) -> list[Path]:
    return sorted(file for file in folder.glob("*.yaml") if file.name != DISAGREEMENTS)


def _texts_of(files: list[Path], catalog: Catalog) -> tuple[KnownText, ...]:
    """The texts of all files; one error reports the faults of all of them."""
    texts: list[KnownText] = []
    places: list[str] = []
    faults: list[str] = []
    for file in files:
        entries = read_yaml(file)
        if not isinstance(entries, list) or not entries:
            faults.append(f"{file.name} is not a list with entries")
            continue
        for number, entry in enumerate(map(_with_off, entries), start=1):
            place = f"{file.name}, entry {number}"
            own = list(_entry_faults(entry, catalog))
            faults += [f"{place}: {fault}" for fault in own]
            if not own:
                texts.append(_known_text(_ENTRY.validate_python(entry), catalog))
                places.append(place)
    faults += [f"{places[index]}: the same text stands before it" for index in repeated(texts)]
    if faults:
        raise faults_error(f"The calibration set {files[0].parent if len(files) > 1 else files[0]}", faults, hint=_HINT)
    return tuple(texts)


def _with_off(entry: object) -> object:
    """The entry with its key `off`, which YAML reads as the value false unless it is quoted."""
    if not isinstance(entry, dict) or False not in entry or "off" in entry:
        return entry
    return {"off" if key is False else key: value for key, value in entry.items()}


def _entry_faults(entry: object, catalog: Catalog) -> Iterator[str]:
    """Every fault of one entry: wrong keys and values, and names that the catalogue does not have."""
    try:
        _ENTRY.validate_python(entry)
    except ValidationError as error:
        for fault in error.errors():
            field = ".".join(str(part) for part in fault["loc"])
            words = fault_words(fault, keys=_KEYS)
            yield f"{field}: {words}" if field else words
    if isinstance(entry, dict):
        for key, find in (("skill", catalog.skill), ("topic", catalog.topic)):
            name = entry.get(key)
            if isinstance(name, str) and name.strip():
                try:
                    find(name)
                except UserError as error:
                    yield f"{key}: {error.message} {error.hint or ''}".rstrip()


def _known_text(entry: _Entry, catalog: Catalog) -> KnownText:
    return KnownText(
        skill=catalog.skill(entry.skill).name,
        topic=NO_TOPIC if entry.topic is None else catalog.topic(entry.topic),
        text=plain_answer(entry.text).text,
        shows=entry.label == "shows",
        on_topic=None if entry.topic is None else entry.off != "topic",
        makes_sense=None if entry.topic is None else entry.off != "sense",
        why=entry.why,
        is_disputed=entry.disputed,
    )
