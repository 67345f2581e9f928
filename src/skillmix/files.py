"""Read YAML and JSON files of users and other programs, find shipped files, and replace files and folders."""

import json
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import lru_cache
from importlib.resources import files
from importlib.util import find_spec
from itertools import islice
from math import isfinite
from pathlib import Path
from shutil import rmtree
from tempfile import mkdtemp
from types import UnionType
from typing import Any, Final, TypeVar, Union, get_args, get_origin

import yaml

from skillmix.errors import UserError, faults_error, visible
from skillmix.render import did_you_mean, name_hint, shortened

SHIPPED: Final = Path(str(files("skillmix"))) / "data"
"""The folder with the catalogs, prompt sets and other data of the package."""
_T = TypeVar("_T")
_Loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


class _StrictLoader(_Loader):  # type: ignore[misc] # the C loader if libyaml is installed, else the Python loader
    """A safe loader that rejects repeated keys, of which YAML would keep only the last."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        """Build a mapping; reject repeated keys."""
        seen: set[Hashable] = set()
        for key_node, _ in node.value:
            key = self.construct_object(key_node, deep=True)
            if isinstance(key, Hashable):
                if key in seen:
                    raise yaml.constructor.ConstructorError(
                        None, None, f"the key {key!r} is given twice", key_node.start_mark
                    )
                seen.add(key)
        mapping: dict[Hashable, Any] = super().construct_mapping(node, deep=deep)
        return mapping


SMALL: Final = 64 << 20
LARGE: Final = 4 << 30
"""The maximum size in bytes of a list of texts or combinations; other files of users are limited to `SMALL`."""
_MOST_NAMES: Final = 500
"""The maximum number of files in a folder to consider for a suggestion."""


def read_text(path: Path, *, most: int = SMALL) -> str:
    """Read a UTF-8 text file of at most `most` bytes."""
    try:
        if path.exists() and not path.is_file() and not path.is_dir():
            raise UserError(f"{path} is not a regular file.", hint="Copy its content into a file.")
        if path.stat().st_size > most:
            raise UserError(f"{path} is larger than {most >> 20:,} MiB.", hint="Check the path.")
        return path.read_bytes().decode("utf-8-sig").replace("\r\n", "\n").replace("\r", "\n")
    except FileNotFoundError:
        kinds = {".yaml", ".yml"} if path.suffix.casefold() in (".yaml", ".yml") else {path.suffix.casefold()}
        beside: list[str] = []
        with suppress(OSError):
            others = (other for other in islice(path.parent.iterdir(), _MOST_NAMES) if other.is_file())
            beside = sorted(other.name for other in others if other.suffix.casefold() in kinds)
        hint = name_hint(path.name, beside, otherwise="Check the path.")
        raise UserError(f"There is no file {path}.", hint=hint) from None
    except UnicodeDecodeError as error:
        raise UserError(f"{path} is not UTF-8 text at byte {error.start}.", hint="Save it as UTF-8.") from None
    except OSError as error:
        hint = "Check the path and its permissions."
        raise UserError(f"{path} cannot be read: {error.strerror}.", hint=hint) from None


def read_yaml(path: Path) -> object:
    """Read a YAML file as plain data. An empty file is an error."""
    return _document_of(read_text(path), path)


def _document_of(text: str, path: Path) -> object:
    document = yaml_of(text, source=str(path))
    if document is None:
        raise UserError(f"{path} is empty.", hint="Check the path, or fill in the file.")
    return document


_shared_document = lru_cache(maxsize=32)(_document_of)
"""Calls `_document_of` with a cache, because a command parses its catalog and prompts several times."""


def require_package(package: str, user: str, *, extra: str) -> None:
    """Raise an error if a package is not installed. `user` names the feature that needs it; `extra` installs it."""
    if find_spec(package) is None:
        raise UserError(f"{user} needs {package}.", hint=f"pip install 'skillmix[{extra}]'")


LIST: Final = "file:"
"""The prefix of an exclude list's path among names of skills."""
_LIST_KEYS: Final = ("catalog", "source", "threshold", "skills")
_LIST_HINT: Final = "Write the file as `skills: [a, b]` or `[a, b]`, or let `skillmix frequency` write it."


