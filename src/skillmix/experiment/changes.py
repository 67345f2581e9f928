"""Changes to an experiment file on the command line: `--set budget.max_usd=5`."""

from collections.abc import Sequence
from typing import Final

from skillmix.catalog.yaml import yaml_of
from skillmix.errors import UserError
from skillmix.render.nearest import name_hint

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
