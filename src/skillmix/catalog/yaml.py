"""Read YAML from outside: plain data only, no repeated keys, and errors with file and line."""

from collections.abc import Hashable
from functools import lru_cache
from itertools import islice
from pathlib import Path
from typing import Any, Final

import yaml

from skillmix.errors import UserError
from skillmix.render import name_hint

_Loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


class _StrictLoader(_Loader):  # type: ignore[misc]  # the C loader when libyaml is there, else the Python one
    """A safe loader that refuses a repeated key; plain YAML would silently keep the last value."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        """Build a mapping after checking that its keys differ."""
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
"""The most bytes of files that people write, and of lists of texts or combinations."""
_MOST_NAMES: Final = 500
"""Files of a folder that are looked at for a suggestion."""


def _names_beside(path: Path) -> list[str]:
    """The names of files in the folder of a path that have the same kind of suffix."""
    try:
        beside = islice(path.parent.iterdir(), _MOST_NAMES)
        return sorted(other.name for other in beside if _kind(other) == _kind(path) and other.is_file())
    except OSError:
        return []


def _kind(path: Path) -> str:
    suffix = path.suffix.casefold()
    return ".yaml" if suffix == ".yml" else suffix


def read_text(path: Path, *, most: int = SMALL) -> str:
    """Read a UTF-8 text file; a device, and a file with more than `most` bytes, are errors."""
    try:
        if path.exists() and not path.is_file() and not path.is_dir():
            raise UserError(f"{path} is not a regular file.", hint="Write the text into a file.")
        if path.stat().st_size > most:
            raise UserError(f"{path} has more than {most >> 20:,} MiB.", hint="Check the path.")
        return path.read_bytes().decode("utf-8-sig").replace("\r\n", "\n").replace("\r", "\n")
    except FileNotFoundError:
        hint = name_hint(path.name, _names_beside(path), otherwise="Check the path.")
        raise UserError(f"There is no file {path}.", hint=hint) from None
    except UnicodeDecodeError as error:
        raise UserError(
            f"{path} is not UTF-8 text ({error.reason} at byte {error.start}).", hint="Save it as UTF-8."
        ) from None
    except OSError as error:
        raise UserError(
            f"{path} cannot be read: {error.strerror}.", hint="Check the path and its permissions."
        ) from None


def read_yaml(path: Path) -> object:
    """Read the plain data of a YAML file; an empty file is an error."""
    return _not_empty(yaml_of(read_text(path), source=str(path)), path)


def read_shared_yaml(path: Path) -> object:
    """Read a YAML file as `read_yaml` does, but parse the same text only once; the caller must not change the data.

    A command loads its catalog and its prompts several times, and parsing takes nearly all of that time.
    """
    return _not_empty(_parsed(read_text(path), str(path)), path)


@lru_cache(maxsize=32)
def _parsed(text: str, source: str) -> object:
    return yaml_of(text, source=source)


def _not_empty(document: object, path: Path) -> object:
    if document is None:
        raise UserError(f"{path} is empty.", hint="Write what belongs there; files that ship with skillmix show it.")
    return document


def yaml_of(text: str, *, source: str) -> object:
    """Parse YAML text into plain data."""
    try:
        _refuse_bombs(text)
        document: object = yaml.load(text, Loader=_StrictLoader)
    except yaml.YAMLError as error:
        raise UserError(
            f"{source} is not valid YAML: {_one_line(error)}.", hint="Check quotes, colons and indentation."
        ) from None
    except (ValueError, LookupError, AttributeError, TypeError) as error:
        # PyYAML's scalar constructors raise all of these, for `!!int ""` and `2024-13-45` among others.
        raise UserError(f"{source} holds a value that cannot be read: {error}.", hint="Quote the value.") from None
    return document


def _refuse_bombs(text: str) -> None:
    """Refuse YAML that would exhaust memory when loaded, by walking the parser's events first.

    The C loader recurses, and crashes where Python would raise. An alias stands for a whole value, so a few lines of
    aliases to aliases can expand to more values than fit in memory.
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
        size += _size_of(event, sizes)
        if len(open_nodes) > _DEEPEST:
            raise ValueError(f"it is nested more than {_DEEPEST} deep")
        if size > _MOST_VALUES:
            raise ValueError(f"it expands to more than {_MOST_VALUES} values")


def _size_of(event: yaml.Event, sizes: dict[str | None, int]) -> int:
    """The number of values that an event adds; an alias adds all values of its anchor."""
    if isinstance(event, yaml.AliasEvent):
        if event.anchor not in sizes:
            raise ValueError(f"the alias *{event.anchor} has no complete anchor before it")
        return sizes[event.anchor]
    if isinstance(event, yaml.ScalarEvent) and event.anchor:
        sizes[event.anchor] = 1
    return isinstance(event, yaml.ScalarEvent | yaml.CollectionStartEvent)


_DEEPEST: Final = 50
_MOST_VALUES: Final = 1_000_000


def _one_line(error: yaml.YAMLError) -> str:
    mark = getattr(error, "problem_mark", None)
    problem = getattr(error, "problem", None) or str(error).splitlines()[0]
    return f"line {mark.line + 1}: {problem}" if mark else str(problem)
