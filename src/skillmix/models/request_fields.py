"""Check what an experiment file adds to every request of a model: a system prompt and `extra` fields.

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
"""The extra field with a chat template's variables, named as in vLLM; the only one that a local model accepts."""
_TABLE: Final = shipped_table("request_fields")
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
_LOOKS_LIKE_A_KEY: Final = (
    "a value looks like a key, but the journal would store it; put the key into an environment variable and name the "
    "variable with key:"
)
_LONGEST_EXTRA: Final = 2000  # the maximum length of the extra fields as JSON, which is stored with every call


def system_fault(system: str) -> str | None:
    """Explain why a text cannot be a system prompt; None if it can."""
    if not system.strip():
        return "the text is empty; to send no system prompt, remove system"
    return _LOOKS_LIKE_A_KEY if _SECRET_VALUE.search(system) else None


def extra_faults(extra: Mapping[str, object]) -> Iterator[str]:
    """Yield the reasons why these fields cannot be sent with every request, without quoting their values."""
    own_settings, refused = _TABLE["own_settings"], _TABLE["refused"]
    for name in extra:
        if name in own_settings:
            yield f"{name} cannot be in extra; use the setting {own_settings[name]} of the same model"
        elif name in refused:
            yield f"{name} cannot be set: {refused[name]}"
        elif name == SEED and extra[name] not in (None, "off") and extra[name] is not False:  # off is false in YAML
            yield "seed can only be off, because each call has its own seed"
    names, texts = _names_and_texts(extra)
    for name in sorted(name for name in set(names) if _SECRET_NAME.search(name)):
        yield f"{name} looks like a secret, but the journal stores extra; for the key of a model, use key:"
    if any(_SECRET_VALUE.search(text) for text in texts):
        yield _LOOKS_LIKE_A_KEY
    try:
        length = len(extra_json(extra) or "")
    except ValueError:
        yield "a number is infinite or NaN"
    else:
        if length > _LONGEST_EXTRA:
            yield f"it has {length} characters as JSON, but at most {_LONGEST_EXTRA} are allowed"


def template_option_faults(extra: Mapping[str, object]) -> Iterator[str]:
    """Yield the reasons why a model in this process cannot use these fields; it accepts only template variables."""
    for name in extra:
        if name == SEED:
            yield "a model in this process always uses seeds, which make its replies reproducible; remove seed"
        elif name != TEMPLATE_OPTIONS:
            yield f"{name} works only with servers; a model in this process accepts only {TEMPLATE_OPTIONS}"
    options, refused = extra.get(TEMPLATE_OPTIONS, {}), _TABLE["template"]
    if not isinstance(options, dict):
        yield f"{TEMPLATE_OPTIONS} must be a mapping, such as {{enable_thinking: false}}"
    else:
        for name in sorted(options.keys() & refused.keys()):
            yield f"{TEMPLATE_OPTIONS}.{name} cannot be set: {refused[name]}"


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
    """Return the fields for the body of a request, without `seed: off`."""
    return {name: value for name, value in extra.items() if name != SEED}


def additions(system: str | None, extra: Mapping[str, object]) -> str:
    """Describe a system prompt and extra fields; return an empty string if there are none.

    >>> additions("Be brief.", {"reasoning_effort": "low", "seed": False})
    'system "Be brief.", reasoning_effort "low", no seed'
    """
    words = [] if system is None else [f"system {json.dumps(system, ensure_ascii=False)}"]
    words += [f"{name} {json.dumps(value, ensure_ascii=False)}" for name, value in sorted(without_seed(extra).items())]
    return ", ".join([*words, *(["no seed"] if SEED in extra else [])])
