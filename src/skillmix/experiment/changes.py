"""Changes to an experiment from the command line: `--set budget.max_usd=5`, `--set steps.eval.k=[1,2]`."""

from collections.abc import Sequence

from skillmix.catalog.yaml import yaml_of
from skillmix.errors import UserError

_HINT = "Write a.b=c: keys of the experiment file, and a value in YAML. A step goes by its name or its number."


def changed(document: object, changes: Sequence[str]) -> object:
    """The document with every change made, in order; what is not named stays as it is."""
    for change in changes:
        path, equals, value = change.partition("=")
        if not equals or not path or not isinstance(document, dict):
            raise UserError(f"--set {change!r} is not a change.", hint=_HINT)
        document = _with(document, path.split("."), yaml_of(value, source=f"The value of --set {path}"), change)
    return document


def _with(document: object, path: Sequence[str], value: object, change: str) -> object:
    if not path:
        return value
    first, *rest = path
    if isinstance(document, list):
        place = _place_in(document, first, change)
        return [*document[:place], _with(document[place], rest, value, change), *document[place + 1 :]]
    if document is None:
        document = {}
    if not isinstance(document, dict):
        raise UserError(f"--set {change!r} reaches into {document!r}, which has no parts.", hint=_HINT)
    return {**document, first: _with(document.get(first), rest, value, change)}


def _place_in(items: list[object], name: str, change: str) -> int:
    for place, item in enumerate(items):
        if isinstance(item, dict) and item.get("name") == name:
            return place
    if name.isdecimal() and 1 <= int(name) <= len(items):
        return int(name) - 1
    raise UserError(f"--set {change!r}: nothing in the list is called {name!r}.", hint=_HINT)
