"""Model strings ("specs") such as `openai:gpt-4o`: parse a spec, open its model, shorten the spec for display.

`data/models/providers.yaml` has a row for each word that may precede the colon; a provider without a known protocol
also needs a class in a separate file. Installed packages may add providers with the entry point group
`skillmix.providers`, as `name = module:Class`. An exception in the code of such a package becomes a `UserError`.
"""

import os
import re
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from importlib.util import find_spec
from pathlib import Path
from traceback import extract_tb
from typing import Any, Final, Literal
from urllib.parse import parse_qsl, urlsplit

from skillmix.calls import CallKey, CallProblem, Limits, Model, Outcome, Reply, Request
from skillmix.errors import UserError
from skillmix.files import SHIPPED, read_yaml
from skillmix.models.servers.masking import MASK
from skillmix.render import name_hint


@dataclass(frozen=True, slots=True)
class Provider:
    """A row of `providers.yaml`; the comment at the top of that file explains the fields."""

    name: str
    form: str
    model: str | Callable[..., Any] | None = None
    is_in_process: bool = False
    is_engine: bool = False
    has_checkpoint: bool = False
    is_free: bool = False
    needs_name: bool = True
    stays_here: bool = False
    address: str | None = None
    address_variable: str | None = None
    key: str | None = None
    key_header: str | None = None
    seed_field: str | None = "seed"
    batches: tuple[str, ...] = ()
    packages: tuple[str, ...] = ()
    check: str | None = None
    closed_hint: str | None = None
    is_listed: bool = True

    @property
    def is_served(self) -> bool:
        """Whether the provider's models are called over HTTP."""
        return self.address is not None or self.address_variable is not None

    @property
    def own_address(self) -> str | None:
        """The address of the provider's own server, or of the user's server at the provider."""
        return self.address or (os.environ.get(self.address_variable) if self.address_variable else None)


def shipped_table(name: str) -> dict[str, dict[str, Any]]:
    """Return the rows of a table in `data/models`, by name."""
    rows: Any = read_yaml(SHIPPED / "models" / f"{name}.yaml")
    return {
        row: {key: tuple(value) if isinstance(value, list) else value for key, value in facts.items()}
        for row, facts in rows.items()
    }


PROVIDERS: Final[Mapping[str, Provider]] = {
    name: Provider(name, **facts) for name, facts in shipped_table("providers").items()
}
LOCAL_PACKAGES: Final = PROVIDERS["local"].packages


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """A parsed model string: where a model is called, or where its weights are."""

    provider: str
    name: str
    address: str | None = None
    replicas: tuple[str, ...] = ()  # addresses of more servers with the same model

    def __str__(self) -> str:
        return f"{self.provider}:{self.name}" + (f"@{','.join(self.addresses)}" if self.address else "")

    @property
    def addresses(self) -> tuple[str, ...]:
        """All addresses in the spec; empty if the provider's own address applies."""
        return (self.address, *self.replicas) if self.address else ()


@dataclass(frozen=True, slots=True)
class Access:
    """The key and the route for a model's calls, as set in an experiment file."""

    key: str | None = None
    """The environment variable that contains the key."""
    insecure: bool = False
    """Whether the key may be sent to another machine over plain http."""
    proxy: bool = False
    """Whether calls use the proxies that are set in the environment."""


def say_nothing(line: str) -> None:
    """Ignore a message; a named function, because a lambda cannot be pickled for Ray."""


@dataclass(frozen=True, slots=True)
class ModelOptions:
    """How to call a model, as set in an experiment file."""

    concurrency: int | None = None
    """The most calls in flight; None leaves the number to the provider."""
    timeout: float = 600
    """The time limit of a call in seconds."""
    access: Access = field(default_factory=Access)
    say: Callable[[str], None] = say_nothing
    """Shows a message to the user."""


def provider_forms() -> dict[str, str]:
    """Return the form of each provider's specs, including installed providers."""
    listed = {name: provider.form for name, provider in PROVIDERS.items() if provider.is_listed}
    return listed | {name: provider.form for name, provider in installed_providers().items()}


@cache
def _provider(name: str) -> Provider | None:
    """Return a built-in provider's row, or make a row for an installed provider; None if the name is unknown."""
    if name in PROVIDERS:
        return PROVIDERS[name]
    installed = installed_providers().get(name)
    if installed is None:
        return None
    factory = installed.load()
    flags: Any = {flag: getattr(factory, flag, False) is True for flag in ("is_in_process", "is_free", "stays_here")}
    return Provider(name, installed.form, installed.open, **flags)


