"""A file before it is an experiment: changes on the command line, repeated steps, and all faults of its form.

`seeds`, `partitions` and `matrix` each vary one thing. A step or a student that depends on it, directly or through a
step or a student that it names, is repeated under a name with a suffix, such as `m123-p101-s0`; everything else is
shared. A stored experiment has the repeated steps, and says in `variants` what each of them was repeated for.

Pydantic checks a section as a whole only if its fields are valid. So faulty parts are taken out, and the rest is
checked again, until it is valid or nothing more can be taken out.
"""

import re
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Annotated, Any, Final, Generic, TypeVar, get_args, get_origin

from pydantic import AfterValidator, JsonValue, TypeAdapter, ValidationError

from skillmix.errors import UserError
from skillmix.experiment.step_base import JOINED, Name, Section
from skillmix.files import LIST, Fault, fault_words, with_listed_skills, yaml_of
from skillmix.render import name_hint

_VARIABLE: Final = re.compile(r"[a-z][a-z0-9_]*+")
_NOT_IN_NAMES: Final = re.compile(r"[^a-z0-9._]++")


def _different(values: list[Any]) -> list[Any]:
    twice = [value for place, value in enumerate(values) if value in values[:place]]
    if twice or not values:
        raise ValueError(f"{twice[0]!r} is given twice" if twice else "the list is empty; give at least one value")
    return values


Seeds = Annotated[list[int], AfterValidator(_different)]
Partitions = Annotated[list[str], AfterValidator(_different)]


def _own_name(name: str) -> str:
    if name in ("seed", "partition") or not _VARIABLE.fullmatch(name):
        raise ValueError("lower-case letters, digits and '_' make a name; seed and partition have lists of their own")
    return name


Matrix = dict[Annotated[str, AfterValidator(_own_name)], Annotated[list[JsonValue], AfterValidator(_different)]]


class Variant(Section):
    """What a step or a student was repeated for."""

    family: Name
    """Its name in the file."""
    seed: int | None = None
    """The seed of the training."""
    partition: str | None = None
    """The partition."""
    values: dict[str, JsonValue] = {}
    """Values of `matrix`, by name."""


def document_with_lists(document: object) -> tuple[object, Sequence[str]]:
    """An experiment as plain data with every `file:PATH` of its exclude lists replaced, and the faults found."""
    if not isinstance(document, dict):
        return document, ()
    faults: list[str] = []

    def replaced(section: object, at: str) -> object:
        names = section.get("exclude") if isinstance(section, dict) else None
        if not isinstance(section, dict) or not isinstance(names, list) or LIST not in str(names):
            return section
        found: list[object] = []
        for name in names:
            try:  # the check of the section reports what is not text
                found += [s for s in with_listed_skills([name]) if s not in found] if isinstance(name, str) else [name]
            except UserError as error:
                faults.append(f"{at}: {error.message} {error.hint or ''}".rstrip())
        return {**section, "exclude": found}

    result = replaced(document, "exclude")
    steps = document.get("steps")
    if isinstance(result, dict) and isinstance(steps, list):
        named = [(step, step.get("name") if isinstance(step, dict) else None) for step in steps]
        result = {**result, "steps": [replaced(step, f"steps.{name}.exclude") for step, name in named]}
    return result, faults


@dataclass(frozen=True, slots=True)
class Expansion:
    """A document with its steps repeated, or a document that says nothing of repetitions as it is."""

    first: object
    """With the first value of everything, under the names of the file."""
    whole: object
    faults: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class _Axis:
    """One thing that varies: its name in braces, and its values with the suffix that each gives to names."""

    name: str
    values: Mapping[str, Any]
    """The value of each suffix."""


_Node = tuple[str, str]
"""A step or a student: `steps` or `students`, and its name."""
_Change = Callable[[_Node, dict[str, Any]], Iterable[tuple[str, dict[str, Any]]]]
_KEYS: Final = ("seeds", "partitions", "matrix")
_WHOLE_RUN: Final = ("report", "annotate", "graders")
"""Steps that read all that was made, so that there is one of each."""
_STEP_KEYS: Final = ("of", "data")
_MODEL_KEYS: Final = ("base", "writer", "students", "tuned_from")


