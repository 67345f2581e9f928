"""Load calibration sets: texts with known labels from the package, from users' files or from BIG-bench.

The BIG-bench texts are in the PyPI package `bigbench`. They are read from its source archive, from a folder with its
files, or from the installed package. `data/calibration/bigbench.yaml` lists the tasks whose texts show or lack a skill.
"""

import re
import tarfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from importlib.util import find_spec
from pathlib import Path, PurePosixPath
from typing import Annotated, Any, Final, Literal

from pydantic import (
    BaseModel,
    ConfigDict,
    StringConstraints,
    ValidationError,
    ValidationInfo,
    field_validator,
    model_validator,
)

from skillmix.calls import clean_text
from skillmix.catalog.catalog import Catalog
from skillmix.catalog.combinations import Combination, combination_of
from skillmix.errors import UserError, faults_error
from skillmix.files import SHIPPED, accepted_if, json_object, located_fault, read_yaml, refusing_values
from skillmix.grading.answers import plain_answer
from skillmix.hashing import digest, short_id
from skillmix.render import name_hint

LONGEST_TEXT: Final = 4_000
"""The maximum length in characters; longer texts do not fit in the prompts of small graders."""

NO_TOPIC: Final = "everyday life"
"""The topic in the prompt for a text without a topic, which has a label only for the skill."""


@dataclass(frozen=True)
class KnownText:
    """A text with labels for one skill, the topic and sense; None if there is no label."""

    skill: str
    topic: str
    text: str
    shows: bool | None
    on_topic: bool | None = True
    makes_sense: bool | None = True
    why: str = ""
    """The author's reason for the label."""
    is_disputed: bool = False
    """Whether a second reader, who did not see the label, disagreed with it."""

    @cached_property
    def combination(self) -> Combination:
        """Return the combination of the one skill and the topic."""
        return combination_of([self.skill], self.topic)

    @property
    def id(self) -> str:
        """Return a hash of the skill, the topic and the text, but not of the labels."""
        return short_id("known text", self.skill, self.topic, self.text)

    @property
    def labels(self) -> tuple[bool | None, bool | None, bool | None]:
        """Return the labels for skill, topic and sense."""
        return self.shows, self.on_topic, self.makes_sense


@dataclass(frozen=True)
class CalibrationSet:
    """Texts with known labels, each with its skill and topic."""

    name: str
    texts: tuple[KnownText, ...]

    def content_hash(self) -> str:
        """Return a hash of the texts and their labels."""
        return short_id("calibration set", [[text.id, text.labels, text.is_disputed] for text in self.texts])

    def subset(self, size: int) -> "CalibrationSet":
        """Return `size` texts, chosen by hash and kept in order; a smaller subset is part of every larger one."""
        ordered = sorted(self.texts, key=lambda text: digest("calibration subset", text.id))
        chosen = {text.id for text in ordered[:size]}
        return CalibrationSet(self.name, tuple(text for text in self.texts if text.id in chosen))


BIGBENCH: Final = "bigbench:"
_TASKS: Final = "benchmark_tasks"
_LARGEST_TASK: Final = 64 * 2**20
"""The maximum size of a task in bytes; the largest task in the table has 0.9 MB."""
_LARGEST_ARCHIVE: Final = 16 * 2**30
"""The maximum unpacked size of an archive in bytes; archives are read as a stream."""
_GET: Final = "Run `pip download bigbench --no-deps --no-binary :all:`, then give its path with --bigbench."
_DAMAGED: Final = "Download the package again."


