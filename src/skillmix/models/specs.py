"""Model specs such as `openai:gpt-4o`: `parse_spec` parses a spec, and `open_model` opens its model.

The possible providers are listed in `providers.py`.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from typing import Any, Final
from urllib.parse import parse_qsl, urlsplit

from skillmix.calls import Model
from skillmix.errors import UserError
from skillmix.models.installed import installed_providers
from skillmix.models.providers import PROVIDERS as PROVIDERS
from skillmix.models.providers import Provider as Provider
from skillmix.render import name_hint


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """The place where a model is found."""

    provider: str
    name: str
    address: str | None = None
    replicas: tuple[str, ...] = ()
    """Addresses of additional servers with the same model."""

    def __str__(self) -> str:
        return f"{self.provider}:{self.name}" + (f"@{','.join(self.addresses)}" if self.address else "")

    @property
    def addresses(self) -> tuple[str, ...]:
        """All addresses of the model; none if the spec leaves the address to the provider."""
        return (self.address, *self.replicas) if self.address else ()


@dataclass(frozen=True, slots=True)
class Access:
    """Which key is sent to a model and by which route, as set in its experiment file."""

    key: str | None = None
    """Name of the environment variable that contains the key."""
    insecure: bool = False
    """Whether that key may go over plain http to another machine."""
    proxy: bool = False
    """Whether calls use the proxies that are set in the environment."""


def say_nothing(line: str) -> None:
    """Show no line."""


@dataclass(frozen=True, slots=True)
class ModelOptions:
    """How a model is to be called, as set in an experiment file."""

    concurrency: int | None = None
    """The most calls in flight; None leaves the number to the provider."""
    timeout: float = 600
    """Seconds that one call may take."""
    access: Access = field(default_factory=Access)
    say: Callable[[str], None] = say_nothing
    """Shows a line to the user."""


def provider_forms() -> dict[str, str]:
    """Return the form of every provider's specs, including providers from installed packages."""
    listed = {name: provider.form for name, provider in PROVIDERS.items() if provider.is_listed}
    return listed | {name: provider.form for name, provider in installed_providers().items()}


@cache
def _provider(name: str) -> Provider | None:
    """Return the row of a provider in this package, or a row made for a provider from another package."""
    if name in PROVIDERS:
        return PROVIDERS[name]
    installed = installed_providers().get(name)
    if installed is None:
        return None
    factory = installed.load()
    facts: dict[str, Any] = {
        flag: getattr(factory, flag, False) is True for flag in ("is_in_process", "is_free", "stays_here")
    }
    return Provider(name, installed.form, installed.open, **facts)


def provider_of(spec: ModelSpec | str) -> Provider:
    """Return the table row for a spec's provider.

    >>> provider_of("local:models/a").is_in_process, provider_of("openai:gpt-4o").is_in_process
    (True, False)
    """
    name = (parse_spec(spec) if isinstance(spec, str) else spec).provider
    provider = _provider(name)
    if provider is None:
        raise UserError(f"There is no provider {name!r}.", hint=_provider_hint(name))
    return provider


def _provider_hint(name: str) -> str:
    """Return the provider name nearest to an unknown one, or all names."""
    known = [*(name for name, provider in PROVIDERS.items() if provider.is_listed), *installed_providers()]
    return name_hint(name, known, otherwise=f"Specs start with one of: {', '.join(known)}.")


def _named(place: str) -> Any:
    """Import an object given as `module:attribute` in a row; most commands open no model, and torch loads slowly."""
    module, _, attribute = place.partition(":")
    return getattr(import_module(module), attribute)


def open_model(spec: ModelSpec, options: ModelOptions | None = None) -> Model:
    """Open the model of a spec, ready to serve."""
    provider = provider_of(spec)
    if provider.model is None:
        raise UserError(f"{spec} is not a model that can be called.", hint=provider.closed_hint)
    make = _named(provider.model) if isinstance(provider.model, str) else provider.model
    model: Model = make(spec, options or ModelOptions())
    return model


