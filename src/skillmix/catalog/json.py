"""Read JSON from outside; whatever is wrong with it, the user gets a one-line error and a hint."""

import json
from math import isfinite
from typing import Any

from skillmix.errors import UserError


def parsed_json(content: bytes | str, *, source: str, hint: str) -> object:
    """Parse JSON bytes, with or without a byte order mark."""
    try:
        text = content.decode("utf-8-sig") if isinstance(content, bytes) else content.removeprefix("\ufeff")
        value: object = json.loads(text, parse_constant=_number, parse_float=_number)
    except UnicodeDecodeError:
        raise UserError(f"{source} is not UTF-8.", hint="Write it again in UTF-8.") from None
    except RecursionError:
        raise UserError(f"{source} is nested too deeply.", hint=hint) from None
    except ValueError:
        raise UserError(f"{source} is not JSON.", hint=hint) from None
    return value


def _number(written: str) -> float:
    """Refuse what Python accepts although JSON does not, or what overflows: NaN, Infinity, 1e999."""
    number = float(written)
    if not isfinite(number):
        raise ValueError(f"{written} is not a number")
    return number


def json_object(content: bytes | str, *, source: str, hint: str) -> dict[str, Any]:
    """Parse JSON bytes that must hold an object.

    >>> json_object(b'{"a": 1}', source="a file", hint="Correct it.")
    {'a': 1}
    """
    value = parsed_json(content, source=source, hint=hint)
    if not isinstance(value, dict):
        raise UserError(f"{source} is not a JSON object.", hint=hint)
    return value


def is_encodable(text: str) -> bool:
    """Whether a text can be written as UTF-8; JSON can spell lone surrogates, which UTF-8 cannot.

    >>> is_encodable("day"), is_encodable(chr(0xD800))
    (True, False)
    """
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