class MappedTask(BaseModel):
    """A task whose texts show or lack a skill."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    task: str
    skill: str
    text: Literal["choices", "input"]
    """Where an example contains its texts: in its answer choices, or in its input."""
    pattern: str | None = None
    """A regular expression for the part of the input that is the text."""
    shows: frozenset[str] = frozenset()
    """The answers to examples whose text shows the skill."""
    lacks: frozenset[str] = frozenset()


class BigBenchTable(BaseModel):
    """The content of `bigbench.yaml`."""

    tasks: tuple[MappedTask, ...]
    unfit: dict[str, str]
    """The reason why no skill fits, by task."""


def bigbench_table() -> BigBenchTable:
    """Return the table of tasks that ships with the package."""
    return BigBenchTable.model_validate(read_yaml(SHIPPED / "calibration" / "bigbench.yaml"))


def bigbench_set(task: str, catalog: Catalog, *, source: Path | None = None) -> CalibrationSet:
    """Return the texts of one task, which have labels for the skill only."""
    table = bigbench_table()
    rows = [row for row in table.tasks if row.task == task]
    if not rows:
        known = sorted({row.task for row in table.tasks})
        reason = table.unfit.get(task.partition("/")[0])
        raise UserError(
            f"No skill fits the BIG-bench task {task!r}{f': {reason}' if reason else ''}.",
            hint=name_hint(task, known, otherwise=f"Tasks that fit: {', '.join(known)}."),
        )
    document = json_object(_task_file(task, source), source=f"The task {task}", hint=_DAMAGED)
    texts: dict[str, KnownText] = {}
    labels: dict[str, set[bool]] = {}
    for row in rows:
        skill = catalog.skill(row.skill).name
        for text, answer in _answered_texts(row, document):
            cleaned = plain_answer(clean_text(text)).text
            if answer in row.shows | row.lacks and 0 < len(cleaned) <= LONGEST_TEXT:
                shows = answer in row.shows
                known_text = KnownText(skill, NO_TOPIC, cleaned, shows, on_topic=None, makes_sense=None)
                texts[known_text.id] = known_text
                labels.setdefault(known_text.id, set()).add(shows)
    if not texts:
        raise UserError(f"The task {task} has no texts in the expected format.", hint=_DAMAGED)
    # Exclude texts with contradictory labels.
    return CalibrationSet(f"{BIGBENCH}{task}", tuple(text for text in texts.values() if len(labels[text.id]) == 1))


def _answered_texts(row: MappedTask, document: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield each text of a task with the answer that determines its label; skip examples in other formats."""
    examples = document.get("examples")
    for example in examples if isinstance(examples, list) else ():
        match example:
            case {"input": str(asked), "target_scores": dict(scores)}:
                right = [choice for choice, score in scores.items() if isinstance(score, int | float) and score > 0]
            case _:
                continue
        if row.text == "choices":
            yield from ((choice, "right" if choice in right else "wrong") for choice in scores)
        elif len(right) == 1:
            found = re.compile(row.pattern or "(?P<text>.*)", re.DOTALL).search(asked)
            if found:
                yield found["text"], right[0]


def _task_file(task: str, source: Path | None) -> bytes:
    """Read the JSON of a task from an archive or a folder (default: the installed package) without writing files."""
    too_large = UserError(f"The files with the task {task} are larger than the package's own files.", hint=_DAMAGED)
    if source is None:
        spec = find_spec("bigbench")
        places = list(spec.submodule_search_locations or ()) if spec else []
        if not places:
            raise UserError("The package bigbench is not installed.", hint=_GET)
        source = Path(places[0])
    if source.is_dir():
        # The folder may be an installed package, contain an unpacked archive, or contain the tasks directly.
        folders = (source, source / _TASKS, source / "bigbench" / _TASKS, *source.glob(f"*/bigbench/{_TASKS}"))
        path = next((one for folder in folders if (one := folder / task / "task.json").is_file()), None)
        if path is None:
            raise UserError(f"The folder {source} does not contain the task {task}.", hint=_GET)
        if path.stat().st_size > _LARGEST_TASK:
            raise too_large
        return path.read_bytes()
    if not source.is_file():
        raise UserError(f"There is no file {source}.", hint=_GET)
    unpacked, wanted = 0, ("bigbench", _TASKS, *task.split("/"), "task.json")
    try:
        with tarfile.open(source, "r|*") as members:
            for member in members:
                unpacked += member.size
                if unpacked > _LARGEST_ARCHIVE:
                    raise too_large
                if member.isreg() and PurePosixPath(member.name).parts[1:] == wanted:
                    if member.size > _LARGEST_TASK:
                        raise too_large
                    file = members.extractfile(member)
                    return file.read(_LARGEST_TASK) if file else b""
    except (tarfile.TarError, EOFError, OSError, ValueError) as error:
        raise UserError(f"{source} cannot be read as an archive: {error}.", hint=_GET) from None
    raise UserError(f"The archive {source} does not contain the task {task}.", hint=_GET)


FOLDER: Final = SHIPPED / "calibration"
DISAGREEMENTS: Final = "disagreements.yaml"
"""A file in the folder of a set that lists the labels with which a second reader disagrees."""
_HINT: Final = (
    "An entry has skill, text and label (shows or near), and may have topic, off (topic or sense), why and disputed; "
    "no call was made."
)


