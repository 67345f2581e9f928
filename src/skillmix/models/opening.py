"""From a spec to a model: adding a provider is adding a line."""

from typing import Final

from skillmix.core.calls import Model
from skillmix.core.errors import UserError
from skillmix.core.specs import ModelSpec
from skillmix.models.anthropic import AnthropicModel
from skillmix.models.keys import Access
from skillmix.models.local.serving import LocalModel
from skillmix.models.openai import OpenAIModel
from skillmix.models.scripted import ScriptedModel

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
