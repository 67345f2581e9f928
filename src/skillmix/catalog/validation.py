"""Word the faults that pydantic finds in files that people write."""

from collections.abc import Callable, Mapping, Sequence
from types import UnionType
from typing import Any, Final, Union, get_args, get_origin

from skillmix.errors import visible
from skillmix.render import did_you_mean, shortened

Fault = Mapping[str, Any]
"""One entry of `ValidationError.errors()`: its type, its location, the value and what the type adds."""


def fault_words(fault: Fault, *, keys: Sequence[str] = ()) -> str:
    """A fault in plain words, without its location; an unknown key gets the nearest of the known `keys`.

    >>> fault_words({"type": "int_parsing", "loc": ("k",), "input": "many", "msg": "…", "ctx": {}})
    "'many' is not a whole number"
    >>> fault_words({"type": "extra_forbidden", "loc": ("sed",), "input": 1, "msg": "…"}, keys=["seed", "name"])
    'there is no such key. Did you mean "seed"?'
    """
    kind, ctx = fault["type"], fault.get("ctx") or {}
    if kind == "extra_forbidden":
        return f"there is no such key. {did_you_mean(str(fault['loc'][-1]), keys)}".strip().removesuffix(".")
    if kind in _WITH_VALUE:
        return f"{_value(fault)} {_WITH_VALUE[kind]}"
    if kind in _LIMITS:
        return f"{_value(fault)} {_LIMITS[kind](ctx)}"
    if kind in _CHOICES:
        return _choice_words(kind, fault, ctx)
    return _SENTENCES.get(kind) or _own_words(str(fault["msg"]))


def known_keys(shape: Any, location: Sequence[int | str]) -> list[str]:
    """The keys beside the last part of a location, in the file of a shape such as `list[Entry]`; none if unclear."""
    for part in location[:-1]:
        shape = _shape_inside(shape, part)
    fields: Mapping[str, Any] = getattr(_without_wrappers(shape), "model_fields", {})
    return [field.alias or name for name, field in fields.items()]


def _shape_inside(shape: Any, part: int | str) -> Any:
    """The shape of an entry of a list, of a value of a table, or of a field."""
    shape = _without_wrappers(shape)
    if get_origin(shape) in (list, dict):
        return get_args(shape)[-1]
    fields: Mapping[str, Any] = getattr(shape, "model_fields", {})
    return next((field.annotation for name, field in fields.items() if part in (name, field.alias)), None)


def _without_wrappers(shape: Any) -> Any:
    """The shape inside `Annotated[…]` and `… | None`."""
    if hasattr(shape, "__metadata__"):
        return _without_wrappers(shape.__origin__)
    if get_origin(shape) in (Union, UnionType):
        return next((_without_wrappers(one) for one in get_args(shape) if one is not type(None)), None)
    return shape


_WITH_VALUE: Final = {
    **dict.fromkeys(("int_type", "int_parsing", "int_from_float", "int_parsing_size"), "is not a whole number"),
    **dict.fromkeys(("float_type", "float_parsing", "finite_number"), "is not a number"),
    **dict.fromkeys(("bool_type", "bool_parsing"), "is not true or false"),
    **dict.fromkeys(("string_type", "string_sub_type"), "is not text; quote it"),
    **dict.fromkeys(("list_type", "tuple_type"), "is not a list"),
    **dict.fromkeys(
        ("dict_type", "model_type", "model_attributes_type", "dataclass_type", "mapping_type"), "has no keys and values"
    ),
    "string_pattern_mismatch": "may have only small letters, digits, dots, dashes and underscores",
}
_LIMITS: Final[Mapping[str, Callable[[Mapping[str, Any]], str]]] = {
    "greater_than_equal": lambda ctx: f"is below {ctx['ge']}",
    "greater_than": lambda ctx: f"is not above {ctx['gt']}",
    "less_than_equal": lambda ctx: f"is above {_number(ctx['le'])}",
    "string_too_long": lambda ctx: f"has more than {ctx['max_length']} letters",
    "less_than": lambda ctx: f"is not below {_number(ctx['lt'])}",
}
_CHOICES: Final = frozenset({"literal_error", "enum", "union_tag_invalid"})
_SENTENCES: Final = {
    "missing": "this key is missing",
    "union_tag_not_found": "the key stage is missing",
    "string_too_short": "the text is empty",
    "too_short": "the list has too few entries",
    "too_long": "the list has too many entries",
    "none_required": "no value may be given here",
}


def _choice_words(kind: str, fault: Fault, ctx: Mapping[str, Any]) -> str:
    given = ctx["tag"] if kind == "union_tag_invalid" else fault["input"]
    known = _names(str(ctx["expected_tags" if kind == "union_tag_invalid" else "expected"]))
    question = did_you_mean(str(given), known)
    words = f"{_shown(given)} is not one of {', '.join(known)}"
    return f"{words}. {question}" if question else words


def _names(expected: str) -> list[str]:
    """The names in pydantic's list of what it expects, such as "'a', 'b' or 'c'"."""
    return [name.strip().strip("'") for name in expected.replace(" or ", ", ").split(",")]


def _own_words(message: str) -> str:
    """A message of our own checks as it is; any other with a small first letter."""
    own = message.removeprefix("Value error, ")
    return own if own != message else f"{message[:1].lower()}{message[1:]}"


def _value(fault: Fault) -> str:
    """The faulty value; that of a key that may hold a secret is not repeated."""
    return "the value" if _SECRET.intersection(fault["loc"]) else _shown(fault["input"])


_SECRET: Final = frozenset({"key", "extra", "system"})


def _shown(value: object) -> str:
    """A value as the user wrote it, on one short line."""
    if value is None:
        return "nothing"
    return visible(shortened(str(value) if isinstance(value, bool | int | float) else repr(value)))


def _number(limit: object) -> str:
    return f"{limit:,}" if isinstance(limit, int) else str(limit)
