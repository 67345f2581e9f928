"""Prepare the document of an experiment file: apply `--set` changes, repeat steps, and find invalid values.

`seeds`, `partitions` and `matrix` each vary one setting. Steps and students that depend on a varied setting, directly
or through their references, are repeated with a suffix in their name, such as `m123-p101-s0`; all others are shared. A
stored experiment has the repeated steps, and `variants` with the values behind each suffix.

Pydantic validates a section as a whole only if all its fields are valid. To find all faults, `checked` removes faulty
parts and validates again until the rest is valid or cannot shrink further.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Annotated, Any, Final, TypeVar

from pydantic import JsonValue, TypeAdapter, ValidationError

from skillmix.errors import UserError
from skillmix.experiment.step_base import JOINED, Name, Section
from skillmix.files import Fault, accepted_if, fault_words, refused_if, section_at, yaml_of
from skillmix.render import name_hint

_VARIABLE: Final = re.compile(r"[a-z][a-z0-9_]*+")
_NOT_IN_NAMES: Final = re.compile(r"[^a-z0-9._]++")


def _repeated(values: list[Any]) -> Iterator[str]:
    if not values:
        yield "the list is empty; give at least one value"
    yield from (f"{value!r} is given twice" for place, value in enumerate(values) if value in values[:place])


Seeds = Annotated[list[int], refused_if(_repeated)]
Partitions = Annotated[list[str], refused_if(_repeated)]
Variable = Annotated[
    str,
    accepted_if(
        lambda name: name not in ("seed", "partition") and _VARIABLE.fullmatch(name),
        "a name has lowercase letters, digits and '_'; for seed and partition, use seeds and partitions",
    ),
]
Matrix = dict[Variable, Annotated[list[JsonValue], refused_if(_repeated)]]


class Variant(Section):
    """The values that distinguish one repetition of a step or student."""

    family: Name
    """The name of the step or student in the experiment file."""
    seed: int | None = None
    """The training seed, if the repetition depends on it."""
    partition: str | None = None
    """The partition, if the repetition depends on it."""
    values: dict[str, JsonValue] = {}
    """The values of `matrix`, by name."""


@dataclass(frozen=True, slots=True)
class Expansion:
    """A document before and after its steps are repeated; the same object twice if nothing is repeated."""

    first: object
    """The document with the first value of each axis and the names from the file."""
    whole: object
    """The document with all repeated steps and students."""
    faults: tuple[str, ...] = ()


_Node = tuple[str, str]
"""A step or student: its section (`steps` or `students`) and its name."""
_Entry = dict[str, Any]
_Axes = Mapping[str, Mapping[str, Any]]
"""For each axis, its values in order, keyed by suffix."""
_Branch = Mapping[str, str]
"""One repetition of a step or student, as the suffix for each axis."""
_KEYS: Final = ("seeds", "partitions", "matrix")
_WHOLE_RUN: Final = ("report", "annotate", "graders")
"""Stages that are not repeated, because they read all results."""
_STEP_KEYS: Final = ("of", "data")
_MODEL_KEYS: Final = ("base", "writer", "students", "tuned_from")
_UNUSED: Final = {
    "seed": "seeds: no train step depends on the seed; remove seeds, or write {seed} into a setting",
    "partition": "partitions: no step depends on the partition; remove partitions, or evaluate held-out skills",
}


def expanded(document: object) -> Expansion:
    """Repeat steps and students for the seeds, partitions and matrix values of a document."""
    if not isinstance(document, dict) or not any(key in document for key in _KEYS):
        return Expansion(document, document)
    axes = _axes(document)
    nodes: dict[_Node, _Entry] = {}
    _with_nodes(document, lambda node, entry: [(node[1], nodes.setdefault(node, entry))])
    depends = {node: {axis for axis in axes if _varies(entry, axis)} for node, entry in nodes.items()}
    named: dict[_Node, list[_Node | None]] = {
        node: [
            _target(key, one)
            for key, value in entry.items()
            if entry.get("stage") not in _WHOLE_RUN
            for one in (value if isinstance(value, list) else [value])
        ]
        for node, entry in nodes.items()
    }
    for _ in nodes:  # enough rounds for the longest chain of references
        for node, others in named.items():
            depends[node].update(*(depends[other] for other in others if other in depends))
    branches = {
        node: [dict(zip(own, suffixes, strict=True)) for suffixes in product(*(axes[name] for name in own))]
        for node, own in ((node, [axis for axis in axes if axis in names]) for node, names in depends.items())
    }
    variants: dict[str, _Entry] = {}

    def repeated(node: _Node, entry: _Entry) -> Iterator[tuple[str, _Entry]]:
        for branch in branches[node]:
            name = f"{node[1]}{''.join(branch.values())}"
            values = {axis: axes[axis][suffix] for axis, suffix in branch.items()}
            if values:
                others = {axis: values[axis] for axis in values if axis not in Variant.model_fields}
                about = {axis: values[axis] for axis in values if axis not in others}
                variants[name] = {"family": node[1], **about, "values": others}
            yield name, _with_references(_filled(entry, branch, values), branches, branch)

    firsts = {axis: next(iter(values.values())) for axis, values in axes.items()}
    first = _with_nodes(document, lambda node, entry: [(node[1], _filled(entry, depends[node], firsts))])
    whole = _with_nodes({key: value for key, value in document.items() if key not in _KEYS}, repeated)
    used = set().union(*depends.values())
    faults = [
        _UNUSED.get(axis, f"matrix.{axis}: no setting of a step or student contains {{{axis}}}")
        for axis in axes
        if axis not in used
    ]
    if document.get("partition") is not None and "partitions" in document:
        faults.append("partition: cannot be combined with partitions; remove one of them")
    return Expansion(first, {**whole, "variants": variants}, tuple(faults))


def _axes(document: Mapping[str, Any]) -> _Axes:
    """Return the axes; skip invalid lists, which `checked` reports."""
    matrix = document.get("matrix")
    named = [(name, name, values) for name, values in matrix.items()] if isinstance(matrix, dict) else []
    lists = [("partition", "p", document.get("partitions")), *named, ("seed", "s", document.get("seeds"))]
    return {
        str(name): dict(zip(_suffixes(str(prefix), values), values, strict=True))
        for name, prefix, values in lists
        if isinstance(values, list) and values
    }


def _suffixes(prefix: str, values: Sequence[object]) -> list[str]:
    """Make suffixes from the parts after the last colons if these are unique, else from whole values or positions.

    >>> _suffixes("p", ["nested:101", "nested:102"]), _suffixes("p", ["category"]), _suffixes("rate", [-0.5, 0.5])
    (['-p101', '-p102'], ['-p-category'], ['-rate1', '-rate2'])
    """
    numbers = [str(place) for place in range(1, len(values) + 1)]
    texts = [str(value).casefold() for value in values]
    for parts in ([text.rpartition(":")[2] for text in texts], texts, numbers):
        words = [_NOT_IN_NAMES.sub("-", part).strip("-._") for part in parts]
        if len({*words, ""}) == len(values) + 1:
            break
    return [f"-{prefix}{'' if word[0].isdigit() else '-'}{word}" for word in words]


def _with_nodes(
    document: Mapping[str, Any], change: Callable[[_Node, _Entry], Iterable[tuple[str, _Entry]]]
) -> dict[str, Any]:
    """Replace each student and step of a document with the named entries that `change` returns."""
    students, steps = document.get("students"), document.get("steps")
    result = dict(document)
    if isinstance(students, dict):
        result["students"] = {}
        for name, entry in students.items():
            is_section = isinstance(entry, dict)
            result["students"].update(change(("students", str(name)), entry) if is_section else [(str(name), entry)])
    if isinstance(steps, list):
        result["steps"] = []
        for entry in steps:
            if isinstance(entry, dict) and isinstance(entry.get("name"), str):
                result["steps"] += [{**new, "name": name} for name, new in change(("steps", entry["name"]), entry)]
            else:
                result["steps"].append(entry)
    return result


def _varies(entry: _Entry, axis: str) -> bool:
    """Return whether a step or student depends on an axis directly, not only through its references."""
    stage = entry.get("stage")
    if stage in _WHOLE_RUN:
        return False
    if f"{{{axis}}}" in str(entry):
        return True
    if axis == "seed":
        return stage == "train" and "seed" not in entry
    if axis != "partition" or "partition" in entry:
        return False
    settings = entry.get("settings", ["all"] if stage == "generate" else ["train", "held-out"])
    return stage == "dataset" or (stage in ("generate", "evaluate") and settings not in ("all", ["all"]))


def _target(key: str, reference: object) -> _Node | None:
    """Return the step or student that a value of a key refers to; None if the key has no references."""
    if key in _MODEL_KEYS and isinstance(reference, str):
        name = reference.removeprefix(JOINED).removeprefix("step:")
        return ("students" if name == reference else "steps"), name
    return ("steps", str(reference)) if key in _STEP_KEYS else None


def _with_references(entry: _Entry, branches: Mapping[_Node, Sequence[_Branch]], own: _Branch) -> _Entry:
    """Replace each reference in an entry with references to all branches compatible with the entry's own."""

    def renamed(key: str, reference: object) -> list[object]:
        target = _target(key, reference)
        if target is None or target not in branches:
            return [reference]
        prefix = str(reference).removesuffix(target[1])
        fitting = [b for b in branches[target] if all(own.get(name, suffix) == suffix for name, suffix in b.items())]
        return [f"{prefix}{target[1]}{''.join(branch.values())}" for branch in fitting]

    return {
        key: [new for one in value for new in renamed(key, one)] if isinstance(value, list) else renamed(key, value)[0]
        for key, value in entry.items()
    }