def provider_of(spec: ModelSpec | str) -> Provider:
    """Return the provider of a spec.

    >>> provider_of("local:models/a").is_in_process, provider_of("openai:gpt-4o").is_in_process
    (True, False)
    """
    name = (parse_spec(spec) if isinstance(spec, str) else spec).provider
    provider = _provider(name)
    if provider is None:
        raise UserError(f"There is no provider {name!r}.", hint=_provider_hint(name))
    return provider


def _provider_hint(name: str) -> str:
    """Suggest the provider nearest to an unknown name, and list all providers."""
    if name == "step":
        return "Refer to the model of a train step in the `students` of a later step: students: [step:NAME]."
    known = list(provider_forms())
    return name_hint(name, known, otherwise=f"Write PROVIDER:NAME with one of these providers: {', '.join(known)}.")


def _named(place: str) -> Any:
    """Import the object named by `module:attribute`; this is deferred until needed because torch loads slowly."""
    module, _, attribute = place.partition(":")
    return getattr(import_module(module), attribute)


def open_model(spec: ModelSpec, options: ModelOptions | None = None) -> Model:
    """Open the model that a spec names."""
    provider = provider_of(spec)
    if provider.model is None:
        raise UserError(f"{spec} is not a model that can be called.", hint=provider.closed_hint)
    make = _named(provider.model) if isinstance(provider.model, str) else provider.model
    model: Model = make(spec, options or ModelOptions())
    return model


def require_packages(spec: ModelSpec) -> None:
    """Raise an error if a package that a model needs is not installed."""
    missing = [package for package in provider_of(spec).packages if find_spec(package) is None]
    if missing:
        packages = f"package{'s' * (len(missing) > 1)} {', '.join(missing)}"
        raise UserError(f"{spec} needs the {packages}.", hint="pip install 'skillmix[local]'")


def parse_spec(text: str) -> ModelSpec:
    """Parse a model string.

    >>> parse_spec("openai:my-model@http://localhost:8000/v1").address
    'http://localhost:8000/v1'
    >>> parse_spec("openai:my-model@http://a:8000/v1,http://b:8000/v1").addresses
    ('http://a:8000/v1', 'http://b:8000/v1')
    """
    name, colon, rest = text.partition(":")
    provider = _provider(name) if colon else None
    if provider is None:
        raise UserError(f"{text!r} is not a model.", hint=_provider_hint(text.partition(":")[0].partition("/")[0]))
    model, at, address = rest.partition("@") if provider.is_served else (rest, "", "")
    addresses = _addresses(address, provider) if at else ()
    if not model and provider.needs_name:
        raise UserError(f"The name of the model is missing in {text!r}.", hint=f"Usage: {provider.form}")
    if name == "rules" and model and parse_spec(model).provider == "rules":
        raise UserError(f"{text!r} contains `rules:` twice.", hint=f"Usage: {provider.form}")
    return ModelSpec(name, model, addresses[0] if addresses else None, addresses[1:])


def check_spec(text: str) -> None:
    """Raise an error if a spec is invalid, as far as can be told without opening the model."""
    spec = parse_spec(asked_model(text) or text)
    check = provider_of(spec).check
    if check is not None:
        _named(check)(spec)


def short_spec(text: str) -> str:
    """Shorten a spec with several addresses to the first address and the number of further ones.

    >>> short_spec("openai:m@http://a/v1,http://b/v1,http://c/v1")
    'openai:m@http://a/v1 +2'
    """
    first, *others = text.split(",") if "@" in text else [text]
    return f"{first} +{len(others)}" if others else first


_PROVIDER_NAME: Final = re.compile("[a-z][a-z0-9_-]*")
_HOST: Final = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?\.?|[0-9A-Fa-f:.]+(?:%[A-Za-z0-9._-]+)?")
_PATH: Final = re.compile(r"[A-Za-z0-9/._~:%+-]*")
_PORTS: Final = {"http": 80, "https": 443}
_ADDRESS_HINT: Final = (
    "Write an address such as https://models.example/v1 or http://localhost:8000/v1; separate several with commas."
)


def _addresses(text: str, provider: Provider) -> tuple[str, ...]:
    """Return the addresses in a spec; a single error lists all that are repeated or invalid."""
    if "@" in text:
        # The text before the "@" may be a password that contains a comma, so the message does not repeat the text.
        raise UserError(
            "The address of a model contains a user name or a password.",
            hint="Store the key in an environment variable, and name that variable with `key:` in the experiment file.",
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
            f"{provider.name}: takes one address, not {len(addresses)}.",
            hint="Only openai: models can have several addresses.",
        )
    return tuple(address.rstrip("/") for address in addresses)