def require_packages(spec: ModelSpec) -> None:
    """Raise an error if packages that a model needs are not installed."""
    missing = [package for package in provider_of(spec).packages if find_spec(package) is None]
    if missing:
        raise UserError(f"{spec} needs {', '.join(missing)}.", hint="pip install 'skillmix[local]'")


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
        raise UserError(f"{text!r} is not a model.", hint=_provider_hint(name if colon else ""))
    model, at, address = rest.partition("@") if provider.is_served else (rest, "", "")
    addresses = _addresses(address, provider) if at else ()
    if not model and provider.needs_name:
        raise UserError(f"{text!r} names no model.", hint=provider.form)
    if name == "rules" and model and parse_spec(model).provider == "rules":
        raise UserError(f"{text!r} names rules twice.", hint=provider.form)
    return ModelSpec(name, model, addresses[0] if addresses else None, addresses[1:])


def check_spec(text: str) -> None:
    """Raise an error if a spec cannot belong to any model, as far as that is clear without opening one."""
    spec = parse_spec(asked_model(text) or text)
    check = provider_of(spec).check
    if check is not None:
        _named(check)(spec)


def short_spec(text: str) -> str:
    """Return a spec with only its first address, and the number of other addresses.

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


def _addresses(text: str, provider: Provider) -> tuple[str, ...]:
    """Return the addresses in a spec; one error lists all that are repeated or cannot receive requests."""
    if "@" in text:
        # The text before the "@" may be a password that contains a comma, so the message does not repeat the text.
        raise UserError(
            "The address of a model holds a user name or a password; name the variable of a key with `key:` instead.",
            hint=_ADDRESS_HINT,
        )
    addresses = [part.strip() for part in text.split(",")]
    faults = [fault for address in addresses if (fault := address_fault(address, provider))]
    first: dict[object, str] = {}
    for address in addresses if not faults else ():  # several addresses may lead to the same server
        parts = urlsplit(address)
        place = parts.scheme, parts.hostname, parts.port or _PORTS[parts.scheme], parts.path.rstrip("/")
        if place in first:
            other = "" if first[place] == address else f", first as {first[place]!r}"
            faults.append(f"The address {address!r} is listed twice{other}.")
        first.setdefault(place, address)
    if faults:
        raise UserError(" ".join(dict.fromkeys(faults)), hint=_ADDRESS_HINT)
    if len(addresses) > 1 and provider.model != PROVIDERS["openai"].model:
        raise UserError(
            f"{provider.name}: takes one address and not {len(addresses)}.",
            hint="Only openai: takes several addresses of one model.",
        )
    return tuple(address.rstrip("/") for address in addresses)


def address_fault(address: str, provider: Provider) -> str | None:
    """Explain why requests cannot be sent to an address; only a deployment in Azure may have a version as its query."""
    try:
        parts = urlsplit(address)
        port, host = parts.port, parts.hostname or ""
    except ValueError as error:
        return f"The address of a model cannot be read: {error}."
    fault = None
    if parts.scheme not in ("http", "https"):
        fault = "it does not start with http:// or https://"
    elif not _HOST.fullmatch(host) or ".." in host or any(len(label) > 63 for label in host.split(".")):
        fault = f"{host!r} is not a host name"
    elif port == 0 or parts.netloc.endswith(":"):
        fault = "its port is not a number from 1 to 65535"
    elif provider.name == "azure" and [name for name, _ in parse_qsl(parts.query)] == ["api-version"]:
        fault = None if _PATH.fullmatch(parts.path) else "its path cannot be used"
    elif not _PATH.fullmatch(parts.path) or parts.query or parts.fragment or address[-1] in "?#":
        fault = "only a path may follow the host"
    return f"{address!r} is not an address: {fault}." if fault else None


def asked_model(text: str) -> str | None:
    """Return the spec of the model that a grader calls: None for `rules:`, and SPEC for `rules:SPEC`.

    >>> asked_model("rules:"), asked_model("rules:openai:m"), asked_model("openai:m")
    (None, 'openai:m', 'openai:m')
    """
    return (text.removeprefix("rules:") or None) if uses_code(text) else text


def uses_code(text: str) -> bool:
    """Return whether a grader's spec is `rules:` or `rules:SPEC`.

    >>> uses_code("rules:"), uses_code("rules:openai:m"), uses_code("openai:m")
    (True, True, False)
    """
    return text.startswith("rules:")
