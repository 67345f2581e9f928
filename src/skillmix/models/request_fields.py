"""Checks of an experiment file's additions to every request of a model: a system prompt and `extra` fields.

Both are stored in the journal and in the run's copy of the experiment, so neither may contain a key.
"""

import json
import re
from collections.abc import Iterator, Mapping
from typing import Final

from skillmix.calls import extra_json
from skillmix.models.specs import shipped_table

SEED: Final = "seed"
TEMPLATE_OPTIONS: Final = "chat_template_kwargs"
"""The only extra field for a model in this process: variables of its chat template; vLLM and SGLang use this name."""

_TABLE: Final = shipped_table("request_fields")
_OWN_SETTINGS: Final = _TABLE["own_settings"]
"""Fields that another setting of the same model determines, with that setting's name."""
_REFUSED: Final = _TABLE["refused"]
_TEMPLATE_REFUSED: Final = _TABLE["template"]
"""Fields and chat template variables that cannot be set, each with the reason."""
_SECRET_NAME: Final = re.compile(
    r"api[_-]?key|authori[sz]ation|bearer|secret|passw(?:or)?d|credential|(?:private|access)[_-]?key"
    r"|(?:^|[_-])(?:token|key|auth|pwd|cookies?)$",
    re.IGNORECASE,
)
_SECRET_VALUE: Final = re.compile(
    r"\b[sp]k-(?=[\w-]*\d)[\w-]{12,}|\b(?:gsk_|xai-|nvapi-|github_pat_|sess-)[\w-]{12,}|-----BEGIN [A-Z ]*PRIVATE KEY"
    r"|://[^\s/@]+:[^\s/@]+@|[?&](?:api_?key|key|token|access_token)=|\bBearer\s+\S{12,}|\bhf_\w{16,}|\bgh[opsu]_\w{16,}|\bAKIA[A-Z0-9]{12,}|\bAIza[\w-]{20,}"
    r"|\beyJ[\w-]{16,}\."
)
_LONGEST_EXTRA: Final = 2000
"""The most characters in the extra fields, which are stored with every call."""


def system_fault(system: str) -> str | None:
    """Explain why a text cannot be a system prompt; None if it can."""
    if not system.strip():
        return "the text is empty; remove system to send none"
    if _SECRET_VALUE.search(system):
        return _LOOKS_LIKE_A_KEY
    return None


_LOOKS_LIKE_A_KEY: Final = (
    "a value looks like a key, and it would be stored in the journal; name the environment variable of a key with key:"
)


def extra_faults(extra: Mapping[str, object]) -> Iterator[str]:
    """Explain why these fields cannot be sent with every request; no explanation contains a value."""
    for name in extra:
        if name in _OWN_SETTINGS:
            yield f"{name} belongs to the setting {_OWN_SETTINGS[name]} of the same model"
        elif name in _REFUSED:
            yield f"{name} cannot be set: {_REFUSED[name]}"
        elif name == SEED and extra[name] not in (None, "off") and extra[name] is not False:  # YAML's `off` is false
            yield "seed can only be off, which omits each call's own seed"
    names, texts = _names_and_texts(extra)
    for name in sorted(name for name in set(names) if _SECRET_NAME.search(name)):
        yield f"{name} is a name for a secret, and extra is stored in the journal; use key: for a model's key"
    if any(_SECRET_VALUE.search(text) for text in texts):
        yield _LOOKS_LIKE_A_KEY
    try:
        length = len(extra_json(extra) or "")
    except ValueError:
        yield "a number is infinite or not a number"
    else:
        if length > _LONGEST_EXTRA:
            yield f"it has {length} characters as JSON, and every call stores it; at most {_LONGEST_EXTRA} are allowed"


def template_option_faults(extra: Mapping[str, object]) -> Iterator[str]:
    """Explain why a model in this process cannot use these fields, which can affect only its chat template."""
    for name in extra:
        if name == SEED:
            yield "a model in this process needs its seeds, which make its replies repeatable; remove seed"
        elif name != TEMPLATE_OPTIONS:
            yield f"{name} is for a server; a model in this process takes only {TEMPLATE_OPTIONS}"
    options = extra.get(TEMPLATE_OPTIONS, {})
    if not isinstance(options, dict):
        yield f"{TEMPLATE_OPTIONS} must have names and values, such as {{enable_thinking: false}}"
    else:
        for name in sorted(options.keys() & _TEMPLATE_REFUSED.keys()):
            yield f"{TEMPLATE_OPTIONS}.{name} cannot be set: {_TEMPLATE_REFUSED[name]}"


def _names_and_texts(value: object) -> tuple[list[str], list[str]]:
    """Return all names and all texts inside a JSON value."""
    names: list[str] = []
    texts: list[str] = []
    waiting = [value]
    while waiting:
        part = waiting.pop()
        if isinstance(part, str):
            texts.append(part)
        elif isinstance(part, Mapping):
            names += map(str, part)
            waiting += part.values()
        elif isinstance(part, list):
            waiting += part
    return names, texts


def without_seed(extra: Mapping[str, object]) -> dict[str, object]:
    """Return the fields for the body of a request: all except `seed: off`, which omits the seed."""
    return {name: value for name, value in extra.items() if name != SEED}


def additions(system: str | None, extra: Mapping[str, object]) -> str:
    """Describe a system prompt and extra fields in words; return an empty text if there are none.

    >>> additions("Be brief.", {"reasoning_effort": "low", "seed": False})
    'system "Be brief.", reasoning_effort "low", no seed'
    """
    words = [] if system is None else [f"system {json.dumps(system, ensure_ascii=False)}"]
    words += [f"{name} {json.dumps(value, ensure_ascii=False)}" for name, value in sorted(without_seed(extra).items())]
    return ", ".join([*words, *(["no seed"] if SEED in extra else [])])
