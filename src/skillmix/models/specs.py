"""Model specs such as `openai:gpt-4o`, and the table of the providers that they name.

`parse_spec` reads a spec, `open_model` opens the model. A new provider is one file with its model and one row here;
an installed package may bring further providers (`models/installed.py`).
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib.util import find_spec
from typing import Final
from urllib.parse import SplitResult, urlsplit

from skillmix.calls import Model
from skillmix.errors import UserError
from skillmix.models.installed import installed_providers
from skillmix.render import name_hint


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """Where a model is found."""

    provider: str
    name: str
    address: str | None = None
    replicas: tuple[str, ...] = ()
    """Further addresses of servers with the same model."""

    def __str__(self) -> str:
        return f"{self.provider}:{self.name}" + (f"@{','.join(self.addresses)}" if self.address else "")

    @property
    def addresses(self) -> tuple[str, ...]:
        """All addresses of the model; none if the spec leaves the address to the provider."""
        return (self.address, *self.replicas) if self.address else ()


@dataclass(frozen=True, slots=True)
class Access:
    """Which key a model is sent, as its experiment file says."""

    key: str | None = None
    """Name of the environment variable that holds the key."""
    insecure: bool = False
    """Whether that key may go over plain http to another machine."""


@dataclass(frozen=True, slots=True)
class ModelOptions:
    """How an experiment file wants a model to be called."""

    concurrency: int | None = None
    """Calls in flight at once; None leaves the number to the provider."""
    timeout: float = 600
    """Seconds that one call may take."""
    access: Access = field(default_factory=Access)
    say: Callable[[str], None] = lambda line: None
    """Shows a line to the user."""


Opener = Callable[[ModelSpec, ModelOptions], Model]


@dataclass(frozen=True, slots=True)
class Provider:
    """One row of the table of providers."""

    name: str
    form: str
    """How its specs are written, with an example."""
    open: Opener | None
    """None if there is no model to call."""
    is_in_process: bool = False
    """Whether its models load weights into this process, so that only one of them is open at a time.

    A model without weights, such as a scripted one, is not in process in this sense.
    """
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
    has_replicas: bool = False
    """Whether a spec may name several servers with the same model, as in `openai:NAME@URL1,URL2`."""
    key: str | None = None
    """Environment variable with the key for that server."""
    announce: Callable[[ModelSpec], None] | None = None
    """Is told which model will be opened after the present one, to load it ahead."""
    packages: tuple[str, ...] = ()
    """Packages that its models need in this process, all in the extra `local` of skillmix."""
    check: Callable[[ModelSpec], None] | None = None
    """Refuses a name that no model of the provider can have; it opens nothing."""
    closed_hint: str | None = None
    """For a provider without models to call: why there is nothing to call."""
    is_listed: bool = True
    """Whether users write its specs; those of an import are not offered to them."""


# The openers import their modules when they are called: most commands open no model, and torch takes seconds to load.


def _open_openai(spec: ModelSpec, options: ModelOptions) -> Model:
    from skillmix.models.servers.openai import OpenAIModel

    return OpenAIModel(spec, options)


def _open_anthropic(spec: ModelSpec, options: ModelOptions) -> Model:
    from skillmix.models.servers.anthropic import AnthropicModel

    return AnthropicModel(spec, options)


def _open_local(spec: ModelSpec, options: ModelOptions) -> Model:
    from skillmix.models.local.model import LocalModel

    return LocalModel(spec, options)


def _announce_local(spec: ModelSpec) -> None:
    from skillmix.models.local.resident import MODELS

    MODELS.announce(spec)


def _open_scripted(spec: ModelSpec, options: ModelOptions) -> Model:
    from skillmix.models.scripted import ScriptedModel

    return ScriptedModel(spec)


def _check_new(spec: ModelSpec) -> None:
    from skillmix.models.shapes import check_shape

    check_shape(spec)


def _check_scripted(spec: ModelSpec) -> None:
    from skillmix.models.scripted import check_script

    check_script(spec)


def _open_composer(spec: ModelSpec, options: ModelOptions) -> Model:
    from skillmix.models.composer import ComposerModel

    return ComposerModel(spec)


def _check_composer(spec: ModelSpec) -> None:
    from skillmix.models.composer import check_composer

    check_composer(spec)


LOCAL_PACKAGES: Final = ("torch", "transformers", "safetensors")
_ROWS: Final = (
    Provider(
        "openai",
        "any OpenAI-compatible endpoint: openai:gpt-4o, openai:my-model@http://localhost:8000/v1 or …@URL1,URL2",
        _open_openai,
        address="https://api.openai.com/v1",
        has_replicas=True,
        key="OPENAI_API_KEY",
    ),
    Provider(
        "anthropic",
        "Anthropic messages: anthropic:claude-model-name",
        _open_anthropic,
        address="https://api.anthropic.com/v1",
        key="ANTHROPIC_API_KEY",
    ),
    Provider(
        "local",
        "transformers in process: local:PATH or local:PATH+ADAPTER",
        _open_local,
        is_in_process=True,
        has_checkpoint=True,
        is_free=True,
        announce=_announce_local,
        packages=LOCAL_PACKAGES,
    ),
    Provider(
        "bundled",
        "a small model from a package: bundled:smollm2-135m or bundled:smollm2-135m+ADAPTER",
        _open_local,
        is_in_process=True,
        has_checkpoint=True,
        is_free=True,
        announce=_announce_local,
        packages=LOCAL_PACKAGES,
    ),
    Provider(
        "new",
        "a base of train steps without any training: new:tiny, new:small, new:base or new:WIDTHxLAYERSxHEADS",
        open=None,
        is_free=True,
        packages=LOCAL_PACKAGES,
        check=_check_new,
        closed_hint="It has no weights and no words yet: make it the base of a train step, and ask that step's model.",
    ),
    Provider(
        "scripted",
        "a deterministic fake: scripted:student?skill=0.8 or scripted:grader?noise=0.1",
        _open_scripted,
        is_free=True,
        stays_here=True,
        check=_check_scripted,
    ),
    Provider(
        "composer",
        "a teacher by code for a catalogue with a grammar: composer: (for figures) or composer:CATALOG",
        _open_composer,
        is_free=True,
        stays_here=True,
        needs_name=False,
        check=_check_composer,
    ),
    Provider(
        "rules",
        "code that checks skills, graders only: rules: alone, or rules:SPEC to ask a model about the rest",
        open=None,
        is_free=True,
        needs_name=False,
        closed_hint="rules: is code; it grades by itself.",
    ),
    Provider(
        "inspect",
        "a model that Inspect AI asked, in runs of import-inspect only: inspect:openai/gpt-4o",
        open=None,
        closed_hint="Inspect AI asks it: run `inspect eval skillmix/skillmix`, then `skillmix import-inspect`.",
        is_listed=False,
    ),
)
PROVIDERS: Final[Mapping[str, Provider]] = {row.name: row for row in _ROWS}
"""The providers of this package, by name."""


def provider_forms() -> dict[str, str]:
    """How the specs of every provider are written, those of installed packages included."""
    installed = {name: provider.form for name, provider in installed_providers().items()}
    _refuse_taken_names()
    return {name: provider.form for name, provider in PROVIDERS.items() if provider.is_listed} | installed


@cache
def _provider(name: str) -> Provider | None:
    """The row of a provider of this package, or one made for a provider of another package."""
    if name in PROVIDERS:
        return PROVIDERS[name]
    installed = installed_providers().get(name)
    _refuse_taken_names()
    if installed is None:
        return None
    factory = installed.load()
    return Provider(
        name,
        installed.form,
        installed.open,
        is_in_process=getattr(factory, "is_in_process", False) is True,
        is_free=getattr(factory, "is_free", False) is True,
        stays_here=getattr(factory, "stays_here", False) is True,
    )


def _refuse_taken_names() -> None:
    """A package may add providers but not replace ours."""
    for name, provider in installed_providers().items():
        if name in PROVIDERS:
            raise UserError(
                f"The package {provider.package!r} brings a second provider {name!r}.",
                hint="Give it another name in the entry point of that package, or uninstall the package.",
            )


def provider_of(spec: ModelSpec | str) -> Provider:
    """The table row of a spec's provider.

    >>> provider_of("local:models/a").is_in_process, provider_of("openai:gpt-4o").is_in_process
    (True, False)
    """
    name = (parse_spec(spec) if isinstance(spec, str) else spec).provider
    provider = _provider(name)
    if provider is None:
        raise UserError(
            f"There is no provider {name!r}.", hint=name_hint(name, _providers(), otherwise=_known_providers())
        )
    return provider


def _providers() -> list[str]:
    return [*(name for name, provider in PROVIDERS.items() if provider.is_listed), *installed_providers()]


def _known_providers() -> str:
    return f"Specs start with one of: {', '.join(_providers())}."


def open_model(spec: ModelSpec, options: ModelOptions | None = None) -> Model:
    """The model that a spec names, ready to serve."""
    provider = provider_of(spec)
    if provider.open is None:
        raise UserError(f"{spec} is not a model that can be called.", hint=provider.closed_hint)
    return provider.open(spec, options or ModelOptions())


def require_packages(spec: ModelSpec) -> None:
    """Refuse a model whose packages are not installed."""
    missing = [package for package in provider_of(spec).packages if find_spec(package) is None]
    if missing:
        raise UserError(f"{spec} needs {', '.join(missing)}.", hint="pip install 'skillmix[local]'")


def announce_model(spec: ModelSpec) -> None:
    """Tell a provider which model will be opened after the present one, so that it can load the model ahead."""
    provider = provider_of(spec)
    if provider.announce is not None:
        provider.announce(spec)


def parse_spec(text: str) -> ModelSpec:
    """Read a spec.

    >>> parse_spec("openai:my-model@http://localhost:8000/v1").address
    'http://localhost:8000/v1'
    >>> parse_spec("openai:my-model@http://a:8000/v1,http://b:8000/v1").addresses
    ('http://a:8000/v1', 'http://b:8000/v1')
    """
    name, colon, rest = text.partition(":")
    provider = _provider(name) if colon else None
    if provider is None:
        hint = name_hint(name, _providers(), otherwise=_known_providers()) if colon else _known_providers()
        raise UserError(f"{text!r} is not a model.", hint=hint)
    model, at, address = rest.partition("@") if provider.address else (rest, "", "")
    addresses = _addresses(address, provider) if at else ()
    if not model and provider.needs_name:
        raise UserError(f"{text!r} names no model.", hint=provider.form)
    if name == "rules" and model and parse_spec(model).provider == "rules":
        raise UserError(f"{text!r} names rules twice.", hint=provider.form)
    return ModelSpec(name, model, addresses[0] if addresses else None, addresses[1:])


def check_spec(text: str) -> None:
    """Refuse a spec that names no model, as far as that can be found without opening one."""
    spec = parse_spec(asked_model(text) or text)
    provider = provider_of(spec)
    if provider.check is not None:
        provider.check(spec)


def short_spec(text: str) -> str:
    """A spec with its first address only, and the number of the others.

    >>> short_spec("openai:m@http://a/v1,http://b/v1,http://c/v1")
    'openai:m@http://a/v1 +2'
    """
    first, *others = text.split(",") if "@" in text else [text]
    return f"{first} +{len(others)}" if others else first


_HOST: Final = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?\.?|[0-9A-Fa-f:.]+(?:%[A-Za-z0-9._-]+)?")
_PATH: Final = re.compile(r"[A-Za-z0-9/._~:%+-]*")
_PORTS: Final = {"http": 80, "https": 443}
_ADDRESS_HINT: Final = (
    "An address looks like https://models.example/v1 or http://localhost:8000/v1; several are joined by commas."
)
_HOLDS_PASSWORD: Final = (
    "The address of a model holds a user name or a password; name the variable of a key with `key:` instead."
)


def _addresses(text: str, provider: Provider) -> tuple[str, ...]:
    """The addresses of a spec; an error with all faults if one of them cannot receive requests or comes twice."""
    if "@" in text:
        # The text before the "@" may be a password, with a comma in it, so the message does not repeat it.
        raise UserError(_HOLDS_PASSWORD, hint=_ADDRESS_HINT)
    addresses = [part.strip() for part in text.split(",")]
    faults = [fault for address in addresses if (fault := _address_fault(address))] or _repeated(addresses)
    if faults:
        raise UserError(" ".join(dict.fromkeys(faults)), hint=_ADDRESS_HINT)
    if len(addresses) > 1 and not provider.has_replicas:
        raise UserError(
            f"{provider.name}: takes one address and not {len(addresses)}.",
            hint="Only openai: takes several addresses of one model.",
        )
    return tuple(address.rstrip("/") for address in addresses)


def _repeated(addresses: list[str]) -> list[str]:
    """The faults of addresses that lead to the same server as an earlier one."""
    faults = []
    first: dict[object, str] = {}
    for address in addresses:
        parts = urlsplit(address)
        place = parts.scheme, parts.hostname, parts.port or _PORTS[parts.scheme], parts.path.rstrip("/")
        if place in first:
            other = "" if first[place] == address else f", first as {first[place]!r}"
            faults.append(f"The address {address!r} is listed twice{other}.")
        first.setdefault(place, address)
    return faults


def _address_fault(address: str) -> str | None:
    try:
        parts = urlsplit(address)
        port = parts.port
    except ValueError as error:
        return f"The address of a model cannot be read: {error}."
    if parts.scheme not in ("http", "https"):
        return f"{address!r} is not an address: it does not start with http:// or https://."
    return _host_fault(address, parts, port)


def _host_fault(address: str, parts: SplitResult, port: int | None) -> str | None:
    host = parts.hostname or ""
    if not _HOST.fullmatch(host) or ".." in host or any(len(label) > 63 for label in host.split(".")):
        return f"{address!r} is not an address: {host!r} is not a host name."
    if port == 0 or parts.netloc.endswith(":"):
        return f"{address!r} is not an address: its port is not a number from 1 to 65535."
    if not _PATH.fullmatch(parts.path) or parts.query or parts.fragment or address[-1] in "?#":
        return f"{address!r} is not an address: only a path may follow the host."
    return None


def asked_model(text: str) -> str | None:
    """The spec of the model that a grader calls: None for `rules:`, SPEC for `rules:SPEC`.

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
