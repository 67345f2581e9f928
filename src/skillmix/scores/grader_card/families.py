"""Families of models, by the names of their specs."""

import re
from typing import Final

_WORDS: Final = re.compile(r"[a-z]+")
_NO_FAMILY: Final = ("meta", "model", "checkpoint", "step")
"""Words that begin the names of models and folders and name no family."""


def family_of(spec: str | None) -> str | None:
    """The family of a model: the first word of its name; None if the spec names no model.

    >>> family_of("openai:gpt-4o"), family_of("local:models/Mistral-7B-v0.2"), family_of("bundled:smollm2-135m")
    ('gpt', 'mistral', 'smollm')
    >>> family_of("openai:Meta-Llama-3-8B@http://localhost:8000/v1"), family_of("rules:"), family_of(None)
    ('llama', None, None)
    >>> family_of("local:runs/tune/m12/model"), family_of("scripted:grader")
    (None, None)
    """
    if (spec or "").startswith("scripted:"):
        return None
    name = (spec or "").removeprefix("rules:").partition(":")[2].partition("@")[0].partition("?")[0]
    last = name.rstrip("/").rpartition("/")[2].lower()
    words = [word for word in _WORDS.findall(last) if word not in _NO_FAMILY]
    return words[0] if words else None
