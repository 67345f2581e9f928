"""Texts of BIG-bench tasks as calibration sets; they check graders, and are never shipped and never trained on.

The texts come from the PyPI package `bigbench`: from its source archive, from a folder with its files, or from the
installed package. `data/calibration/bigbench.yaml` says which tasks show or lack which skill.
"""

import re
import tarfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path, PurePosixPath
from typing import Any, Final

from skillmix.calibration.known_texts import LONGEST_TEXT, NO_TOPIC, CalibrationSet, KnownText
from skillmix.calls import clean_text
from skillmix.catalog.catalog import Catalog
from skillmix.catalog.files import SHIPPED
from skillmix.catalog.json import json_object
from skillmix.catalog.yaml import read_yaml
from skillmix.errors import UserError
from skillmix.grading.answers import plain_answer
from skillmix.render import name_hint

BIGBENCH: Final = "bigbench:"
_TABLE: Final = SHIPPED / "calibration" / "bigbench.yaml"
_TASKS: Final = "benchmark_tasks"
_LARGEST_TASK: Final = 64 * 2**20
"""Bytes; the largest task in the table has 0.9 MB."""
_LARGEST_ARCHIVE: Final = 16 * 2**30
"""Bytes that are unpacked in memory, piece by piece, before the search for a task is given up."""
_GET: Final = "Get it with `pip download bigbench --no-deps --no-binary :all:`, then give its path with --bigbench."
_DAMAGED: Final = "Get the package again."


@dataclass(frozen=True, slots=True)
class MappedTask:
    """A task whose texts show or lack a skill."""

    task: str
    skill: str
    is_in_choices: bool
    """Whether the texts are the answers to choose from; otherwise they are in the input."""
    pattern: re.Pattern[str] | None
    shows: frozenset[str]
    lacks: frozenset[str]


def mapped_tasks() -> list[MappedTask]:
    """The table of tasks."""
    return [_mapped(row) for row in _table()["tasks"]]


def bigbench_set(task: str, catalog: Catalog, *, source: Path | None = None) -> CalibrationSet:
    """The texts of one task with their labels for the skill alone; topic and sense have none."""
    rows = [row for row in mapped_tasks() if row.task == task]
    if not rows:
        raise _unmapped(task)
    document = json_object(_task_file(task, source), source=f"The task {task}", hint=_DAMAGED)
    texts = [text for row in rows for text in _known_texts(row, document, catalog)]
    if not texts:
        raise UserError(f"The task {task} has no texts in the form that is known.", hint=_DAMAGED)
    return CalibrationSet(f"{BIGBENCH}{task}", tuple(_once(texts)))


def _once(texts: Sequence[KnownText]) -> Iterator[KnownText]:
    """Each text once; a text with two labels has none that is known."""
    labels: dict[str, set[bool | None]] = {}
    for text in texts:
        labels.setdefault(text.id, set()).add(text.shows)
    for text in {text.id: text for text in texts}.values():
        if len(labels[text.id]) == 1:
            yield text


def _table() -> dict[str, Any]:
    table = read_yaml(_TABLE)
    assert isinstance(table, dict)  # the file is ours
    return table


def _mapped(row: Mapping[str, Any]) -> MappedTask:
    pattern = re.compile(row["pattern"], re.DOTALL) if "pattern" in row else None
    names = (frozenset(row.get(key, ())) for key in ("shows", "lacks"))
    return MappedTask(row["task"], row["skill"], row["text"] == "choices", pattern, *names)


def _unmapped(task: str) -> UserError:
    known = sorted({row.task for row in mapped_tasks()})
    reason = _table()["unfit"].get(task.partition("/")[0])
    why = f": {reason}" if reason else ""
    return UserError(
        f"No skill fits the BIG-bench task {task!r}{why}.",
        hint=name_hint(task, known, otherwise=f"Tasks that fit: {', '.join(known)}."),
    )


def _known_texts(row: MappedTask, document: Mapping[str, Any], catalog: Catalog) -> Iterator[KnownText]:
    skill = catalog.skill(row.skill).name
    for text, answer in _answered_texts(row, document):
        shows = answer in row.shows
        if shows or answer in row.lacks:
            cleaned = plain_answer(clean_text(text)).text
            if 0 < len(cleaned) <= LONGEST_TEXT:
                yield KnownText(skill, NO_TOPIC, cleaned, shows, on_topic=None, makes_sense=None)


def _answered_texts(row: MappedTask, document: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Each text of a task with what the table calls its answer; examples in another form are left out."""
    for example in _examples(document):
        scores = example.get("target_scores")
        asked = example.get("input")
        if not isinstance(scores, dict) or not isinstance(asked, str):
            continue
        right = [choice for choice, score in scores.items() if isinstance(score, int | float) and score > 0]
        if row.is_in_choices:
            yield from ((choice, "right" if choice in right else "wrong") for choice in scores)
        elif len(right) == 1:
            found = row.pattern.search(asked) if row.pattern else None
            if found or row.pattern is None:
                yield (found["text"] if found else asked), right[0]


def _examples(document: Mapping[str, Any]) -> Sequence[Mapping[str, Any]]:
    examples = document.get("examples")
    return [example for example in examples if isinstance(example, dict)] if isinstance(examples, list) else []


def _task_file(task: str, source: Path | None) -> bytes:
    """The JSON of a task: from the path given, else from the installed package."""
    if source is None:
        spec = find_spec("bigbench")
        places = list(spec.submodule_search_locations or ()) if spec else []
        if not places:
            raise UserError("The package bigbench is not installed.", hint=_GET)
        return _in_folder(task, Path(places[0]))
    if source.is_dir():
        return _in_folder(task, source)
    if not source.is_file():
        raise UserError(f"There is no file {source}.", hint=_GET)
    return _in_archive(task, source)


def _in_folder(task: str, folder: Path) -> bytes:
    """The task in an installed package, an unpacked archive, or the folder of the tasks itself."""
    for tasks in (folder, folder / _TASKS, folder / "bigbench" / _TASKS, *folder.glob(f"*/bigbench/{_TASKS}")):
        file = tasks / task / "task.json"
        if file.is_file():
            if file.stat().st_size > _LARGEST_TASK:
                raise _too_large(task)
            return file.read_bytes()
    raise UserError(f"The folder {folder} does not have the task {task}.", hint=_GET)


def _in_archive(task: str, archive: Path) -> bytes:
    """The task in a source archive; only this one file is read, into memory, so that nothing is written anywhere."""
    unpacked = 0
    try:
        with tarfile.open(archive, "r|*") as members:
            for member in members:
                unpacked += member.size
                if unpacked > _LARGEST_ARCHIVE:
                    raise _too_large(task)
                if member.isreg() and _names_task(member.name, task):
                    if member.size > _LARGEST_TASK:
                        raise _too_large(task)
                    file = members.extractfile(member)
                    return file.read(_LARGEST_TASK) if file else b""
    except (tarfile.TarError, EOFError, OSError, ValueError) as error:
        raise UserError(f"{archive} cannot be read as an archive: {error}.", hint=_GET) from None
    raise UserError(f"The archive {archive} does not have the task {task}.", hint=_GET)


def _names_task(name: str, task: str) -> bool:
    """Whether a path in the archive is that of a task's JSON."""
    return PurePosixPath(name).parts[1:] == ("bigbench", _TASKS, *task.split("/"), "task.json")


def _too_large(task: str) -> UserError:
    return UserError(f"The files with the task {task} are larger than those of the package.", hint=_DAMAGED)