def address_fault(address: str, provider: Provider) -> str | None:
    """Explain why requests cannot be sent to an address; only an Azure deployment may have a version as its query."""
    try:
        parts = urlsplit(address)
        port, host = parts.port, parts.hostname or ""
    except ValueError as error:
        return f"The address of a model is invalid: {error}."
    fault = None
    if parts.scheme not in ("http", "https"):
        fault = "it does not start with http:// or https://"
    elif not _HOST.fullmatch(host) or ".." in host or any(len(label) > 63 for label in host.split(".")):
        fault = f"{host!r} is not a host name"
    elif port == 0 or parts.netloc.endswith(":"):
        fault = "its port is not a number from 1 to 65535"
    elif provider.name == "azure" and [name for name, _ in parse_qsl(parts.query)] == ["api-version"]:
        fault = None if _PATH.fullmatch(parts.path) else "its path contains a character that is not allowed"
    elif not _PATH.fullmatch(parts.path) or parts.query or parts.fragment or address[-1] in "?#":
        fault = "only a path may follow the host"
    return f"{address!r} is not a valid address: {fault}." if fault else None


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


BatchState = Literal["in progress", "ended", "ended early", "failed"]


@dataclass(frozen=True, slots=True)
class BatchDialect:
    """A row of `batches.yaml`; the comment at the top of that file explains the fields."""

    name: str
    shape: Literal["files", "inline"]
    most_requests: int
    most_bytes: int
    states: Mapping[str, BatchState]
    factor: float = 0.5
    hosts: tuple[str, ...] = ()
    batches: str = "/batches"
    endpoint: str = "/v1/chat/completions"
    query: str = ""
    key_header: str | None = None
    unready_files: tuple[str, ...] = ()
    statuses: Mapping[str, int] = field(default_factory=dict)

    def state(self, word: str) -> BatchState:
        """Translate a provider's word for a batch's state; an unknown word counts as in progress.

        >>> DIALECTS["openai"].state("COMPLETED"), DIALECTS["openai"].state("dreaming")
        ('ended', 'in progress')
        """
        return self.states.get(word.casefold().strip(), "in progress")


DIALECTS: Final = {name: BatchDialect(name, **facts) for name, facts in shipped_table("batches").items()}


def dialect_of(spec: ModelSpec, choice: bool | str) -> BatchDialect | None:
    """Return the dialect that `batch: CHOICE` selects for a model; None if its provider has no such batches.

    >>> dialect_of(ModelSpec("openai", "my-deployment", "https://me.openai.azure.com/openai/v1"), True).name
    'azure'
    """
    own = [DIALECTS[name] for name in provider_of(spec).batches]
    if isinstance(choice, str):
        return next((dialect for dialect in own if dialect.name == choice), None)
    host = urlsplit(spec.address or "").hostname or ""
    at_host = [dialect for dialect in own if dialect.hosts and host.endswith(dialect.hosts)]
    return next(iter([*at_host, *own]), None)


def batch_fault(spec: ModelSpec, choice: bool | str) -> str | None:
    """Explain why a model cannot use `batch: CHOICE`; None if it can."""
    if choice is False:
        return None
    if isinstance(choice, str) and choice not in DIALECTS:
        return f"batch must be true, false or one of {', '.join(DIALECTS)}, not {choice!r}"
    own = provider_of(spec).batches
    if not own:
        return f"{spec.provider}: models do not support batches; remove batch"
    if dialect_of(spec, choice) is None:
        return f"{spec.provider}: models do not support batch: {choice}; write {' or '.join(own)}"
    return "a batch goes to one server; give one URL, or remove batch" if spec.replicas else None


_METHODS: Final = ("serve", "probe", "close")


