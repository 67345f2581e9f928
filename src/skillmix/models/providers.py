"""The table of providers: each word that may stand before the colon of a model's spec, with what is special about it.

A new provider is a row here; one that speaks no known protocol also needs a class in a separate file. An installed
package may bring further providers (`models/installed.py`).
"""

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final


@dataclass(frozen=True, slots=True)
class Provider:
    """One row of the table."""

    name: str
    form: str
    """How its specs are written, with an example."""
    model: str | Callable[..., Any] | None = None
    """The class of its models as `module:class`, or a function that opens one; None if there is no model to call."""
    is_in_process: bool = False
    """Whether its models need the memory of this machine or of its GPU, so that only one of them is open at a time.

    A model without weights, such as a scripted one, is not in process in this sense.
    """
    is_engine: bool = False
    """Whether this package itself computes the replies: its limits apply, and weights are read ahead."""
    has_checkpoint: bool = False
    """Whether its specs name checkpoint folders, which can be trained, merged and measured."""
    is_free: bool = False
    """Whether its calls cost nothing unless the price file says otherwise."""
    needs_name: bool = True
    """Whether a spec must say more than the provider's name."""
    stays_here: bool = False
    """Whether its models are called in the process of the command even with `--on ray`."""
    address: str | None = None
    """The provider's own server; a spec may name a compatible server instead, as in `openai:NAME@URL`."""
    address_variable: str | None = None
    """Environment variable with the address of the user's own server at the provider."""
    key: str | None = None
    """Environment variable with the key for that server."""
    key_header: str | None = None
    """A second header that carries the key."""
    seed_field: str | None = "seed"
    """What the seed of a call is named in a request; None if the provider takes none."""
    batches: tuple[str, ...] = ()
    """The forms of batches that it has, its own first."""
    packages: tuple[str, ...] = ()
    """Packages that its models need in this process, all in the extra `local` of skillmix."""
    check: str | None = None
    """A function, as `module:function`, that refuses a name which no model of the provider can have."""
    closed_hint: str | None = None
    """For a provider without models to call: why there is nothing to call."""
    is_listed: bool = True
    """Whether users write its specs; those of an import are not offered to them."""

    @property
    def is_served(self) -> bool:
        """Whether its models are called at an address."""
        return self.address is not None or self.address_variable is not None

    @property
    def has_replicas(self) -> bool:
        """Whether a spec may name several servers with the same model, as in `openai:NAME@URL1,URL2`."""
        return self.is_served and self.model == _CHAT

    @property
    def own_address(self) -> str | None:
        """The address of the provider's own server, or of the user's server at the provider."""
        return self.address or (os.environ.get(self.address_variable) if self.address_variable else None)


_CHAT: Final = "skillmix.models.servers.protocols:OpenAIModel"
_LOCAL: Final = "skillmix.models.local.model:LocalModel"
_MANAGED: Final = "skillmix.models.servers.managed:ManagedModel"
LOCAL_PACKAGES: Final = ("torch", "transformers", "safetensors")


def _hosted(name: str, about: str, address: str, **facts: Any) -> Provider:
    """A provider with the protocol of OpenAI, whose key is named after it."""
    return Provider(name, about, _CHAT, address=address, key=f"{name.upper()}_API_KEY", **facts)


