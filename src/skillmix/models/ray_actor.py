"""The part of a model on Ray that works on a node: it opens models, answers groups of requests and keeps folders.

Ray makes actors of `ModelActor`; this module does not import Ray.
"""

import asyncio
import os
import pickle
import platform
import shutil
from collections.abc import AsyncIterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Final, NamedTuple

from skillmix import __version__
from skillmix.calls import CallKey, Model, Outcome, Request
from skillmix.errors import UserError, visible
from skillmix.hashing import digest
from skillmix.models.bundled import cache_folder
from skillmix.models.checkpoints import content_hash_of
from skillmix.models.installed import InstalledProvider
from skillmix.models.local.importing import import_lean
from skillmix.models.local.resident import MODELS
from skillmix.models.servers.pool import CONCURRENCY
from skillmix.models.specs import Access, ModelOptions, ModelSpec, open_model, provider_of

VERSIONS: Final = (__version__, ".".join(platform.python_version_tuple()[:2]))
"""skillmix and Python; they must be equal on all machines."""
_GATHERING: Final = 0.005
"""Seconds in which outcomes gather for one message."""
_UNTIL_THE_END: Final = ExitStack()
"""What an actor keeps as long as its process lives."""


class FileFacts(NamedTuple):
    """One file of a folder."""

    name: str
    size: int
    hash: str


class FolderFacts(NamedTuple):
    """A folder on the driver's machine, with the files that a model is loaded from."""

    path: str
    files: tuple[FileFacts, ...]

    @property
    def kept(self) -> Path:
        """Where a node keeps the folder if it was sent: under the hash of names and contents."""
        return cache_folder() / "sent" / digest("folder", [list(file) for file in self.files]).hex()

    @property
    def partial(self) -> Path:
        """Where this process collects the files."""
        return self.kept.with_name(f".{self.kept.name}.{os.getpid()}")

    def place(self) -> Path | None:
        """Where the same files are on this machine: at the driver's path or in the cache; None if nowhere."""
        return next((place for place in (Path(self.path), self.kept) if self.is_in(place)), None)

    def is_in(self, place: Path) -> bool:
        """Whether a folder has all files with the same contents."""
        try:
            return all(
                (place / file.name).stat().st_size == file.size and content_hash_of(place / file.name) == file.hash
                for file in self.files
            )
        except OSError:
            return False

    def store(self, name: str, data: bytes) -> None:
        """Store the next part of a file that the driver sends."""
        try:
            self.partial.mkdir(parents=True, exist_ok=True)
            with (self.partial / Path(name).name).open("ab") as file:
                file.write(data)
        except OSError as error:
            shutil.rmtree(self.partial, ignore_errors=True)
            raise UserError(
                f"{self.path} cannot be stored in {self.kept.parent}: {error.strerror or error}.",
                hint="Make room on that machine, or set SKILLMIX_CACHE there to another folder before `ray start`.",
            ) from None

    def keep(self) -> None:
        """Keep the folder, of which all parts have come."""
        if not self.is_in(self.partial):
            shutil.rmtree(self.partial, ignore_errors=True)
            raise UserError(f"{self.path} was changed while it was sent.", hint="Run the same command again.")
        shutil.rmtree(self.kept, ignore_errors=True)  # damaged, or it would have been used
        self.partial.rename(self.kept)


class OpenOrder(NamedTuple):
    """Which model an actor opens."""

    spec: ModelSpec
    options: tuple[int | None, float, Access]
    """Concurrency, timeout and access."""
    folders: tuple[FolderFacts, ...] = ()
    """The base and the adapters of a checkpoint."""
    provider: InstalledProvider | None = None
    """The provider with its class, if another package brings it."""


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
        self.outcomes: list[tuple[CallKey, Outcome]] = []
        self.lines = lines
        self.error: UserError | None = None
        self.news = asyncio.Event()
        self.serving = asyncio.create_task(self._serve(name))

    async def _serve(self, name: str) -> None:
        async def pulled() -> AsyncIterator[Request]:
            while True:
                yield await self.requests.get()

        try:
            async for request, outcome in self.model.serve(pulled()):
                self.outcomes.append((request.key, outcome))
                self.news.set()
        except UserError as error:
            self.error = error
        except Exception as error:  # noqa: BLE001  # the driver raises it
            words = visible(f"{type(error).__name__}: {error}".splitlines()[0])
            self.error = UserError(f"{name} failed: {words}.", hint="The log files of Ray have the whole message.")
        self.news.set()

    async def take(self) -> Taken:
        """Wait for outcomes, or for an error."""
        await self.news.wait()
        await asyncio.sleep(_GATHERING)
        self.news.clear()
        taken = Taken(self.outcomes, self.lines[:], self.error)
        self.outcomes = []
        self.lines.clear()
        return taken

    async def close(self) -> None:
        """Leave the calls in flight, and release what the model holds."""
        self.serving.cancel()
        await asyncio.gather(self.serving, return_exceptions=True)
        await self.model.close()


class RestartedError(Exception):
    """The actor was restarted and has no model of this number."""


class ModelActor:
    """Answers requests on a node, for one driver; each open model has a number."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        os.environ.pop("OMP_NUM_THREADS", None)  # Ray sets it to the CPUs that an actor reserves, which may be none
        os.environ.update(environment)
        import_lean()
        _UNTIL_THE_END.enter_context(MODELS.keeping())
        self._served: dict[int, ServedModel] = {}

    async def facts(self) -> tuple[tuple[str, str], str]:
        """The versions of skillmix and Python on this machine, and its name."""
        return VERSIONS, visible(platform.node())

    async def begin(self, number: int, order: bytes) -> int:
        """Open a model, anew if the driver has lost its answers; the calls that it has in flight at once."""
        await self.end(number)
        asked: OpenOrder = pickle.loads(order)
        concurrency, timeout, access = asked.options
        lines: list[str] = []
        options = ModelOptions(concurrency, timeout, access, lines.append)
        spec = asked.spec
        if asked.folders:
            places = [str(await asyncio.to_thread(folder.place)) for folder in asked.folders]
            spec = ModelSpec("local" if provider_of(spec).is_engine else spec.provider, "+".join(places))
        model = open_model(spec, options) if asked.provider is None else asked.provider.open(spec, options)
        self._served[number] = ServedModel(model, str(spec), lines)
        return model.limits.in_flight or CONCURRENCY

    async def add(self, number: int, group: bytes) -> None:
        """Let a model answer requests."""
        served = self._open_model(number)
        for request in pickle.loads(group):
            served.requests.put_nowait(request)

    async def take(self, number: int) -> bytes:
        """The outcomes of a model since the last call, as soon as there are some."""
        return pickle.dumps(await self._open_model(number).take(), pickle.HIGHEST_PROTOCOL)

    def _open_model(self, number: int) -> ServedModel:
        if number not in self._served:
            raise RestartedError
        return self._served[number]

    async def end(self, number: int) -> None:
        """Close a model."""
        served = self._served.pop(number, None)
        if served is not None:
            await served.close()

    async def lacks(self, folder: FolderFacts) -> bool:
        """Whether the driver must send a folder."""
        return await asyncio.to_thread(folder.place) is None

    async def store(self, folder: FolderFacts, name: str, data: bytes) -> None:
        """Store the next part of a file."""
        await asyncio.to_thread(folder.store, name, data)

    async def keep(self, folder: FolderFacts) -> None:
        """Keep a folder of which all parts have come."""
        await asyncio.to_thread(folder.keep)
