"""Reading YAML that strangers wrote: plain data only, no repeated keys, faults with file and line."""

from collections.abc import Hashable
from pathlib import Path
from typing import Any, Final

import yaml

from skillmix.core.errors import UserError

_Loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


class _StrictLoader(_Loader):  # type: ignore[misc]  # the C loader when libyaml is there, else the Python one
    """A safe loader that refuses a key given twice, which YAML would silently let the last one win."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        """Build a mapping once its keys are known to differ."""
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


def read_text(path: Path) -> str:
    """A UTF-8 text file."""
    try:
        return path.read_text(encoding="utf-8-sig")
    except FileNotFoundError:
        raise UserError(f"There is no file {path}.", hint="Check the path.") from None
    except UnicodeDecodeError as error:
        raise UserError(
            f"{path} is not UTF-8 text ({error.reason} at byte {error.start}).", hint="Save it as UTF-8."
        ) from None
    except OSError as error:
        raise UserError(
            f"{path} cannot be read: {error.strerror}.", hint="Check the path and its permissions."
        ) from None


def read_yaml(path: Path) -> object:
    """The plain data of a YAML file; an empty one is an error."""
    document = yaml_of(read_text(path), source=str(path))
    if document is None:
        raise UserError(f"{path} is empty.", hint="The shipped catalogues show what belongs there.")
    return document


def yaml_of(text: str, *, source: str) -> object:
    """The plain data of YAML text."""
    try:
        _refuse_depth(text)
        document: object = yaml.load(text, Loader=_StrictLoader)
    except yaml.YAMLError as error:
        raise UserError(
            f"{source} is not valid YAML: {_one_line(error)}.", hint="Check quotes, colons and indentation."
        ) from None
    except (ValueError, LookupError, AttributeError, TypeError) as error:
        # PyYAML's constructors of tagged scalars fail in all these ways, `!!int ""` and `2024-13-45` among them.
        raise UserError(f"{source} holds a value that cannot be read: {error}.", hint="Quote the value.") from None
    return document


def _refuse_depth(text: str) -> None:
    """The C loader recurses, and dies where Python would raise; its parser does not."""
    depth = 0
    for event in yaml.parse(text, Loader=_Loader):
        depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        if depth > _DEEPEST:
            raise ValueError(f"it is nested more than {_DEEPEST} deep")


_DEEPEST: Final = 50


def _one_line(error: yaml.YAMLError) -> str:
    mark = getattr(error, "problem_mark", None)
    problem = getattr(error, "problem", None) or str(error).splitlines()[0]
    return f"line {mark.line + 1}: {problem}" if mark else str(problem)
