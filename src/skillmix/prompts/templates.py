"""Text templates with named slots: a missing or an unused slot is an error, and nothing else is special."""

import re
from collections.abc import Mapping
from functools import lru_cache

from skillmix.errors import UserError

_SLOT = re.compile(r"\{([a-z_][a-z0-9_]*)\}")


@lru_cache(maxsize=256)
def slots_of(template: str) -> frozenset[str]:
    """The slot names of a template; braces around anything else are plain text.

    >>> sorted(slots_of("{topic} and {skills}, {not a slot} {}"))
    ['skills', 'topic']
    """
    return frozenset(_parts(template)[1::2])


def fill(template: str, values: Mapping[str, str]) -> str:
    """Put values into slots, in one pass, so that a value with braces in it stays as it is.

    >>> fill("On {topic}.", {"topic": "{skills}"})
    'On {skills}.'
    """
    slots = slots_of(template)
    if slots != values.keys():
        unfilled, unused = sorted(slots - values.keys()), sorted(values.keys() - slots)
        raise UserError(
            f"Template slots do not fit: unfilled {unfilled or 'none'}, unused {unused or 'none'}.",
            hint=f"The template has {sorted(slots)}; values were given for {sorted(values)}.",
        )
    return fill_from(template, values)


def fill_from(template: str, values: Mapping[str, str]) -> str:
    """Put values into slots, from a table that may have more of them."""
    parts = list(_parts(template))
    parts[1::2] = [values[slot] for slot in parts[1::2]]
    return "".join(parts)


@lru_cache(maxsize=256)
def _parts(template: str) -> tuple[str, ...]:
    """Text and slot names in turn; a large data set fills the same template a million times."""
    return tuple(_SLOT.split(template))
