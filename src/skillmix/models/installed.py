"""Model providers of other packages: find and load them, and turn exceptions in their code into errors.

A package lists its providers in the entry point group `skillmix.providers`, as `name = module:Class`. An exception in
the package's code becomes a `UserError` with the package's name.
"""

import re
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from traceback import extract_tb
from typing import Any, Final

from skillmix.calls import CallKey, CallProblem, Limits, Model, Outcome, Reply, Request
from skillmix.errors import UserError
from skillmix.models.providers import PROVIDERS
from skillmix.models.servers.masking import MASK

ENTRY_POINTS: Final = "skillmix.providers"
_NAME: Final = re.compile(r"[a-z][a-z0-9_-]*")
_RESERVED: Final = ("step",)
"""Names that a provider cannot have, because `step:NAME` refers to the model of a train step."""
_METHODS: Final = ("serve", "probe", "close")


@dataclass(frozen=True, slots=True)
class InstalledProvider:
    """A provider from another package; `load` imports it."""

    name: str
    package: str
    entry: EntryPoint
    factory: Any = None
    """The provider's class, if another process loaded it and sent it to this one."""

    @property
    def form(self) -> str:
        """Return the form of its model strings."""
        return f"from the package {self.package}: {self.name}:NAME"

    def load(self) -> Any:
        """Import the provider's class."""
        if self.factory is not None:
            return self.factory
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
                hint=f"Its entry point is {self.entry.value}; it must name a class with {', '.join(_METHODS)}.",
            )
        return factory

    def open(self, spec: object, options: object) -> "GuardedModel":
        """Create a model of this provider."""
        with self.guarding(str(spec)):
            model = self.load()(spec, options)
        missing = [name for name in _METHODS if not callable(getattr(model, name, None))]
        if missing:
            raise UserError(
                f"The provider {self.name!r} of the package {self.package!r} makes no model: "
                f"{type(model).__name__} has no {', '.join(missing)}.",
                hint="Derive the class from skillmix.SimpleModel.",
            )
        return GuardedModel(model, str(spec), self)

    @contextmanager
    def guarding(self, spec: str, faults_of_caller: Sequence[Exception] = ()) -> Iterator[None]:
        """Turn exceptions in the provider's code into a `UserError`; pass on exceptions that the caller raised."""
        try:
            yield
        except UserError:
            raise
        except Exception as error:
            if error in faults_of_caller:
                raise
            raise UserError(
                f"{spec} failed: {_described(error, self.entry.module)}.",
                hint=f"This is a bug in the package {self.package!r}, which has the provider {self.name!r}.",
            ) from error


class GuardedModel:
    """A model from another package; exceptions in its code become errors with the package's name."""

    def __init__(self, model: Model, spec: str, provider: InstalledProvider) -> None:
        self._model = model
        self._spec = spec
        self._provider = provider

    @property
    def limits(self) -> Limits:
        """The limits of the model, or the defaults if it declares none."""
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
            if waiting or not is_over:  # the run would wait for the missing outcomes forever
                raise ValueError(f"the model stopped before it answered all requests; {len(waiting)} are open")

    async def probe(self) -> CallProblem | None:
        """Probe the model."""
        with self._provider.guarding(self._spec):
            return await self._model.probe()

    async def close(self) -> None:
        """Close the model."""
        await self._model.close()


@cache
def installed_providers() -> Mapping[str, InstalledProvider]:
    """Return all providers from other packages by name, without importing them."""
    providers: dict[str, InstalledProvider] = {}
    for entry in entry_points(group=ENTRY_POINTS):
        package = entry.dist.name if entry.dist is not None else entry.module
        if not _NAME.fullmatch(entry.name) or entry.name in _RESERVED:
            raise UserError(
                f"The package {package!r} has a provider named {entry.name!r}, which no spec can use.",
                hint="A name has lowercase letters, digits, '-' and '_', starts with a letter, and is not 'step'.",
            )
        if entry.name in PROVIDERS:
            raise UserError(
                f"The package {package!r} has a provider named {entry.name!r}, like skillmix itself.",
                hint="Rename it in the entry points of that package, or uninstall the package.",
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
    """Describe an exception in one line, with the line in the provider's file where it was raised."""
    frames = extract_tb(error.__traceback__)
    name = module.replace(".", "/")
    own = [frame for frame in frames if Path(frame.filename).with_suffix("").as_posix().endswith(name)]
    line = f" ({Path(own[-1].filename).name}, line {own[-1].lineno})" if own else ""
    words = MASK.line(str(error))  # a library may include a key in its message
    return f"{type(error).__name__}{f': {words}' if words else ''}{line}".rstrip(".")
