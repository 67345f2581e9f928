"""Write the JSON in a grader's reply as Markdown tables, so that the rules for tables hold for it too."""

import json
import re
from collections.abc import Iterator
from typing import Final

from skillmix.catalog.names import fold_name
from skillmix.grading.tables import names_labels, names_points

_START: Final = re.compile(r"\{(?=\s*+\")|\[(?=\s*+\{)")
_MOST_ATTEMPTS: Final = 40
"""Brackets at which JSON may begin; a hostile reply has thousands that never close."""
_NAMES: Final = ("name", "label", "title", "id")
_LABEL: Final = "Criterion"
_BETWEEN_WORDS: Final = re.compile(r"_|(?<=[a-z])(?=[A-Z])")
_NO_CELL: Final = re.compile(r"[\s|│┃｜∣║<>`\\]+")
"""What would end a cell or a row: an explanation may quote the student, who must not move the points."""


class _Object(list[tuple[str, object]]):
    """An object of JSON; a name may occur twice."""


_DECODER: Final = json.JSONDecoder(object_pairs_hook=_Object)


def with_json_as_tables(reply: str) -> str:
    """A reply with tables in the place of each object or list that is JSON; the rest stays.

    >>> print(with_json_as_tables('{"metaphor": 1, "on_topic": false}').strip())
    | Criterion | Points Earned |
    |---|---|
    | metaphor | 1 |
    | on topic | 0 |
    """
    if '"' not in reply or "{" not in reply:
        return reply
    parts: list[str] = []
    done = position = 0
    for _ in range(_MOST_ATTEMPTS):
        start = _START.search(reply, position)
        if start is None:
            break
        try:
            value, position = _DECODER.raw_decode(reply, start.start())
        except (ValueError, RecursionError):
            position = start.start() + 1
            continue
        parts += (reply[done : start.start()], "\n\n", *_tables(value), "\n")
        done = position
    return "".join((*parts, reply[done:]))


def _tables(value: object) -> Iterator[str]:
    """A value as tables: objects that hold points are rows, and an object of plain values is a table of two columns."""
    if isinstance(value, _Object) and not _is_row(value):
        plain = [(name, item) for name, item in value if not isinstance(item, list)]
        yield from _table([_Object([(_LABEL, _words(name)), ("Points Earned", item)]) for name, item in plain])
        rows = [(name, item) for name, item in value if isinstance(item, _Object) and _is_row(item)]
        yield from _table([_Object([(_LABEL, _words(name)), *item]) for name, item in rows])
        deeper = [item for _, item in value if isinstance(item, list) and not _is_row(item)]
    else:
        items = [value] if isinstance(value, _Object) else value if isinstance(value, list) else []
        yield from _table([item for item in items if isinstance(item, _Object) and _is_row(item)])
        deeper = [item for item in items if isinstance(item, list) and not _is_row(item)]
    for item in deeper:
        yield from _tables(item)


def _is_row(value: object) -> bool:
    """Whether a value is an object with a field for its points."""
    fields = value if isinstance(value, _Object) else ()
    return any(names_points(fold_name(_words(name))) for name, item in fields if not isinstance(item, list))


def _table(rows: list[_Object]) -> Iterator[str]:
    names = list(dict.fromkeys(name for row in rows for name, _ in row))
    if not names:
        return
    headers = [_words(name) for name in names]
    if not any(names_labels(fold_name(header)) for header in headers):
        headers = [_LABEL if header.casefold() in _NAMES else header for header in headers]
    yield from (_row(headers), _row(["---"] * len(names)).replace(" ", ""))
    # A name with two values has a cell that is no value.
    yield from (_row([" and ".join(_cell(item) for own, item in row if own == name) for name in names]) for row in rows)
    yield "\n"


def _row(cells: list[str]) -> str:
    return f"| {' | '.join(cells)} |\n"


def _words(name: str) -> str:
    return _NO_CELL.sub(" ", _BETWEEN_WORDS.sub(" ", name)).strip()


def _cell(item: object) -> str:
    if item is None or isinstance(item, list):
        return ""
    return str(int(item)) if isinstance(item, bool) else _NO_CELL.sub(" ", str(item)).strip()
