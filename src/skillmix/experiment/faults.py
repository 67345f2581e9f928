"""Find all faults in the form of an experiment file at once, and word them with their locations.

Pydantic checks a section as a whole only if its fields are valid. So faulty parts are taken out, and the rest is
checked again, until it is valid or nothing more can be taken out.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Generic, TypeVar, get_args, get_origin

from pydantic import TypeAdapter, ValidationError

from skillmix.catalog.validation import Fault, fault_words
from skillmix.experiment.step_base import Section

_S = TypeVar("_S", bound=Section)
DocumentPath = tuple[str | int, ...]
_MOST_SECTIONS: Final = 3
"""A hint lists the keys of at most so many sections."""
_ROUNDS: Final = 20
"""More rounds than a file has levels of sections."""


@dataclass(frozen=True, slots=True)
class Checked(Generic[_S]):
    """A document after the check: its valid part, and every fault in words."""

    section: _S | None
    """None if no part of the document is valid by itself; the whole document if there are no faults."""
    faults: list[str]
    hint: str


def checked(document: object, root: type[_S]) -> Checked[_S]:
    """Check a document; the valid part lacks what has faults."""
    search = _Search(root, document)
    adapter = TypeAdapter(root)
    rest = document
    for _ in range(_ROUNDS):
        try:
            section = adapter.validate_python(rest)
        except ValidationError as error:
            smaller = search.take(error, rest)
            if smaller is None:
                break
            rest = smaller
        else:
            return Checked(section, search.faults, search.hint)
    return Checked(None, search.faults, search.hint)


@dataclass(slots=True)
class _Search:
    """Collects the faults of a document round by round."""

    root: type[Section]
    document: object
    faults: list[str] = field(default_factory=list)
    _taken: set[DocumentPath] = field(default_factory=set)
    _titles: dict[str, type[Section]] = field(default_factory=dict)

    @property
    def hint(self) -> str:
        """The keys of each section with a fault, unless there are too many to read."""
        if len(self._titles) > _MOST_SECTIONS:
            return "The documentation of experiment files describes the keys of every section."
        hints = [f"Keys of {title}: {', '.join(section.model_fields)}." for title, section in self._titles.items()]
        if self.root in self._titles.values():
            hints.append("Each step has a name, a stage, and the keys of its stage.")
        return " ".join(hints)

    def take(self, error: ValidationError, rest: object) -> object | None:
        """Note the faults of one round; the document without them, or None if nothing could be taken out."""
        faults = error.errors()
        paths = [_path_in(rest, fault) for fault in faults]
        for fault, path in zip(faults, paths, strict=True):
            if not self._follows(fault, path):
                self._note(fault, path)
        smaller = rest
        for fault, path in sorted(zip(faults, paths, strict=True), key=lambda pair: -len(pair[1])):
            whole = _whole_value(rest, path)
            smaller = _without(smaller, whole) if whole else _with_placeholder(smaller, fault)
            self._taken.add(whole)
        return None if smaller == rest else smaller

    def _follows(self, fault: Fault, path: DocumentPath) -> bool:
        """Whether a fault is there only because an earlier round took a part of its section out."""
        taken = [own for own in self._taken if own[: len(path)] == path and own != path]
        if fault["type"] == "missing":
            return (*path, fault["loc"][-1]) in taken
        is_emptied = bool(taken) and fault["input"] in ({}, [])
        return fault["type"] == "value_error" and (is_emptied or any(str(own[-1]) in fault["msg"] for own in taken))

    def _note(self, fault: Fault, path: DocumentPath) -> None:
        title, section = _section_at(fault["loc"], self.root)
        self._titles.setdefault(title, section)
        at = self._location(path, fault)
        words = f"{at}: {fault_words(fault, keys=list(section.model_fields))}"
        # A union reports one value once for each of its types.
        if not any(known.startswith(f"{at}: ") for known in self.faults):
            self.faults.append(words)

    def _location(self, path: DocumentPath, fault: Fault) -> str:
        """The location as `--set` writes it: a step by its name or its number, other entries by their number."""
        added = {"missing": fault["loc"][-1:], "union_tag_invalid": ("stage",)}
        full = (*path, *added.get(fault["type"], ()))
        parts = []
        value = self.document
        for part in full:
            value = _child(value, part)
            name = value.get("name") if isinstance(value, Mapping) and isinstance(part, int) else None
            parts.append(name if isinstance(name, str) and name else str(part + 1) if isinstance(part, int) else part)
        return ".".join(parts) or "the file"


def _child(value: object, part: str | int) -> object:
    if isinstance(value, Mapping):
        return value.get(part)
    if isinstance(value, Sequence) and isinstance(part, int) and part < len(value):
        return value[part]
    return None


def _path_in(document: object, fault: Fault) -> DocumentPath:
    """The path of a fault in the document, without the names that pydantic adds for the members of a union."""
    path: list[str | int] = []
    value = document
    for part in fault["loc"]:
        is_there = (isinstance(value, Mapping) and part in value) or (isinstance(value, list) and isinstance(part, int))
        if is_there:
            path.append(part)
            value = _child(value, part)
    return tuple(path)


def _whole_value(document: object, path: DocumentPath) -> DocumentPath:
    """The path of the value to take out: a list of plain values goes as a whole."""
    value = document
    for part in path:
        value = _child(value, part)
    is_entry = bool(path) and isinstance(path[-1], int) and not isinstance(value, Mapping)
    return path[:-1] if is_entry else path


def _without(document: object, path: DocumentPath) -> object:
    """The document without the value at a path; an empty step stands for a step, so that others keep their numbers."""
    first, *rest = path
    if isinstance(document, Mapping):
        if rest and first in document:
            return {**document, first: _without(document[first], tuple(rest))}
        return {key: value for key, value in document.items() if key != first}
    if isinstance(document, list) and isinstance(first, int) and first < len(document):
        new = _without(document[first], tuple(rest)) if rest else {"name": f"left-out-{first}", "stage": "report"}
        return [*document[:first], new, *document[first + 1 :]]
    return document


def _with_placeholder(document: object, fault: Fault) -> object:
    """The document with a value for a missing key of the experiment itself."""
    key = fault["loc"][-1] if fault["loc"] else None
    if fault["type"] != "missing" or key not in _PLACEHOLDERS or not isinstance(document, Mapping):
        return document
    return {**document, key: _PLACEHOLDERS[key]}


_PLACEHOLDERS: Final[Mapping[str | int | None, object]] = {"name": "unnamed", "steps": []}


def _section_at(location: Sequence[int | str], root: type[Section]) -> tuple[str, type[Section]]:
    """The innermost section on the way to a location, after what a reader would call it."""
    title: str = "an experiment"
    section = root
    parts = list(location)
    while parts:
        name = str(parts.pop(0))
        annotation = section.model_fields[name].annotation if name in section.model_fields else None
        choices = list(_sections_in(annotation))
        is_container = get_origin(annotation) in (list, dict)
        if is_container:
            del parts[:1]  # the index or the key
        tag = str(parts.pop(0)) if len(choices) > 1 and parts else None
        choices = [choice for choice in choices if tag in (None, *_stages_of(choice))]
        if len(choices) != 1:
            break
        section = choices[0]
        title = _one_of(name, tag) if is_container else name
    return title, section


def _sections_in(annotation: Any) -> Iterator[type[Section]]:
    if isinstance(annotation, type) and issubclass(annotation, Section):
        yield annotation
    for part in get_args(annotation):
        yield from _sections_in(part)


def _stages_of(section: type[Section]) -> tuple[str, ...]:
    stage = section.model_fields.get("stage")
    return get_args(stage.annotation) if stage else ()


def _one_of(name: str, stage: str | None) -> str:
    title = f"{stage or ''} {name.removesuffix('s')}".lstrip()
    return f"{'an' if title[0] in 'aeiou' else 'a'} {title}"