def _filled(entry: _Entry, own: Iterable[str], values: Mapping[str, Any]) -> _Entry:
    """Replace each `{NAME}` with the branch's value, and set the entry's partition and seed."""
    filled: _Entry = _with_values(entry, values)
    for axis, stages in (("partition", ("dataset", "generate", "evaluate")), ("seed", ("train",))):
        if axis in own and entry.get("stage") in stages:
            filled.setdefault(axis, values[axis])
    return filled


def _with_values(value: Any, values: Mapping[str, Any]) -> Any:
    """Replace `{NAME}` in a value; a string that is only `{NAME}` becomes the value itself, such as a number."""
    if isinstance(value, str):
        for name, own in values.items():
            if value == f"{{{name}}}":
                return own
            value = value.replace(f"{{{name}}}", str(own))
        return value
    if isinstance(value, Mapping):
        return {key: _with_values(part, values) for key, part in value.items()}
    return [_with_values(part, values) for part in value] if isinstance(value, list) else value


_CHANGE_HINT: Final = "Write --set KEY=VALUE, such as budget.max_usd=5 or steps.NAME.k=[1,2]."


def with_changes(document: object, changes: Sequence[str]) -> object:
    """Apply `--set` changes to a document in order, such as `budget.max_usd=5` and `steps.eval.k=[1,2]`."""
    for change in changes:
        path, equals, value = change.partition("=")
        if not equals or not path or not isinstance(document, dict):
            raise UserError(f"--set {change!r} does not have the form KEY=VALUE.", hint=_CHANGE_HINT)
        document = _with(document, path.split("."), yaml_of(value, source=f"The value of --set {path}"), change)
    return document


