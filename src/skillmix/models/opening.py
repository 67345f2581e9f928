"""From a spec to a model: adding a provider is adding a line."""

from typing import Final

from skillmix.calls import Model
from skillmix.errors import UserError
from skillmix.models.local.model import LocalModel
from skillmix.models.scripted import ScriptedModel
from skillmix.models.servers.anthropic import AnthropicModel
from skillmix.models.servers.keys import Access
from skillmix.models.servers.openai import OpenAIModel
from skillmix.models.specs import ModelSpec

_AT_ONCE: Final = 64


def open_model(
    spec: ModelSpec, *, concurrency: int | None = None, timeout: float = 600, access: Access | None = None
) -> Model:
    """The model that a spec names, ready to serve."""
    at_once = concurrency or _AT_ONCE
    match spec.provider:
        case "openai":
            return OpenAIModel(spec, access=access, concurrency=at_once, timeout=timeout)
        case "anthropic":
            return AnthropicModel(spec, access=access, concurrency=at_once, timeout=timeout)
        case "scripted":
            return ScriptedModel(spec)
        case "local" | "bundled":
            return LocalModel(spec, concurrency=concurrency)
    raise UserError(f"{spec} is not a model that can be asked.", hint="rules: is code; it grades, and nobody asks it.")
