"""From a spec to a model: adding a provider is adding a line."""

from typing import Final

from skillmix.core.calls import Model
from skillmix.core.errors import UserError
from skillmix.core.specs import ModelSpec
from skillmix.models.anthropic import AnthropicModel
from skillmix.models.openai import OpenAIModel
from skillmix.models.scripted import ScriptedModel

_NOT_YET: Final = ("local", "bundled", "rules")


def open_model(spec: ModelSpec, *, concurrency: int = 64, timeout: float = 600) -> Model:
    """The model that a spec names, ready to serve."""
    match spec.provider:
        case "openai":
            return OpenAIModel(spec, concurrency=concurrency, timeout=timeout)
        case "anthropic":
            return AnthropicModel(spec, concurrency=concurrency, timeout=timeout)
        case "scripted":
            return ScriptedModel(spec)
    raise UserError(
        f"{spec} cannot be opened by this version.",
        hint=f"Not here yet: {', '.join(_NOT_YET)}. Use openai, anthropic, scripted.",
    )
