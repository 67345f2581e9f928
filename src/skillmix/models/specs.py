"""Model specs: `provider:name`, where a compatible server may be named behind an `@`."""

import re
from dataclasses import dataclass
from typing import Final
from urllib.parse import SplitResult, urlsplit

from skillmix.errors import UserError

PROVIDERS: Final = {
    "openai": "any OpenAI-compatible endpoint: openai:gpt-4o, openai:my-model@http://localhost:8000/v1",
    "anthropic": "Anthropic messages: anthropic:claude-model-name",
    "local": "transformers in process: local:PATH or local:PATH+ADAPTER",
    "bundled": "a small model from a package: bundled:smollm2-135m or bundled:smollm2-135m+ADAPTER",
    "scripted": "a deterministic fake: scripted:student?skill=0.8 or scripted:grader?noise=0.1",
    "rules": "code that checks skills, graders only: rules: alone, or rules:SPEC to ask a model about the rest",
}

SERVED: Final = ("openai", "anthropic")
"""Providers whose models are asked over the network."""

IN_PROCESS: Final = ("local", "bundled")
"""Providers whose models take this machine's memory."""


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """Where a model is found."""

    provider: str
    name: str
    address: str | None = None

    def __str__(self) -> str:
        return f"{self.provider}:{self.name}" + (f"@{self.address}" if self.address else "")


def parse_spec(text: str) -> ModelSpec:
    """Read a spec.

    >>> parse_spec("openai:my-model@http://localhost:8000/v1").address
    'http://localhost:8000/v1'
    """
    provider, colon, rest = text.partition(":")
    if not colon or provider not in PROVIDERS:
        raise UserError(f"{text!r} is not a model.", hint=f"Specs start with one of: {', '.join(PROVIDERS)}.")
    name, _, address = rest.partition("@") if provider in SERVED else (rest, "", "")
    if "@" in rest and provider in SERVED:
        _check_address(address)
    if not name and provider != "rules":
        raise UserError(f"{text!r} names no model.", hint=PROVIDERS[provider])
    if provider == "rules" and name:
        asked = parse_spec(name)
        if asked.provider == "rules":
            raise UserError(f"{text!r} names rules twice.", hint=PROVIDERS["rules"])
    return ModelSpec(provider, name, address.rstrip("/") or None)


_HOST: Final = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?\.?|[0-9A-Fa-f:.]+(?:%[A-Za-z0-9._-]+)?")
_PATH: Final = re.compile(r"[A-Za-z0-9/._~:%+-]*")
_ADDRESS_HINT: Final = "An address looks like https://models.example/v1 or http://localhost:8000/v1."


def _check_address(address: str) -> None:
    """Refuse an address that no request can be sent to, before anything is sent."""
    fault = _address_fault(address)
    if fault is not None:
        raise UserError(fault, hint=_ADDRESS_HINT)


def _address_fault(address: str) -> str | None:
    try:
        parts = urlsplit(address)
        port = parts.port
    except ValueError as error:
        return f"The address of a model cannot be read: {error}."
    if parts.username is not None or parts.password is not None or "@" in address:
        # The words before the "@" may be a password, so the message does not repeat them.
        return "The address of a model holds a user name or a password; name the variable of a key with `key:` instead."
    if parts.scheme not in ("http", "https"):
        return f"{address!r} is no address: it does not start with http:// or https://."
    return _host_fault(address, parts, port)


def _host_fault(address: str, parts: SplitResult, port: int | None) -> str | None:
    host = parts.hostname or ""
    if not _HOST.fullmatch(host) or ".." in host or any(len(label) > 63 for label in host.split(".")):
        return f"{address!r} is no address: {host!r} is not the name of a host."
    if port == 0 or parts.netloc.endswith(":"):
        return f"{address!r} is no address: its port is not a port."
    if not _PATH.fullmatch(parts.path) or parts.query or parts.fragment or address[-1] in "?#":
        return f"{address!r} is no address: it ends with more than a path."
    return None


def asked_model(text: str) -> str | None:
    """The model that a grader's spec asks: none for `rules:`, the one named there for `rules:SPEC`.

    >>> asked_model("rules:"), asked_model("rules:openai:m"), asked_model("openai:m")
    (None, 'openai:m', 'openai:m')
    """
    return (text.removeprefix("rules:") or None) if uses_code(text) else text


def uses_code(text: str) -> bool:
    """Whether a grader's spec is `rules:` or `rules:SPEC`.

    >>> uses_code("rules:"), uses_code("rules:openai:m"), uses_code("openai:m")
    (True, True, False)
    """
    return text.startswith("rules:")