def _with(document: object, path: Sequence[str], value: object, change: str) -> object:
    if not path:
        return value
    first, *rest = path
    if document is None:
        document = {}
    if isinstance(document, dict):
        return {**document, first: _with(document.get(first), rest, value, change)}
    if not isinstance(document, list):
        raise UserError(f"--set {change!r}: {document!r} is not a mapping and has no key {first!r}.", hint=_CHANGE_HINT)
    names = [item.get("name") if isinstance(item, dict) else None for item in document]
    if first in names:
        index = names.index(first)
    elif first.isdecimal() and 1 <= int(first) <= len(document):
        index = int(first) - 1
    else:
        known = [str(name) for name in names if name is not None]
        others = f"Its entries: {', '.join(known)}, or 1 to {len(names)}." if known else f"Use 1 to {len(names)}."
        hint = name_hint(first, known, otherwise=others)
        raise UserError(f"--set {change!r}: the list has no entry {first!r}.", hint=hint)
    return [*document[:index], _with(document[index], rest, value, change), *document[index + 1 :]]


_S = TypeVar("_S", bound=Section)
DocumentPath = tuple[str | int, ...]
_MOST_SECTIONS: Final = 3
"""The maximum number of sections whose keys a hint lists."""
_ROUNDS: Final = 20
"""The maximum number of validations, which exceeds the nesting depth of sections in a file."""
_PLACEHOLDERS: Final[Mapping[str | int, object]] = {"name": "unnamed", "steps": []}
"""Values for missing keys of the experiment, so that the rest can be checked."""