def expanded(document: object) -> Expansion:
    """Repeat the steps and students of an experiment file for its seeds, partitions and the values of its matrix."""
    if not isinstance(document, dict) or not any(key in document for key in _KEYS):
        return Expansion(document, document)
    axes = {axis.name: axis for axis in _axes(document)}
    nodes: dict[_Node, dict[str, Any]] = {}
    _with_nodes(document, lambda node, entry: [(node[1], nodes.setdefault(node, entry))])
    depends = _dependences(nodes, axes)
    firsts = {name: next(iter(axis.values.values())) for name, axis in axes.items()}
    first = _with_nodes(document, lambda node, entry: [(node[1], _filled(entry, depends[node], firsts))])
    branches = {
        node: [dict(zip(own, suffixes, strict=True)) for suffixes in product(*(axes[name].values for name in own))]
        for node, own in depends.items()
    }
    variants: dict[str, dict[str, Any]] = {}

    def repeated(node: _Node, entry: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
        for branch in branches[node]:
            values = {name: axes[name].values[suffix] for name, suffix in branch.items()}
            others = {name: value for name, value in values.items() if name not in Variant.model_fields}
            if values:
                about = {name: value for name, value in values.items() if name not in others}
                variants[_name(node, branch)] = {"family": node[1], **about, "values": others}
            yield _name(node, branch), _with_references(_filled(entry, branch, values), branches, branch)

    whole = _with_nodes({key: value for key, value in document.items() if key not in _KEYS}, repeated)
    return Expansion(first, {**whole, "variants": variants}, tuple(_faults(document, axes, depends)))


def _name(node: _Node, branch: Mapping[str, str]) -> str:
    return f"{node[1]}{''.join(branch.values())}"


def _axes(document: Mapping[str, Any]) -> Iterator[_Axis]:
    """What varies, in the order of suffixes; a list that is not valid is left out, for the check of the form."""
    matrix = document.get("matrix")
    named = [(name, name, values) for name, values in matrix.items()] if isinstance(matrix, dict) else []
    for name, prefix, values in (
        ("partition", "p", document.get("partitions")),
        *named,
        ("seed", "s", document.get("seeds")),
    ):
        if isinstance(values, list) and values:
            yield _Axis(str(name), dict(zip(_suffixes(str(prefix), values), values, strict=True)))


def _suffixes(prefix: str, values: Sequence[object]) -> list[str]:
    """A suffix for each value: its last part if that tells values apart, else all of it, else its number.

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


def _with_nodes(document: Mapping[str, Any], change: _Change) -> dict[str, Any]:
    """The document with each student and step replaced by what `change` makes of it, entries by name."""
    students, steps = document.get("students"), document.get("steps")
    result = dict(document)
    if isinstance(students, dict):
        found = [(("students", str(name)), entry) for name, entry in students.items()]
        result["students"] = {
            name: new
            for node, entry in found
            for name, new in (change(node, entry) if isinstance(entry, dict) else [(node[1], entry)])
        }
    if isinstance(steps, list):
        result["steps"] = []
        for entry in steps:
            named = isinstance(entry, dict) and isinstance(entry.get("name"), str)
            news = change(("steps", entry["name"]), entry) if named else [("", entry)]
            result["steps"] += [{**new, "name": name} if named else new for name, new in news]
    return result


def _dependences(nodes: Mapping[_Node, dict[str, Any]], axes: Iterable[str]) -> dict[_Node, list[str]]:
    """The axes that each step and student depends on, directly or through those that it names, in their order."""
    found = {node: {axis for axis in axes if _varies(entry, axis)} for node, entry in nodes.items()}
    before: object = None
    while before != found:
        before = {node: set(names) for node, names in found.items()}
        for node, entry in nodes.items():
            if entry.get("stage") not in _WHOLE_RUN:
                found[node] |= {name for named in _named_in(entry) for name in found.get(named, ())}
    return {node: [axis for axis in axes if axis in names] for node, names in found.items()}


def _varies(entry: Mapping[str, Any], axis: str) -> bool:
    """Whether a step or a student depends on an axis by itself."""
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
    """The step or the student that a reference under a key means; None if the key holds no references."""
    if key in _MODEL_KEYS and isinstance(reference, str):
        name = reference.removeprefix(JOINED).removeprefix("step:")
        return ("students" if name == reference else "steps"), name
    return ("steps", str(reference)) if key in _STEP_KEYS else None


def _named_in(entry: Mapping[str, Any]) -> Iterator[_Node]:
    for key, value in entry.items():
        for reference in value if isinstance(value, list) else [value]:
            target = _target(key, reference)
            if target is not None:
                yield target


def _with_references(
    entry: Mapping[str, Any], branches: Mapping[_Node, Sequence[Mapping[str, str]]], own: Mapping[str, str]
) -> dict[str, Any]:
    """A step or a student whose references lead to its own branch: to several if it leaves a value open."""

    def renamed(key: str, reference: object) -> list[object]:
        target = _target(key, reference)
        if target is None or target not in branches:
            return [reference]
        prefix = str(reference).removesuffix(target[1])
        fitting = [b for b in branches[target] if all(own.get(name, suffix) == suffix for name, suffix in b.items())]
        return [f"{prefix}{_name(target, branch)}" for branch in fitting]

    return {
        key: [new for one in value for new in renamed(key, one)] if isinstance(value, list) else renamed(key, value)[0]
        for key, value in entry.items()
    }


def _filled(entry: Mapping[str, Any], own: Container[str], values: Mapping[str, Any]) -> dict[str, Any]:
    """A step or a student with the values of a branch, in braces and in the settings that follow from them."""
    filled: dict[str, Any] = _with_values(entry, values)
    if "partition" in own and entry.get("stage") in ("dataset", "generate", "evaluate"):
        filled.setdefault("partition", values["partition"])
    if "seed" in own and entry.get("stage") == "train":
        filled.setdefault("seed", values["seed"])
    return filled


def _with_values(value: Any, values: Mapping[str, Any]) -> Any:
    """A value with `{NAME}` replaced; a text that is nothing else becomes the value itself, such as a number."""
    if isinstance(value, str):
        for name, own in values.items():
            if value == f"{{{name}}}":
                return own
            value = value.replace(f"{{{name}}}", str(own))
        return value
    if isinstance(value, Mapping):
        return {key: _with_values(part, values) for key, part in value.items()}
    return [_with_values(part, values) for part in value] if isinstance(value, list) else value


def _faults(document: Mapping[str, Any], axes: Iterable[str], depends: Mapping[_Node, Iterable[str]]) -> Iterator[str]:
    """Lists that nothing depends on."""
    used = {axis for own in depends.values() for axis in own}
    for axis in axes:
        if axis not in used:
            yield _UNUSED.get(axis, f"matrix.{axis}: no step and no student has {{{axis}}} in a setting")
    if document.get("partition") is not None and "partitions" in document:
        yield "partition: partitions says which; leave one of the two out"


_UNUSED: Final = {
    "seed": "seeds: no step trains with a seed of the list; leave seeds out, or write {seed} where it belongs",
    "partition": "partitions: no step depends on the partition; leave partitions out, or evaluate held-out skills",
}


_CHANGE_HINT: Final = "Write KEY=VALUE, such as budget.max_usd=5 or steps.eval.k=[1,2]; a step goes by name or number."


def with_changes(document: object, changes: Sequence[str]) -> object:
    """The document after changes such as `budget.max_usd=5` and `steps.eval.k=[1,2]`, in order."""
    for change in changes:
        path, equals, value = change.partition("=")
        if not equals or not path or not isinstance(document, dict):
            raise UserError(f"--set {change!r} is not a change of the form KEY=VALUE.", hint=_CHANGE_HINT)
        document = _with(document, path.split("."), yaml_of(value, source=f"The value of --set {path}"), change)
    return document


def _with(document: object, path: Sequence[str], value: object, change: str) -> object:
    if not path:
        return value
    first, *rest = path
    if isinstance(document, list):
        index = _index_in(document, first, change)
        return [*document[:index], _with(document[index], rest, value, change), *document[index + 1 :]]
    if document is None:
        document = {}
    if not isinstance(document, dict):
        raise UserError(
            f"--set {change!r} needs a key {first!r} inside {document!r}, which has no keys.", hint=_CHANGE_HINT
        )
    return {**document, first: _with(document.get(first), rest, value, change)}


def _index_in(items: list[object], name: str, change: str) -> int:
    for index, item in enumerate(items):
        if isinstance(item, dict) and item.get("name") == name:
            return index
    if name.isdecimal() and 1 <= int(name) <= len(items):
        return int(name) - 1
    known = [str(item["name"]) for item in items if isinstance(item, dict) and "name" in item]
    hint = name_hint(name, known, otherwise=_CHANGE_HINT)
    raise UserError(f"--set {change!r}: the list has no entry {name!r}.", hint=hint)


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
    adapter = TypeAdapter(root)
    faults: list[str] = []
    titles: dict[str, type[Section]] = {}
    taken: set[DocumentPath] = set()
    section, rest = None, document
    for _ in range(_ROUNDS):
        try:
            section = adapter.validate_python(rest)
            break
        except ValidationError as error:
            found = [(fault, _path_in(rest, fault["loc"])) for fault in error.errors()]
        for fault, path in found:
            if not _follows(fault, path, taken):
                title, own = _section_at(fault["loc"], root)
                titles.setdefault(title, own)
                at = _location(document, path, fault)
                if not any(known.startswith(f"{at}: ") for known in faults):  # a union reports a value for each type
                    faults.append(f"{at}: {fault_words(fault, keys=list(own.model_fields))}")
        smaller = rest
        for fault, path in sorted(found, key=lambda pair: -len(pair[1])):
            # A list of plain values goes as a whole.
            is_entry = bool(path) and isinstance(path[-1], int) and not isinstance(_value_at(rest, path), Mapping)
            whole = path[:-1] if is_entry else path
            taken.add(whole)
            if whole:
                smaller = _without(smaller, whole)
            elif fault["type"] == "missing" and isinstance(smaller, Mapping):
                key = fault["loc"][-1]
                smaller = {**smaller, **({key: _PLACEHOLDERS[key]} if key in _PLACEHOLDERS else {})}
        if smaller == rest:
            break
        rest = smaller
    hints = [f"Keys of {title}: {', '.join(own.model_fields)}." for title, own in titles.items()]
    if root in titles.values():
        hints.append("Each step has a name, a stage, and the keys of its stage.")
    if len(titles) > _MOST_SECTIONS:
        hints = ["The documentation of experiment files describes the keys of every section."]
    return Checked(section, faults, " ".join(hints))


_PLACEHOLDERS: Final[Mapping[str | int, object]] = {"name": "unnamed", "steps": []}
"""Values for missing keys of the experiment itself, so that the rest can be checked."""


def _follows(fault: Fault, path: DocumentPath, taken: Iterable[DocumentPath]) -> bool:
    """Whether a fault is there only because an earlier round took a part of its section out."""
    inside = [own for own in taken if own[: len(path)] == path and own != path]
    if fault["type"] == "missing":
        return (*path, fault["loc"][-1]) in inside
    is_emptied = bool(inside) and fault["input"] in ({}, [])
    return fault["type"] == "value_error" and (is_emptied or any(str(own[-1]) in fault["msg"] for own in inside))


def _location(document: object, path: DocumentPath, fault: Fault) -> str:
    """The location as `--set` writes it: a step by its name or its number, other entries by their number."""
    added = {"missing": fault["loc"][-1:], "union_tag_invalid": ("stage",)}.get(fault["type"], ())
    parts = []
    value = document
    for part in (*path, *added):
        value = _value_at(value, [part])
        name = value.get("name") if isinstance(value, Mapping) and isinstance(part, int) else None
        parts.append(name if isinstance(name, str) and name else str(part + 1) if isinstance(part, int) else part)
    return ".".join(parts) or "the file"


def _value_at(value: object, path: Iterable[str | int]) -> object:
    """The value at a path; None if there is none."""
    for part in path:
        if isinstance(value, Mapping):
            value = value.get(part)
        elif isinstance(value, Sequence) and isinstance(part, int) and part < len(value):
            value = value[part]
        else:
            return None
    return value


def _path_in(document: object, location: Iterable[str | int]) -> DocumentPath:
    """The path of a fault in the document, without the names that pydantic adds for the members of a union."""
    path: list[str | int] = []
    value = document
    for part in location:
        if (isinstance(value, Mapping) and part in value) or (isinstance(value, list) and isinstance(part, int)):
            path.append(part)
            value = _value_at(value, [part])
    return tuple(path)


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


def _section_at(location: Sequence[int | str], root: type[Section]) -> tuple[str, type[Section]]:
    """The innermost section on the way to a location, after what a reader would call it."""
    title, section = "an experiment", root
    parts = list(location)
    while parts:
        name = str(parts.pop(0))
        annotation = section.model_fields[name].annotation if name in section.model_fields else None
        choices = list(_sections_in(annotation))
        is_container = get_origin(annotation) in (list, dict)
        if is_container:
            del parts[:1]  # the index or the key
        tag = str(parts.pop(0)) if len(choices) > 1 and parts else ""
        if tag:
            choices = [one for one in choices if tag in get_args(one.model_fields["stage"].annotation)]
        if len(choices) != 1:
            break
        section, title = choices[0], name
        if is_container:
            kind = f"{tag} {name.removesuffix('s')}".lstrip()
            title = f"{'an' if kind[0] in 'aeiou' else 'a'} {kind}"
    return title, section


def _sections_in(annotation: Any) -> Iterator[type[Section]]:
    if isinstance(annotation, type) and issubclass(annotation, Section):
        yield annotation
    for part in get_args(annotation):
        yield from _sections_in(part)