@dataclass(frozen=True, slots=True)
class InstalledProvider:
    """A provider that another installed package registers as an entry point."""

    name: str
    package: str
    entry: EntryPoint

    @property
    def form(self) -> str:
        """The form of the provider's specs."""
        return f"from the package {self.package}: {self.name}:NAME"

    def load(self) -> Any:
        """Import the provider's class; if this fails, raise an error that names the package."""
        try:
            factory = self.entry.load()
        except Exception as error:
            raise UserError(
                f"The provider {self.name!r} of the package {self.package!r} cannot be loaded: "
                f"{_described(error, self.entry.module)}.",
                hint=f"Fix or uninstall the package; its entry point is {self.entry.value}.",
            ) from error
        if not callable(factory):
            raise UserError(
                f"The provider {self.name!r} of the package {self.package!r} is not a class: {factory!r:.80}.",
                hint=f"Change its entry point, {self.entry.value}, to a class derived from skillmix.SimpleModel.",
            )
        return factory

    def open(self, spec: object, options: object) -> "GuardedModel":
        """Create a model of this provider."""
        with self.guarding(str(spec)):
            model = self.load()(spec, options)
        missing = [name for name in _METHODS if not callable(getattr(model, name, None))]
        if missing:
            raise UserError(
                f"The provider {self.name!r} of the package {self.package!r} does not create a model: "
                f"{type(model).__name__} has no {', '.join(missing)}.",
                hint="Derive the class from skillmix.SimpleModel.",
            )
        return GuardedModel(model, str(spec), self)

    @contextmanager
    def guarding(self, spec: str, faults_of_caller: Sequence[Exception] = ()) -> Iterator[None]:
        """Turn exceptions in the provider's code into a `UserError`; re-raise `faults_of_caller` unchanged."""
        try:
            yield
        except UserError:
            raise
        except Exception as error:
            if error in faults_of_caller:
                raise
            raise UserError(
                f"{spec} failed: {_described(error, self.entry.module)}.",
                hint=f"This is a bug in the package {self.package!r}, which contains the provider {self.name!r}.",
            ) from error


class GuardedModel:
    """A model from another package; exceptions in its code become errors that name the package."""

    def __init__(self, model: Model, spec: str, provider: InstalledProvider) -> None:
        self._model = model
        self._spec = spec
        self._provider = provider

    @property
    def limits(self) -> Limits:
        """The limits that the model declares, or the defaults."""
        limits = getattr(self._model, "limits", None)
        return limits if isinstance(limits, Limits) else Limits()

    async def serve(self, requests: AsyncIterator[Request]) -> AsyncIterator[tuple[Request, Outcome]]:
        """Pass on requests and outcomes, and check that each request receives exactly one outcome."""
        waiting: set[CallKey] = set()
        is_over = False
        faults_of_source: list[Exception] = []

        async def pulled() -> AsyncIterator[Request]:
            nonlocal is_over
            try:
                async for request in requests:
                    waiting.add(request.key)
                    yield request
            except Exception as error:
                faults_of_source.append(error)
                raise
            is_over = True

        with self._provider.guarding(self._spec, faults_of_source):
            async for request, outcome in self._model.serve(pulled()):
                if not isinstance(outcome, Reply | CallProblem):
                    raise TypeError(f"the answer is a {type(outcome).__name__}, not a Reply or a CallProblem")
                if request.key not in waiting:
                    raise ValueError(f"the model answered {request.key} twice or without a request")
                waiting.remove(request.key)
                yield request, outcome
            if waiting or not is_over:  # otherwise the run would wait forever
                raise ValueError(f"the model stopped before it answered all requests; {len(waiting)} have no outcome")

    async def probe(self) -> CallProblem | None:
        """Check that the model can be called."""
        with self._provider.guarding(self._spec):
            return await self._model.probe()

    async def close(self) -> None:
        """Release the model's connections and memory."""
        await self._model.close()


@cache
def installed_providers() -> Mapping[str, InstalledProvider]:
    """Find the providers from other packages, by name, without importing them."""
    providers: dict[str, InstalledProvider] = {}
    for entry in entry_points(group="skillmix.providers"):
        package = entry.dist.name if entry.dist is not None else entry.module
        rename = "Rename it in the entry points of that package, or uninstall the package."
        if not _PROVIDER_NAME.fullmatch(entry.name) or entry.name == "step":  # `step:NAME` refers to a train step
            raise UserError(
                f"The package {package!r} has a provider with the invalid name {entry.name!r}.",
                hint=f"{rename} Names consist of lowercase letters, digits, '-' and '_', and start with a letter.",
            )
        if entry.name in PROVIDERS:
            raise UserError(
                f"The package {package!r} has a provider named {entry.name!r}, like skillmix itself.", hint=rename
            )
        other = providers.get(entry.name)
        if other is not None and other.entry.value != entry.value:
            raise UserError(
                f"The packages {other.package!r} and {package!r} both have a provider named {entry.name!r}.",
                hint="Uninstall one of them.",
            )
        providers[entry.name] = InstalledProvider(entry.name, package, entry)
    return providers


def _described(error: Exception, module: str) -> str:
    """Describe an exception in one line, with the line of the provider's file where it was raised."""
    frames = extract_tb(error.__traceback__)
    name = module.replace(".", "/")
    own = [frame for frame in frames if Path(frame.filename).with_suffix("").as_posix().endswith(name)]
    line = f" ({Path(own[-1].filename).name}, line {own[-1].lineno})" if own else ""
    words = MASK.line(str(error))  # the message may contain a key
    return f"{type(error).__name__}{f': {words}' if words else ''}{line}".rstrip(".")
