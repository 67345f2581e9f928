"""The part of a model on Ray that works on a node: it opens models, answers groups of requests and stores checkpoints.

Ray makes actors of `ModelActor`; this module does not import Ray.
"""

import asyncio
import os
import pickle
import platform
import shutil
from collections.abc import AsyncIterator, Mapping
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Final, NamedTuple

from skillmix import __version__
from skillmix.calls import CallKey, Model, Outcome, Request
from skillmix.errors import UserError, visible
from skillmix.hashing import digest
from skillmix.models.bundled import cache_folder
from skillmix.models.checkpoints import content_hash_of
from skillmix.models.installed import InstalledProvider
from skillmix.models.local.model import MODELS
from skillmix.models.servers.pool import CONCURRENCY
from skillmix.models.specs import ModelOptions, ModelSpec, open_model, provider_of

VERSIONS: Final = f"skillmix {__version__} with Python {'.'.join(platform.python_version_tuple()[:2])}"
"""What must be equal on all machines."""
_GATHERING: Final = 0.005
"""Seconds in which outcomes gather for one message."""
_PARTS_OF_MODELS: Final = (".json", ".safetensors", ".jinja", ".txt", ".model")
"""Endings of the files that a checkpoint is loaded from; code and weights in other formats are never loaded."""


class SharedFolder(NamedTuple):
    """A folder on the driver's machine, with name, size and hash of each file that a model is loaded from."""

    path: str
    files: tuple[tuple[str, int, str], ...]

    @classmethod
    def of(cls, folder: Path) -> "SharedFolder":
        """Read the facts of a folder."""
        files = [file for file in sorted(folder.iterdir()) if file.suffix in _PARTS_OF_MODELS and file.is_file()]
        facts = tuple((file.name, file.stat().st_size, content_hash_of(file)) for file in files)
        return cls(str(folder.absolute()), facts)

    @property
    def copy(self) -> Path:
        """Where a machine keeps the folder if it was sent: under the hash of names and contents."""
        return cache_folder() / "sent" / digest("folder", [list(file) for file in self.files]).hex()

    def place(self) -> Path | None:
        """Where the same files are on this machine: at the driver's path or in the cache; None if nowhere."""
        return next((place for place in (Path(self.path), self.copy) if self._is_in(place)), None)

    def _is_in(self, place: Path) -> bool:
        try:
            return all(
                (place / name).stat().st_size == size and content_hash_of(place / name) == own
                for name, size, own in self.files
            )
        except OSError:
            return False

    def store(self, name: str | None, data: bytes) -> None:
        """Store the next part of a file that the driver sends; None for the name ends the folder."""
        partial = self.copy.with_name(f".{self.copy.name}.{os.getpid()}")
        try:
            if name is not None:
                partial.mkdir(parents=True, exist_ok=True)
                with (partial / Path(name).name).open("ab") as file:
                    file.write(data)
                return
        except OSError as error:
            shutil.rmtree(partial, ignore_errors=True)
            raise UserError(
                f"{self.path} cannot be stored in {self.copy.parent}: {error.strerror or error}.",
                hint="Make room on that machine, or set SKILLMIX_CACHE there to another folder before `ray start`.",
            ) from None
        if not self._is_in(partial):
            shutil.rmtree(partial, ignore_errors=True)
            raise UserError(f"{self.path} was changed while it was sent.", hint="Run the same command again.")
        shutil.rmtree(self.copy, ignore_errors=True)  # damaged, or it would have been used
        partial.rename(self.copy)


class OpenOrder(NamedTuple):
    """Which model an actor opens."""

    spec: ModelSpec
    options: ModelOptions
    folders: tuple[SharedFolder, ...] = ()
    """The base and the adapters of a checkpoint."""
    provider: InstalledProvider | None = None
    """The provider with its class, if another package brings it."""


class Begun(NamedTuple):
    """The answer of an actor that was told to open a model."""

    host: str
    room: int = 0
    """Calls that the model works on at once; 0 if it is not open, because folders are lacking."""
    lacking: tuple[SharedFolder, ...] = ()


