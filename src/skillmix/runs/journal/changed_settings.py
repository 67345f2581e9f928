"""What a run holds with other settings than those it now gets: which of them changed, from what, and to what."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

from skillmix.calls import CallKey, GenerateKey, Request
from skillmix.errors import UserError
from skillmix.render import shortened
from skillmix.runs.journal.rows import json_of_row

_NOT_SET: Final = "not set"
_LONGEST_SHOWN: Final = 80
"""Characters; an error does not show a longer value of experiment.yaml."""
_CONTENTS: Final = {"catalog_hash": ("catalog", "content of the catalogue"), "prompts_hash": ("prompts", "prompts")}
"""Hashes of experiment.yaml: the key that names what is hashed, and what to call a changed content."""


def changed_settings(request: Request, stored: tuple[str, ...]) -> UserError:
    """The error for a request whose key the journal holds with another model, messages, decoding or seed."""
    model, messages, decoding, seed = stored
    before = {
        "model": model,
        "messages": json_of_row(messages, f"the messages of {request.key}"),
        "decoding": json_of_row(decoding, f"the decoding of {request.key}"),
        "seed": seed,
    }
    changed = list(_changes(request, before)) or ["request"]
    role, name = _asked(request.key)
    return UserError(
        f"The run has calls of the {role} {name!r} with another {' and another '.join(changed)}, such as "
        f"{request.key}.",
        hint=ways_on(role),
    )


def changed_keys(before: Mapping[str, object], now: Mapping[str, object], keys: Iterable[str]) -> list[str]:
    """The keys of experiment.yaml that changed, each with its old and its new value if both are short.

    >>> changed_keys({"seed": 0, "catalog_hash": "1a"}, {"seed": 2, "catalog_hash": "2b"}, ["seed", "catalog_hash"])
    ['seed (0 → 2)', 'content of the catalogue']
    """
    changed = [key for key in keys if before.get(key) != now.get(key)]
    return [_key_change(key, before.get(key), now.get(key)) for key in changed if _named_by(key) not in changed]


def _named_by(key: str) -> str | None:
    return _CONTENTS[key][0] if key in _CONTENTS else None


def _key_change(key: str, before: object, now: object) -> str:
    if key in _CONTENTS:
        return _CONTENTS[key][1]
    old, new = (_NOT_SET if value is None else str(value) for value in (before, now))
    return f"{key} ({old} → {new})" if max(len(old), len(new)) <= _LONGEST_SHOWN else key


def ways_on(role: str) -> str:
    """How a user may go on after a setting of a student or a grader was changed in the middle of a run."""
    return (
        f"To go on with this run, set it back, or add a {role} of another name with the new settings. For a run of its "
        "own, choose another name of the run: `name` of the experiment, or --run where a command has it. To start "
        "over, delete the folder of the run first: its replies are lost."
    )


def _asked(key: CallKey) -> tuple[str, str]:
    return ("student", key.student) if isinstance(key, GenerateKey) else ("grader", key.grader)


def _changes(request: Request, before: Mapping[str, Any]) -> Iterator[str]:
    """The settings that changed, each with its old and its new value where both are short and no secret."""
    now = request.settings()
    if now["model"] != before["model"]:
        yield f"model ({before['model']} → {now['model']})"
    if now["messages"] != before["messages"]:
        yield "system text" if _only_system_changed(request, before["messages"]) else "prompt"
    if now["decoding"] != before["decoding"]:
        yield from _decoding_changes(request.decoding.settings(), before["decoding"])
    if now["seed"] != before["seed"]:
        yield f"seed ({_shown(before['seed'])} → {_shown(now['seed'])})"


def _only_system_changed(request: Request, before: object) -> bool:
    hashes = [message.content_hash for message in request.messages]
    prompts = hashes[1:] if request.messages[0].role == "system" else hashes
    return isinstance(before, list) and prompts in (before, before[1:])


def _decoding_changes(now: Mapping[str, object], before: object) -> Iterator[str]:
    if not isinstance(before, Mapping):
        yield "decoding"
        return
    for name in [*now, *(name for name in before if name not in now)]:
        if now.get(name) != before.get(name):
            # The values of extra fields may be secret.
            shown = "" if name == "extra" else f" ({_shown(before.get(name))} → {_shown(now.get(name))})"
            yield f"{name}{shown}"


def _shown(value: object) -> str:
    return _NOT_SET if value is None else shortened(str(value))