_Prose = Annotated[
    str,
    StringConstraints(max_length=LONGEST_TEXT),
    accepted_if(str.strip, "the text is empty"),
    accepted_if(lambda text: any(map(str.isalnum, text)), "the text has no letter or digit"),
]


class _Entry(BaseModel):
    """One entry in a file of texts, validated with a catalog as the context."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    skill: _Prose
    topic: _Prose | None = None
    """None for a text that has a label only for the skill."""
    text: _Prose
    label: Literal["shows", "near"]
    off: Literal["topic", "sense"] | None = None
    why: str = ""
    disputed: bool = False

    @field_validator("skill", "topic")
    @classmethod
    def _as_in_catalog(cls, name: str | None, info: ValidationInfo) -> str | None:
        """Replace a name with the catalog's spelling."""
        catalog = info.context
        assert isinstance(catalog, Catalog)
        with refusing_values():
            if info.field_name == "skill":
                return catalog.skill(str(name)).name
            return None if name is None else catalog.topic(name)

    @model_validator(mode="after")
    def _has_topic_if_off(self) -> "_Entry":
        if self.off is not None and self.topic is None:
            raise ValueError("off needs a topic: a text without one has a label for the skill alone")
        return self


def load_set(name: str, catalog: Catalog, *, bigbench: Path | None = None) -> CalibrationSet:
    """Load a shipped set by name, a YAML file or a folder of YAML files by path, or `bigbench:TASK`."""
    if name.startswith(BIGBENCH):
        return bigbench_set(name.removeprefix(BIGBENCH), catalog, source=bigbench)
    if bigbench is not None:
        raise UserError("--bigbench needs a set bigbench:TASK.", hint="Remove it, or choose a set by bigbench:TASK.")
    known = sorted(folder.name for folder in FOLDER.iterdir() if folder.is_dir() and any(folder.glob("*.yaml")))
    path = FOLDER / name if name in known else Path(name)
    if not path.exists():
        listed = f"Shipped: {', '.join(known)}. Or give a YAML file, a folder of YAML files, or bigbench:TASK."
        raise UserError(f"There is no calibration set {name!r}.", hint=name_hint(name, known, otherwise=listed))
    files = sorted(file for file in path.glob("*.yaml") if file.name != DISAGREEMENTS) if path.is_dir() else [path]
    if not files:
        raise UserError(f"The folder {path} has no YAML file.", hint=_HINT)
    try:
        return CalibrationSet(path.stem, _texts_of(files, catalog))
    except UserError:
        if name not in known or catalog.name == name:  # a shipped set is for the catalog with the same name
            raise
        raise UserError(
            f"The calibration set {name} is for the catalog {name}; {catalog.name} lacks some of its names.",
            hint=f"Use --catalog {name}, or write your own set for {catalog.name}.",
        ) from None


def _texts_of(files: list[Path], catalog: Catalog) -> tuple[KnownText, ...]:
    """Read the texts of all files, and report the faults in all files as one error."""
    texts: dict[str, KnownText] = {}
    faults, repeated = list[str](), list[str]()
    for file in files:
        entries = read_yaml(file)
        if not isinstance(entries, list) or not entries:
            faults.append(f"{file.name} is not a list of texts, or is empty")
            continue
        for number, entry in enumerate(entries, start=1):
            place = f"{file.name}, entry {number}"
            if isinstance(entry, dict) and False in entry and "off" not in entry:
                # YAML reads the key `off` as false unless it is quoted.
                entry = {"off" if key is False else key: value for key, value in entry.items()}
            try:
                read = _Entry.model_validate(entry, context=catalog)
            except ValidationError as error:
                faults += [f"{place}: {located_fault(fault, _Entry)}" for fault in error.errors()]
                continue
            text = KnownText(
                skill=read.skill,
                topic=read.topic or NO_TOPIC,
                text=plain_answer(read.text).text,
                shows=read.label == "shows",
                on_topic=None if read.topic is None else read.off != "topic",
                makes_sense=None if read.topic is None else read.off != "sense",
                why=read.why,
                is_disputed=read.disputed,
            )
            repeated += [f"{place}: the same text occurs earlier"] if text.id in texts else []
            texts.setdefault(text.id, text)
    faults += repeated
    if faults:
        raise faults_error(f"The calibration set {files[0].parent if len(files) > 1 else files[0]}", faults, hint=_HINT)
    return tuple(texts.values())