def with_listed_skills(names: Iterable[str]) -> list[str]:
    """Replace every `file:PATH` with the skills in this file, so that draws depend on its content.

    >>> with_listed_skills(["common", "metaphor"])
    ['common', 'metaphor']
    """
    found: list[str] = []
    for name in names:
        if not name.startswith(LIST):
            found.append(name)
            continue
        path = Path(name.removeprefix(LIST)).expanduser()
        if path.is_dir() or not path.name:
            raise UserError(f"{name!r} does not name a file.", hint=_LIST_HINT)
        listed = read_yaml(path)
        faults = []
        if isinstance(listed, dict):
            unknown = [key for key in listed if key not in _LIST_KEYS]
            faults += [with_nearest(f"there is no key {key!r}", str(key), _LIST_KEYS) for key in unknown]
            faults += [] if "skills" in listed else ["the key 'skills' is missing"]
            listed = listed.get("skills")
        if not isinstance(listed, list | None):
            faults.append("skills is not a list")
            listed = None
        skills = listed or []
        faults += [
            f"{skill!r} is not the name of a skill" for skill in skills if not isinstance(skill, str) or not skill
        ]
        if faults:
            raise faults_error(str(path), faults, hint=_LIST_HINT)
        found += [skill for skill in skills if skill not in found]
    return found


def _experiments() -> Path:
    """Return the folder of shipped experiments, in the wheel or else in the checkout."""
    return (SHIPPED / "shipped" if (SHIPPED / "shipped").is_dir() else SHIPPED.parents[2]) / "experiments"


def shipped_experiments() -> dict[str, Path]:
    """Return the paths of shipped experiments by name."""
    return {file.stem: file for file in sorted(_experiments().glob("*.yaml"))}


def experiment_file(name: Path) -> Path:
    """Find an experiment: a file, or a shipped experiment by name (`smoke`, `experiments/smoke.yaml`)."""
    try:
        is_own = bool(name.suffix) or len(name.parts) != 1 or name.is_file()
    except OSError:  # the name is too long
        is_own = False
    if is_own:
        return own_or_shipped(name)
    shipped = shipped_experiments()
    if name.name in shipped:
        return shipped[name.name]
    others = f"Give a file, or the name of a shipped experiment: {', '.join(shipped)}."
    raise UserError(
        f"There is no experiment or file {name.name!r}.", hint=name_hint(name.name, list(shipped), otherwise=others)
    )


def own_or_shipped(name: str | Path) -> Path:
    """Resolve a name to a path; the user's own file or folder takes precedence over a shipped experiment.

    >>> own_or_shipped("experiments/smoke.yaml").is_file(), own_or_shipped("experiments/unknown.yaml").is_file()
    (True, False)
    """
    path = Path(name).expanduser()
    try:
        is_own = path.exists() or ".." in path.parts
    except (OSError, ValueError):  # the name is too long, for example
        is_own = True
    packed = _experiments().parent / path
    is_packed = not is_own and len(path.parts) == 2 and path.parts[0] == "experiments" and packed.exists()
    return packed if is_packed else path


def yaml_of(text: str, *, source: str) -> object:
    """Parse YAML text into plain data."""
    try:
        _refuse_bombs(text)
        document: object = yaml.load(text, Loader=_StrictLoader)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        problem = getattr(error, "problem", None) or str(error).splitlines()[0]
        where = f"line {mark.line + 1}: " if mark else ""
        hint = "Check quotes, colons and indentation."
        raise UserError(f"{source} is not valid YAML: {where}{problem}.", hint=hint) from None
    except (ValueError, LookupError, AttributeError, TypeError) as error:
        # PyYAML's scalar constructors raise all these errors, for example for `!!int ""` and `2024-13-45`.
        raise UserError(f"{source} has an invalid value: {error}.", hint="Quote the value.") from None
    return document


def _refuse_bombs(text: str) -> None:
    """Reject YAML that would exhaust the stack or the memory, by counting the parser's events.

    The recursive C loader crashes where Python would raise an error, and a few lines with aliases of aliases can expand
    to more values than fit into memory.
    """
    size = 0
    open_nodes: list[tuple[str | None, int]] = []
    sizes: dict[str | None, int] = {}
    for event in yaml.parse(text, Loader=_Loader):
        if isinstance(event, yaml.CollectionStartEvent):
            open_nodes.append((event.anchor, size))
        elif isinstance(event, yaml.CollectionEndEvent):
            anchor, start = open_nodes.pop()
            sizes[anchor] = size - start
        elif isinstance(event, yaml.AliasEvent):
            if event.anchor not in sizes:
                raise ValueError(f"the alias *{event.anchor} has no complete anchor before it")
            size += sizes[event.anchor]  # an alias adds all values of its anchor
        elif isinstance(event, yaml.ScalarEvent) and event.anchor:
            sizes[event.anchor] = 1
        size += isinstance(event, yaml.ScalarEvent | yaml.CollectionStartEvent)
        if len(open_nodes) > _DEEPEST:
            raise ValueError(f"it is nested more than {_DEEPEST} levels deep")
        if size > _MOST_VALUES:
            raise ValueError(f"it expands to more than {_MOST_VALUES} values")