_ROWS: Final = (
    Provider(
        "openai",
        "any OpenAI-compatible endpoint: openai:gpt-4o, openai:my-model@http://localhost:8000/v1 or …@URL1,URL2",
        _CHAT,
        address="https://api.openai.com/v1",
        key="OPENAI_API_KEY",
        batches=("openai", "azure"),
    ),
    Provider(
        "anthropic",
        "Anthropic messages: anthropic:claude-model-name",
        "skillmix.models.servers.protocols:AnthropicModel",
        address="https://api.anthropic.com/v1",
        key="ANTHROPIC_API_KEY",
        batches=("anthropic",),
    ),
    _hosted("gemini", "gemini:gemini-2.5-pro", "https://generativelanguage.googleapis.com/v1beta/openai"),
    _hosted("mistral", "mistral:mistral-small-latest", "https://api.mistral.ai/v1", seed_field="random_seed"),
    _hosted("together", "together:meta-llama/Llama-3.3-70B-Instruct-Turbo", "https://api.together.xyz/v1"),
    _hosted("openrouter", "openrouter:anthropic/claude-sonnet-4.5", "https://openrouter.ai/api/v1"),
    _hosted("groq", "groq:llama-3.3-70b-versatile", "https://api.groq.com/openai/v1", batches=("openai",)),
    _hosted("deepseek", "deepseek:deepseek-chat", "https://api.deepseek.com/v1", seed_field=None),
    _hosted("xai", "xai:grok-4", "https://api.x.ai/v1"),
    Provider(
        "azure",
        "a deployment in Azure: azure:DEPLOYMENT@https://NAME.openai.azure.com, or …?api-version=2024-10-21",
        _CHAT,
        address_variable="AZURE_OPENAI_ENDPOINT",
        key="AZURE_OPENAI_API_KEY",
        key_header="api-key",
        batches=("azure",),
    ),
    Provider("ollama", "ollama:llama3.2", _CHAT, address="http://localhost:11434/v1", is_free=True),
    Provider("lmstudio", "LM Studio: lmstudio:qwen3-4b", _CHAT, address="http://localhost:1234/v1", is_free=True),
    Provider(
        "vllm",
        "a vLLM server, started for you: vllm:PATH, vllm:ORG/NAME or vllm:PATH+ADAPTER",
        _MANAGED,
        is_in_process=True,
        has_checkpoint=True,
        is_free=True,
    ),
    Provider(
        "llamacpp",
        "a llama.cpp server, started for you: llamacpp:FILE.gguf or llamacpp:FILE.gguf+ADAPTER.gguf",
        _MANAGED,
        is_in_process=True,
        is_free=True,
    ),
    Provider(
        "local",
        "transformers in process: local:PATH, local:ORG/NAME or local:PATH+ADAPTER",
        _LOCAL,
        is_in_process=True,
        is_engine=True,
        has_checkpoint=True,
        is_free=True,
        packages=LOCAL_PACKAGES,
    ),
    Provider(
        "bundled",
        "a small model from a package: bundled:smollm2-135m or bundled:smollm2-135m+ADAPTER",
        _LOCAL,
        is_in_process=True,
        is_engine=True,
        has_checkpoint=True,
        is_free=True,
        packages=LOCAL_PACKAGES,
    ),
    Provider(
        "new",
        "a base of train steps without any training: new:tiny, new:small, new:base or new:WIDTHxLAYERSxHEADS",
        is_free=True,
        packages=LOCAL_PACKAGES,
        check="skillmix.models.shapes:shape_of",
        closed_hint="It has no weights and no words yet: make it the base of a train step, and ask that step's model.",
    ),
    Provider(
        "scripted",
        "a deterministic fake: scripted:student?skill=0.8 or scripted:grader?noise=0.1",
        "skillmix.models.scripted:ScriptedModel",
        is_free=True,
        stays_here=True,
        check="skillmix.models.scripted:ScriptedModel",
    ),
    Provider(
        "composer",
        "a teacher by code for a catalogue with a grammar: composer: (for figures) or composer:CATALOG",
        "skillmix.models.composer:ComposerModel",
        is_free=True,
        stays_here=True,
        needs_name=False,
        check="skillmix.models.composer:ComposerModel",
    ),
    Provider(
        "rules",
        "code that checks skills, graders only: rules: alone, or rules:SPEC to ask a model about the rest",
        is_free=True,
        needs_name=False,
        closed_hint="rules: is code; it grades by itself.",
    ),
    Provider(
        "inspect",
        "a model that Inspect AI asked, in runs of import-inspect only: inspect:openai/gpt-4o",
        closed_hint="Inspect AI asks it: run `inspect eval skillmix/skillmix`, then `skillmix import-inspect`.",
        is_listed=False,
    ),
)
PROVIDERS: Final[Mapping[str, Provider]] = {row.name: row for row in _ROWS}
"""The providers of this package, by name."""
