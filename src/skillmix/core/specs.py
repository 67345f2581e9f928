"""Model specs: `provider:name`, where a compatible server may be named behind an `@`."""

from dataclasses import dataclass
from typing import Final

from skillmix.core.errors import UserError

PROVIDERS: Final = {
    "openai": "any OpenAI-compatible endpoint: openai:gpt-4o, openai:my-model@http://localhost:8000/v1",
    "anthropic": "Anthropic messages: anthropic:claude-model-name",
    "local": "transformers in process: local:PATH or local:PATH+ADAPTER",
    "bundled": "a small model from a package: bundled:smollm2-135m or bundled:smollm2-135m+ADAPTER",
    "scripted": "a deterministic fake: scripted:student?skill=0.8 or scripted:grader?noise=0.1",
    "rules": "code that checks skills, graders only: rules: alone, or rules:SPEC to ask a model about the rest",
}

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
    name, _, address = rest.partition("@") if provider in ("openai", "anthropic") else (rest, "", "")
    if not name and provider != "rules":
        raise UserError(f"{text!r} names no model.", hint=PROVIDERS[provider])
    if address and not address.startswith(("http://", "https://")):
        raise UserError(f"{address!r} is no address.", hint="It starts with http:// or https://.")
    if provider == "rules" and name:
        asked = parse_spec(name)
        if asked.provider == "rules":
            raise UserError(f"{text!r} names rules twice.", hint=PROVIDERS["rules"])
    return ModelSpec(provider, name, address.rstrip("/") or None)


def asked_model(text: str) -> str | None:
    """The model that a grader's spec asks: none for `rules:`, the one named there for `rules:SPEC`.

    >>> asked_model("rules:"), asked_model("rules:openai:m"), asked_model("openai:m")
    (None, 'openai:m', 'openai:m')
    """
    return (text.removeprefix("rules:") or None) if text.startswith("rules:") else text