_DEEPEST: Final = 50
_MOST_VALUES: Final = 1_000_000


def parsed_json(content: bytes | str, *, source: str, hint: str) -> object:
    """Parse JSON, with or without a byte order mark."""
    try:
        text = content.decode("utf-8-sig") if isinstance(content, bytes) else content.removeprefix("\ufeff")
        value: object = json.loads(text, parse_constant=_finite, parse_float=_finite)
    except UnicodeDecodeError:
        raise UserError(f"{source} is not UTF-8.", hint="Save it as UTF-8.") from None
    except RecursionError:
        raise UserError(f"{source} is nested too deeply.", hint=hint) from None
    except ValueError:
        raise UserError(f"{source} is not JSON.", hint=hint) from None
    return value


def _finite(written: str) -> float:
    """Reject NaN and Infinity, which are not JSON, and numbers that overflow, such as 1e999."""
    number = float(written)
    if not isfinite(number):
        raise ValueError(f"{written} is not a number")
    return number


def json_object(content: bytes | str, *, source: str, hint: str) -> dict[str, Any]:
    """Parse a JSON object.

    >>> json_object(b'{"a": 1}', source="a file", hint="Correct it.")
    {'a': 1}
    """
    value = parsed_json(content, source=source, hint=hint)
    if not isinstance(value, dict):
        raise UserError(f"{source} is not a JSON object.", hint=hint)
    return value


def with_nearest(fault: str, name: str, known: Iterable[str]) -> str:
    """Append the nearest known name to a fault about an unknown name."""
    question = did_you_mean(name, known)
    return f"{fault}. {question}" if question else fault


@contextmanager
def refusing_values() -> Iterator[None]:
    """Turn a `UserError` in a pydantic validator into a fault of the value."""
    try:
        yield
    except UserError as error:
        raise ValueError(f"{error.message} {error.hint}") from None


def refused_if(find: Callable[[Any], Iterable[str]]) -> Any:
    """Make a pydantic validator that rejects values in which `find` finds faults."""
    from pydantic import AfterValidator

    def checked(value: Any) -> Any:
        with refusing_values():
            faults = list(find(value))
        if faults:
            raise ValueError("; ".join(faults))
        return value

    return AfterValidator(checked)


def accepted_if(is_good: Callable[[Any], object], words: str) -> Any:
    """Make a pydantic validator that rejects values for which `is_good` is false."""
    return refused_if(lambda value: () if is_good(value) else (words,))


Fault = Mapping[str, Any]
"""An entry of `ValidationError.errors()`: type, location, value, and details that depend on the type."""


def fault_words(fault: Fault, *, keys: Sequence[str] = ()) -> str:
    """Describe a fault without its location; for an unknown key, suggest the nearest one in `keys`.

    >>> fault_words({"type": "int_parsing", "loc": ("k",), "input": "many", "msg": "…", "ctx": {}})
    "'many' is not an integer"
    >>> fault_words({"type": "extra_forbidden", "loc": ("sed",), "input": 1, "msg": "…"}, keys=["seed", "name"])
    'there is no such key. Did you mean "seed"?'
    """
    kind, ctx = fault["type"], fault.get("ctx") or {}
    if kind in ("extra_forbidden", "unexpected_keyword_argument"):
        return with_nearest("there is no such key", str(fault["loc"][-1]), keys)
    if kind in _WITH_VALUE:
        is_single = kind == "list_type" and isinstance(fault["input"], str | int | float)
        return f"{_value(fault)} {_WITH_VALUE[kind]}" + (f"; write [{_value(fault)}]" if is_single else "")
    if kind in _LIMITS:
        return f"{_value(fault)} {_LIMITS[kind](ctx)}"
    if kind in _CHOICES:
        given, expected = (ctx["tag"], "expected_tags") if kind == "union_tag_invalid" else (fault["input"], "expected")
        known = [name.strip().strip("'") for name in str(ctx[expected]).replace(" or ", ", ").split(",")]
        return with_nearest(f"{_shown(given)} is not one of {', '.join(known)}", str(given), known)
    message = str(fault["msg"])
    own = message.removeprefix("Value error, ")
    return _SENTENCES.get(kind) or (own if own != message else f"{message[:1].lower()}{message[1:]}")