def checked(document: object, root: type[_S]) -> tuple[_S | None, list[str], str]:
    """Check a document; return its valid part, all faults with their places, and a hint, which may be empty.

    The valid part omits everything with faults, and is None if nothing valid is left.
    """
    adapter = TypeAdapter(root)
    faults: dict[str, str] = {}
    keys: dict[str, list[str]] = {}
    taken: set[DocumentPath] = set()
    section, rest = None, document
    for _ in range(_ROUNDS):
        try:
            section = adapter.validate_python(rest)
            break
        except ValidationError as error:
            found = [(fault, _path_in(rest, fault["loc"])) for fault in error.errors()]
        for fault, path in found:
            # Ignore faults that exist only because an earlier round removed a part of the document.
            inside = [own for own in taken if own[: len(path)] == path and own != path]
            is_emptied = bool(inside) and fault["input"] in ({}, [])
            if fault["type"] == "missing":
                is_new = (*path, fault["loc"][-1]) not in inside
            else:
                is_named = is_emptied or any(str(own[-1]) in fault["msg"] for own in inside)
                is_new = fault["type"] != "value_error" or not is_named
            if is_new:
                way, own = section_at(root, fault["loc"])
                names = list(own.model_fields)
                if fault["type"] in ("extra_forbidden", "missing"):
                    keys[_title(way)] = names
                # For a union, pydantic reports a fault for each type; keep the first.
                faults.setdefault(_location(document, path, fault), fault_words(fault, keys=names))
        smaller = rest
        for fault, path in sorted(found, key=lambda pair: -len(pair[1])):
            # A faulty value makes its whole list unusable; entries that are mappings are removed one by one.
            is_entry = bool(path) and isinstance(path[-1], int) and not isinstance(_value_at(rest, path), Mapping)
            whole = path[:-1] if is_entry else path
            taken.add(whole)
            if whole:
                smaller = _without(smaller, whole)
            elif fault["type"] == "missing" and isinstance(smaller, Mapping) and fault["loc"][-1] in _PLACEHOLDERS:
                smaller = {**smaller, fault["loc"][-1]: _PLACEHOLDERS[fault["loc"][-1]]}
        if smaller == rest:
            break
        rest = smaller
    hints = [f"Keys of {title}: {', '.join(names)}." for title, names in keys.items()]
    if len(keys) > _MOST_SECTIONS:
        hints = ["`skillmix schema` describes the keys of every section."]
    return section, [f"{at}: {words}" for at, words in faults.items()], " ".join(hints)


def _title(way: Sequence[str | int]) -> str:
    """Return the title of a section: its key, or its kind if it is an entry of a list or mapping.

    >>> _title(["budget"]), _title(["steps", 0, "evaluate"]), _title(["students", "base"])
    ('budget', 'an evaluate step', 'a student')
    """
    if len(way) == 1:
        return str(way[0])
    kind = " ".join([*map(str, way[2:]), str(way[0]).removesuffix("s")]) if way else "experiment"
    return f"{'an' if kind[0] in 'aeiou' else 'a'} {kind}"


def _location(document: object, path: DocumentPath, fault: Fault) -> str:
    """Format a location as for `--set`, with steps by name or number and other entries by number."""
    added = {"missing": fault["loc"][-1:], "union_tag_invalid": ("stage",)}.get(fault["type"], ())
    parts = []
    for part in (*path, *added):
        document = _value_at(document, [part])
        name = document.get("name") if isinstance(document, Mapping) and isinstance(part, int) else None
        parts.append(name if isinstance(name, str) and name else str(part + 1) if isinstance(part, int) else part)
    return ".".join(parts) or "the file"


def _value_at(value: object, path: Iterable[str | int]) -> object:
    """Return the value at a path; None if there is no value."""
    for part in path:
        if isinstance(value, Mapping):
            value = value.get(part)
        else:
            is_inside = isinstance(value, Sequence) and isinstance(part, int) and part < len(value)
            value = value[part] if is_inside else None  # type: ignore[index]
    return value


def _path_in(document: object, location: Iterable[str | int]) -> DocumentPath:
    """Return the path of a fault in the document, without the names of union members that pydantic adds."""
    path: list[str | int] = []
    for part in location:
        if (isinstance(document, Mapping) and part in document) or (isinstance(document, list) and type(part) is int):
            path.append(part)
            document = _value_at(document, [part])
    return tuple(path)


def _without(document: object, path: DocumentPath) -> object:
    """Remove the value at a path; a removed step leaves an empty one, so that later steps keep their numbers."""
    first, *rest = path
    if isinstance(document, Mapping):
        if rest and first in document:
            return {**document, first: _without(document[first], tuple(rest))}
        return {key: value for key, value in document.items() if key != first}
    if isinstance(document, list) and isinstance(first, int) and first < len(document):
        new = _without(document[first], tuple(rest)) if rest else {"name": f"left-out-{first}", "stage": "report"}
        return [*document[:first], new, *document[first + 1 :]]
    return document
