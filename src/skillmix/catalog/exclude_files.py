"""Exclude lists in files of their own: `file:PATH` stands for the skills that the file lists."""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final

from skillmix.catalog.yaml import read_yaml
from skillmix.errors import UserError, faults_error
from skillmix.render import did_you_mean

PREFIX: Final = "file:"
_KEYS: Final = ("catalog", "source", "threshold", "skills")
_HINT: Final = "A list is `skills: [a, b]`, or `[a, b]` alone; `skillmix frequency` writes one."


def skills_in(path: Path) -> list[str]:
    """The skills that an exclude list names."""
    document = read_yaml(path)
    faults = []
    if isinstance(document, dict):
        unknown = [key for key in document if key not in _KEYS]
        faults += [f"there is no key {key!r}. {did_you_mean(str(key), _KEYS)}".rstrip(" .") for key in unknown]
        if "skills" not in document:
            faults.append("the key 'skills' is missing")
        document = document.get("skills", [])
    if document is None:
        document = []
    if not isinstance(document, list):
        faults.append("skills is not a list")
        document = []
    faults += [f"{entry!r} is not the name of a skill" for entry in document if not isinstance(entry, str) or not entry]
    if faults:
        raise faults_error(str(path), faults, hint=_HINT)
    return [str(entry) for entry in document]


def with_listed_skills(names: Iterable[str]) -> list[str]:
    """The names, with every `file:PATH` replaced by the skills of its list, so that the content decides draws.

    >>> with_listed_skills(["common", "metaphor"])
    ['common', 'metaphor']
    """
    found: list[str] = []
    for name in names:
        if not name.startswith(PREFIX):
            found.append(name)
            continue
        path = Path(name.removeprefix(PREFIX)).expanduser()
        if path.is_dir() or not path.name:
            raise UserError(f"{name!r} does not name a file.", hint=_HINT)
        found += [skill for skill in skills_in(path) if skill not in found]
    return found


def document_with_lists(document: object) -> tuple[object, Sequence[str]]:
    """An experiment as plain data with every `file:PATH` of its exclude lists replaced, and the faults found."""
    if not isinstance(document, dict):
        return document, ()
    faults: list[str] = []
    result = _section(document, "exclude", faults)
    steps = result.get("steps")
    if isinstance(steps, list):
        named = [s.get("name") if isinstance(s, dict) else None for s in steps]
        result["steps"] = [
            _section(step, f"steps.{name}.exclude", faults) if isinstance(step, dict) else step
            for step, name in zip(steps, named, strict=True)
        ]
    return result, faults


def _section(section: dict[object, object], at: str, faults: list[str]) -> dict[object, object]:
    names = section.get("exclude")
    if not isinstance(names, list) or not any(isinstance(name, str) and name.startswith(PREFIX) for name in names):
        return dict(section)
    found: list[object] = []
    for name in names:
        if not isinstance(name, str):
            found.append(name)  # the check of the section reports it
            continue
        try:
            found += [skill for skill in with_listed_skills([name]) if skill not in found]
        except UserError as error:
            faults.append(f"{at}: {error.message} {error.hint or ''}".rstrip())
    return {**section, "exclude": found}