def checked_yaml(path: Path, shape: type[_T], *, hint: str) -> _T:
    """Read a YAML file into a shape such as `list[Entry]`, or report all its faults in one error."""
    return validated(shape, _shared_document(read_text(path), path), source=str(path), hint=hint)


def validated(shape: type[_T], document: object, *, source: str, hint: str) -> _T:
    """Convert plain data to a shape, or report all its faults in one error."""
    from pydantic import TypeAdapter, ValidationError

    try:
        return TypeAdapter(shape).validate_python(document)
    except ValidationError as error:
        faults = [located_fault(fault, shape) for fault in error.errors()]
        raise faults_error(source, faults, hint=hint) from None


def located_fault(fault: Fault, shape: Any) -> str:
    """Describe a fault in a file of this shape, preceded by its location, with entries numbered from 1."""
    at = ", ".join(f"entry {part + 1}" if isinstance(part, int) else str(part) for part in fault["loc"])
    fields: Mapping[str, Any] = getattr(section_at(shape, fault["loc"])[1], "__pydantic_fields__", {})
    words = fault_words(fault, keys=[field.alias or name for name, field in fields.items()])
    return f"{at}: {words}" if at else words


def section_at(shape: Any, location: Sequence[int | str]) -> tuple[list[int | str], Any]:
    """Return the innermost model class that contains a location, and its path from the next outer model class."""
    way: list[int | str] = []
    found: tuple[list[int | str], Any] = way, shape
    for part in (*location, ""):
        while hasattr(shape, "__metadata__"):
            shape = shape.__origin__
        members = [one for one in get_args(shape) if one is not type(None)]
        while get_origin(shape) in (Union, UnionType) and len(members) == 1:
            shape = members[0]
            members = list(get_args(shape))
        fields: Mapping[str, Any] | None = getattr(shape, "__pydantic_fields__", None)
        if fields is not None:
            found, way = (way, shape), []
            shape = next((field.annotation for name, field in fields.items() if part == (field.alias or name)), None)
        elif get_origin(shape) in (list, dict):
            shape = members[-1]
        else:  # the location names a member of a union by its tag
            tagged = [(one, getattr(one, "__pydantic_fields__", {}).values()) for one in members]
            shape = next((one for one, own in tagged if any(part in get_args(f.annotation) for f in own)), None)
        way = [*way, part]
    return found


_WITH_VALUE: Final = {
    **dict.fromkeys(("int_type", "int_parsing", "int_from_float", "int_parsing_size"), "is not an integer"),
    **dict.fromkeys(("float_type", "float_parsing", "finite_number"), "is not a number"),
    **dict.fromkeys(("bool_type", "bool_parsing"), "is not true or false"),
    **dict.fromkeys(("string_type", "string_sub_type"), "is not text; quote it"),
    **dict.fromkeys(("list_type", "tuple_type"), "is not a list"),
    **dict.fromkeys(
        ("dict_type", "model_type", "model_attributes_type", "dataclass_type", "mapping_type"), "is not a mapping"
    ),
    "string_pattern_mismatch": "may contain only lowercase letters, digits, dots, dashes and underscores",
}
_LIMITS: Final[Mapping[str, Callable[[Mapping[str, Any]], str]]] = {
    "greater_than_equal": lambda ctx: f"is below {ctx['ge']}",
    "greater_than": lambda ctx: f"is not above {ctx['gt']}",
    "less_than_equal": lambda ctx: f"is above {_number(ctx['le'])}",
    "string_too_long": lambda ctx: f"has more than {ctx['max_length']} characters",
    "less_than": lambda ctx: f"is not below {_number(ctx['lt'])}",
}
_CHOICES: Final = frozenset({"literal_error", "enum", "union_tag_invalid"})
_SENTENCES: Final = {
    "missing": "this key is missing",
    "union_tag_not_found": "the key stage is missing",
    "string_too_short": "the text is empty",
    "too_short": "the list has too few entries",
    "too_long": "the list has too many entries",
    "none_required": "the value must be empty",
}