class Taken(NamedTuple):
    """What an actor tells the driver about a model."""

    outcomes: list[tuple[CallKey, Outcome]]
    lines: list[str]
    """Lines for the user."""
    error: UserError | None


class ServedModel:
    """An open model, the requests that it has not pulled yet, and its outcomes that the driver has not taken yet."""

    def __init__(self, model: Model, name: str, lines: list[str]) -> None:
        self.model = model
        self.requests: asyncio.Queue[Request] = asyncio.Queue()
        self.taken = Taken([], lines, None)
        self.news = asyncio.Event()
        self.serving = asyncio.create_task(self._serve(name))

    async def _serve(self, name: str) -> None:
        async def pulled() -> AsyncIterator[Request]:
            while True:
                yield await self.requests.get()

        try:
            async for request, outcome in self.model.serve(pulled()):
                self.taken.outcomes.append((request.key, outcome))
                self.news.set()
        except UserError as error:
            self.taken = self.taken._replace(error=error)
        except Exception as error:  # noqa: BLE001  # the driver raises it
            words = visible(f"{type(error).__name__}: {error}".splitlines()[0])
            own = UserError(f"{name} failed: {words}.", hint="The log files of Ray have the whole message.")
            self.taken = self.taken._replace(error=own)
        self.news.set()


class RestartedError(Exception):
    """The actor was restarted and has no model of this number."""


class ModelActor:
    """Answers requests on a node, for one driver; each open model has a number."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        os.environ.pop("OMP_NUM_THREADS", None)  # Ray sets it to the CPUs that an actor reserves, which may be none
        os.environ.update(environment)
        self._kept = ExitStack()
        self._kept.enter_context(MODELS.keeping())
        self._served: dict[int, ServedModel] = {}

    async def begin(self, number: int, versions: str, order: bytes) -> Begun:
        """Open a model, or open it again if the driver has lost its answers, unless folders are lacking."""
        if versions != VERSIONS:
            raise UserError(
                f"{visible(platform.node())} has {VERSIONS}, and the machine of the command has {versions}.",
                hint="Install the same versions on all machines.",
            )
        await self.end(number)
        wanted: OpenOrder = pickle.loads(order)
        host, spec, lines = visible(platform.node()), wanted.spec, list[str]()
        if wanted.folders:
            places = [await asyncio.to_thread(folder.place) for folder in wanted.folders]
            lacking = tuple(folder for folder, place in zip(wanted.folders, places, strict=True) if place is None)
            if lacking:
                return Begun(host, lacking=lacking)
            provider = "local" if provider_of(spec).is_engine else spec.provider
            spec = ModelSpec(provider, "+".join(map(str, places)))
        options = replace(wanted.options, say=lines.append)
        model = open_model(spec, options) if wanted.provider is None else wanted.provider.open(spec, options)
        self._served[number] = ServedModel(model, str(wanted.spec), lines)
        return Begun(host, model.limits.in_flight or CONCURRENCY)

    async def add(self, number: int, group: bytes) -> None:
        """Let a model answer requests."""
        served = self._open_model(number)
        for request in pickle.loads(group):
            served.requests.put_nowait(request)

    async def take(self, number: int) -> bytes:
        """The outcomes of a model since the last call, as soon as there are some, or its error."""
        served = self._open_model(number)
        await served.news.wait()
        await asyncio.sleep(_GATHERING)
        served.news.clear()
        message = pickle.dumps(served.taken, pickle.HIGHEST_PROTOCOL)
        served.taken.outcomes.clear()
        served.taken.lines.clear()
        return message

    def _open_model(self, number: int) -> ServedModel:
        if number not in self._served:
            raise RestartedError
        return self._served[number]

    async def end(self, number: int) -> None:
        """Close a model, and leave its calls in flight."""
        served = self._served.pop(number, None)
        if served is not None:
            served.serving.cancel()
            await asyncio.gather(served.serving, return_exceptions=True)
            await served.model.close()

    async def store(self, folder: SharedFolder, name: str | None, data: bytes) -> None:
        """Store the next part of a file of a folder."""
        await asyncio.to_thread(folder.store, name, data)
