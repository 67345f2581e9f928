"""The public names of models: ids of the form OWNER/NAME, by which other tools and people find a model."""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePath
from typing import Final

from skillmix.calls import as_name
from skillmix.errors import UserError
from skillmix.models.specs import ModelSpec, parse_spec, provider_of
from skillmix.render import did_you_mean

_ID: Final = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]*(?<!\.)/[A-Za-z0-9_-][A-Za-z0-9._-]*(?<!\.)")
_NOT_A_FOLDER: Final = frozenset({"data", "con", "prn", "aux", "nul"})
"""Parts of an id that a collection of records cannot use as the name of a folder."""
_HOSTS: Final = ("openai", "anthropic", "google")
"""Prefixes of Inspect's names that are also the owners of the models."""
_ENGINES: Final = ("hf", "vllm", "sglang")
"""Prefixes of Inspect's names that stand before the id of a model."""


@dataclass(frozen=True, slots=True)
class PublicModel:
    """A model as records of other tools describe it; None where a run does not say."""

    id: str
    spec: str | None = None
    """Its spec without folders and addresses."""
    platform: str | None = None
    """The provider's own service that answered."""
    engine: str | None = None
    """The program that ran the weights."""
    deployment: str = "unknown"
    """Who ran the model: `self_deployed`, `externally_managed` or `unknown`."""

    @property
    def owner(self) -> str:
        """The part of the id before the slash."""
        return self.id.partition("/")[0]

    @property
    def name(self) -> str:
        """The part of the id after the slash."""
        return self.id.partition("/")[2]


def given_ids(options: Sequence[str], known: Iterable[str]) -> dict[str, str]:
    """The ids that the user gives as STUDENT=OWNER/NAME; one error reports every fault."""
    names = sorted(known)
    ids: dict[str, str] = {}
    faults = []
    for option in options:
        name, equals, model = option.partition("=")
        if not equals or not is_model_id(model):
            faults.append(f"{option!r} is not of the form STUDENT=OWNER/NAME.")
        elif name not in names:
            faults.append(f"The run has no student or grader {name!r}. {did_you_mean(name, names)}".rstrip())
        else:
            ids[name] = model
    if faults:
        raise UserError(" ".join(faults), hint=f"The run has {', '.join(names)}.")
    return ids


def is_model_id(text: str) -> bool:
    """Whether a text can be the id of a model.

    >>> is_model_id("ours/tuned-135m"), is_model_id("tuned-135m"), is_model_id("a/.."), is_model_id("a/b/c")
    (True, False, False, False)
    """
    return bool(_ID.fullmatch(text)) and not any(part.casefold() in _NOT_A_FOLDER for part in text.split("/"))


def public_models(specs: Mapping[str, str | None], given: Mapping[str, str]) -> dict[str, PublicModel]:
    """The public model of each name: what the user gives, or what the spec says; an error lists the names without."""
    models: dict[str, PublicModel] = {}
    missing = []
    for name, text in specs.items():
        spec = parse_spec(text) if text is not None else None
        model = given.get(name) or _id_of(spec)
        if model is None:
            missing.append(name)
        else:
            models[name] = _described(model, spec)
    if missing:
        raise UserError(
            f"The public name of {', '.join(missing)} is not known.",
            hint=f"Give it: --id {missing[0]}=OWNER/NAME, as on the hub.",
        )
    return models


def _id_of(spec: ModelSpec | None) -> str | None:
    """The id that a spec itself gives: only a provider's own service says whose model it is.

    >>> _id_of(parse_spec("openai:gpt-4o")), _id_of(parse_spec("openai:m@http://localhost:8000/v1"))
    ('openai/gpt-4o', None)
    >>> _id_of(parse_spec("inspect:vllm/meta-llama/Llama-3.1-8B")), _id_of(parse_spec("inspect:mockllm/model"))
    ('meta-llama/Llama-3.1-8B', None)
    """
    if spec is None or spec.address is not None:
        return None
    model = None
    if spec.provider == "inspect":
        prefix, _, rest = spec.name.partition("/")
        model = spec.name if prefix in _HOSTS else rest if prefix in _ENGINES else None
    elif provider_of(spec).address is not None:
        model = f"{spec.provider}/{spec.name}"
    return model if model is not None and is_model_id(model) else None


def _described(model: str, spec: ModelSpec | None) -> PublicModel:
    if spec is None:
        return PublicModel(model)
    provider = provider_of(spec)
    prefix = spec.name.partition("/")[0] if spec.provider == "inspect" else None
    # A folder or an address may be private, so records do not name it.
    shown = spec.provider if provider.has_checkpoint else f"{spec.provider}:{spec.name}"
    if provider.has_checkpoint or prefix in _ENGINES:
        engine = "transformers" if prefix in (None, "hf") else prefix
        return PublicModel(model, shown, engine=engine, deployment="self_deployed")
    if (provider.address is not None and spec.address is None) or prefix in _HOSTS:
        return PublicModel(model, shown, platform=prefix or spec.provider, deployment="externally_managed")
    return PublicModel(model, shown)


def public_catalog(name: str | None) -> str:
    """The name of a catalogue without the folders that it lies in.

    >>> public_catalog("paper"), public_catalog("/home/me/my skills/"), public_catalog(None)
    ('paper', 'my-skills', 'unnamed')
    """
    return as_name(PurePath(name).name) if name else "unnamed"