def _value(fault: Fault) -> str:
    """Return the faulty value for a message, unless it may be a secret."""
    return "the value" if _SECRET.intersection(fault["loc"]) else _shown(fault["input"])


_SECRET: Final = frozenset({"key", "extra", "system"})


def _shown(value: object) -> str:
    """Format a value as the user wrote it, on one line."""
    if value is None:
        return "nothing"
    return visible(shortened(str(value) if isinstance(value, bool | int | float) else repr(value)))


def _number(limit: object) -> str:
    return f"{limit:,}" if isinstance(limit, int) else str(limit)


_WORKSHOP_MARK: Final = "skillmix-workshop"
_WORKSHOP_NOTE: Final = "A skillmix command writes here what will take the place of the folder beside it.\n"
_LOCK: Final = "lock"
_BY_THE_SYSTEM: Final = (".DS_Store",)
"""Files that file managers create in any folder."""


@dataclass(frozen=True, slots=True)
class FolderKind:
    """A kind of folder that a command creates and may replace."""

    name: str
    is_marked: Callable[[Path], bool]
    """Returns whether a folder is of this kind, judging by its content."""
    files: tuple[str, ...] = ()
    """Patterns for all files of such a folder."""


def require_replaceable(folder: Path, kind: FolderKind) -> None:
    """Reject a folder that contains the current folder, is of another kind, or has a file not written by skillmix."""
    target = folder.resolve()
    if Path.cwd().resolve().is_relative_to(target):
        raise UserError(f"{folder} is the current folder or contains it.", hint="Choose another folder.")
    if not target.exists():
        return
    if not target.is_dir():
        raise UserError(f"{folder} is a file.", hint="Choose a folder.")
    if not any(target.iterdir()):
        return
    hint = "Nothing was changed. Choose another folder, or move this one."
    if not kind.is_marked(target):
        raise UserError(f"{folder} exists and is not {kind.name}.", hint=hint)
    known = (*kind.files, *_BY_THE_SYSTEM)
    inside = (
        path.relative_to(target).as_posix()
        for path in sorted(target.rglob("*"))
        if path.is_symlink() or not path.is_dir()
    )
    other = next((name for name in inside if not any(fnmatchcase(name, pattern) for pattern in known)), None)
    if other is not None:
        raise UserError(f"{folder} cannot be replaced: {other} in it is not part of {kind.name}.", hint=hint)


@contextmanager
def replacing(folder: Path, kind: FolderKind) -> Iterator[Path]:
    """Yield a path for a new folder, which replaces the old one if the block ends without an error.

    The new folder is made in a locked temporary folder next to the old one. If its process is killed, the next process
    that replaces the same folder removes it.
    """
    from filelock import FileLock  # imported here because the import is slow

    require_replaceable(folder, kind)
    target = folder.resolve()
    target.parent.mkdir(parents=True, exist_ok=True)
    _remove_left_overs(target)
    workshop = Path(mkdtemp(prefix=_prefix(target), dir=target.parent))
    lock = FileLock(workshop / _LOCK)
    try:
        with lock:
            # The mark is written under the lock, so a marked folder without a lock belongs to a killed process.
            (workshop / _WORKSHOP_MARK).write_text(_WORKSHOP_NOTE, encoding="utf-8")
            yield workshop / "new"
            require_replaceable(folder, kind)  # again, because writing the new folder may have taken hours
            if target.exists():
                target.rename(workshop / "old")
            (workshop / "new").rename(target)
    finally:
        _remove(workshop, target)


def _prefix(target: Path) -> str:
    return f".{target.name}.skillmix-"


def _remove(workshop: Path, target: Path) -> None:
    """Remove a temporary folder, after restoring an old folder that was not replaced."""
    old = workshop / "old"
    if old.exists() and not target.exists():
        old.rename(target)
    rmtree(workshop, ignore_errors=True)


def _remove_left_overs(target: Path) -> None:
    from filelock import FileLock, Timeout

    prefix = _prefix(target)
    for path in [path for path in target.parent.iterdir() if path.name.startswith(prefix)]:
        with suppress(OSError, ValueError, Timeout):
            if (path / _WORKSHOP_MARK).read_text(encoding="utf-8") == _WORKSHOP_NOTE:
                with FileLock(path / _LOCK, timeout=0):
                    _remove(path, target)


def write_whole(file: Path, content: str) -> None:
    """Replace a file atomically."""
    partial = file.with_name(file.name + ".partial")
    partial.write_text(content, encoding="utf-8")
    partial.replace(file)
