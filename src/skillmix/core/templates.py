"""Text templates with named slots: a missing or an unused slot is an error, and nothing else is special."""

import re
from collections.abc import Mapping

from skillmix.core.errors import UserError

_SLOT = re.compile(r"\{([a-z_][a-z0-9_]*)\}")


def slots_of(template: str) -> frozenset[str]:
    """The slot names of a template; braces around anything else are plain text.

    >>> sorted(slots_of("{topic} and {skills}, {not a slot} {}"))
    ['skills', 'topic']
    """
    return frozenset(_SLOT.findall(template))


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
    return _SLOT.sub(lambda slot: values[slot[1]], template)
