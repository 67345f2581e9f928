"""`vllm:MODEL[+ADAPTER]` and `llamacpp:FILE.gguf[+ADAPTER.gguf]`: servers that skillmix starts, calls and stops.

A server runs in a separate environment, because vLLM's packages conflict with ours. It is started at the first call and
called like any OpenAI-compatible server. During a run it stays up for later steps until another model, a train step or
the end of the run stops it. A guard process ends the server however skillmix ends.
"""

import asyncio
import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import aclosing, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from shutil import which
from socket import socket
from tempfile import NamedTemporaryFile
from typing import TYPE_CHECKING, Final

from skillmix.calls import CallProblem, Limits, Model, Outcome, Request
from skillmix.errors import UserError
from skillmix.files import json_object
from skillmix.models.bundled import cache_folder
from skillmix.models.checkpoints import ADAPTER, Checkpoint, FileStates, checkpoint_of, states_of
from skillmix.models.servers.keys import Server
from skillmix.models.servers.masking import MASK
from skillmix.models.specs import ModelOptions, ModelSpec

if TYPE_CHECKING:
    from skillmix.models.servers.http import Endpoint

_CHILD: Final = str(Path(__file__).with_name("server_guard.py"))
_PROGRAMS: Final = {"vllm": ("vllm", "vllm"), "llamacpp": ("llama-server", "xllamacpp")}
"""The program of each provider, and the package that contains it."""
_SERVED: Final = "skillmix"  # the name of a server's model in requests
_CONCURRENCY: Final = {"vllm": 256, "llamacpp": 8}
_CONTEXT: Final = 4096  # tokens of a prompt and its reply, for each parallel call to llama.cpp
_LONGEST_START: Final = 3600.0  # the time limit of a start in seconds; weights may have to be downloaded
_RANKS: Final = (8, 16, 32, 64, 128, 256, 320, 512)  # the values that vLLM accepts as the maximum rank of adapters
_QUICKLY_HASHED: Final = 2 << 30
"""A probe hashes weights up to this size in bytes, to check that an adapter was trained on them."""


@dataclass(frozen=True, slots=True)
class _Launch:
    """The settings with which a server is started; equal launches share one server."""

    provider: str
    command: tuple[str, ...]
    files: FileStates  # the state of the weight files; a model that was trained again needs a new server
    rank: int = 0  # the largest rank of adapters that the server can load while it runs; 0 for none
    adapter: tuple[str, FileStates] | None = field(default=None, compare=False)
    """The folder of the adapter to load while the server runs."""

    def fits(self, other: "_Launch") -> bool:
        """Return whether a server started with these settings can also serve the model of another launch."""
        same = (self.provider, self.command, self.files) == (other.provider, other.command, other.files)
        return same and self.rank >= other.rank


def _program(provider: str) -> list[str]:
    """Return the command that starts a server, from `SKILLMIX_VLLM` or `SKILLMIX_LLAMACPP`, the PATH or uvx."""
    name, package = _PROGRAMS[provider]
    variable = f"SKILLMIX_{provider.upper()}"
    from_package = ("python", _CHILD, package)  # xllamacpp has no command
    if own := os.environ.get(variable):
        place = Path(own).expanduser()
        for program in (place / "bin" / name, place / "bin" / "python") if place.is_dir() else (place,):
            if program.is_file() and os.access(program, os.X_OK):
                is_llama_python = program.name == "python" and name != package
                return [str(program), *(from_package[1:] if is_llama_python else ())]
        raise UserError(
            f"{variable} is {own}, but there is no {name} there.",
            hint=f"Set it to the path of {name}, or to a virtual environment in which {package} is installed.",
        )
    if found := which(name):
        return [found]
    if uvx := which("uvx"):
        return [uvx, "--from", package, *((name,) if name == package else from_package)]
    raise UserError(
        f"{provider}: models need the program {name}, which is not on the PATH.",
        hint=f"Install uv, which downloads it at the first call, or install {package} in a separate virtual "
        f"environment and set {variable} to its folder.",
    )


def require_server(spec: ModelSpec) -> None:
    """Raise an error if a GGUF file or the program of a model's server is missing."""
    if spec.provider == "llamacpp":
        _launch_of(spec, concurrency=1)
    _program(spec.provider)


def _launch_of(spec: ModelSpec, concurrency: int) -> _Launch:
    """Determine how to start a model's server, and raise an error if a file is missing."""
    if spec.provider == "llamacpp":
        files = [Path(name).expanduser() for name in spec.name.split("+")]
        for file in files:
            if not file.is_file():
                raise UserError(f"There is no file {file}.", hint="Write llamacpp:FILE.gguf with the path of the file.")
        model, *adapters = [str(file.resolve()) for file in files]
        sizes = ("--parallel", str(concurrency), "--ctx-size", str(_CONTEXT * concurrency))
        # Sampling settings come only from the request.
        plain = ("--top-k", "0", "--top-p", "1", "--min-p", "0", "--repeat-penalty", "1")
        lora = [part for adapter in adapters for part in ("--lora", adapter)]
        command = (*_program("llamacpp"), "--model", model, "--alias", _SERVED, *sizes, *plain, *lora)
        return _Launch(spec.provider, command, states_of(files))
    checkpoint = checkpoint_of(spec)
    if len(checkpoint.adapters) > 1:
        raise UserError(
            f"{spec} has {len(checkpoint.adapters)} adapters, but vLLM applies only one.",
            hint="Merge the first adapter into its base: skillmix merge SPEC --output DIR.",
        )
    tokenizer = ("--tokenizer", str(checkpoint.tokenizer.resolve())) if checkpoint.tokenizer != checkpoint.base else ()
    served = ("--served-model-name", _SERVED, "--generation-config", "vllm", "--load-format", "safetensors")
    command = (*_program("vllm"), "serve", str(checkpoint.base.resolve()), *served, *tokenizer)
    weights = Checkpoint(checkpoint.base).file_states()
    if not checkpoint.adapters:
        return _Launch(spec.provider, command, weights)
    (folder,) = checkpoint.adapters
    hint = "Train or download the adapter again."
    config = json_object((folder / ADAPTER).read_bytes(), source=str(folder / ADAPTER), hint=hint)
    rank = next((rank for rank in _RANKS if rank >= config.get("r", 8)), _RANKS[-1])
    return _Launch(spec.provider, command, weights, rank, (str(folder.resolve()), Checkpoint(folder).file_states()))


class _ManagedServer:
    """A server process that skillmix has started."""

    def __init__(self, launch: _Launch) -> None:
        self.launch = launch
        self._adapters: dict[tuple[str, FileStates], str] = {}  # the names of the adapters that the server has loaded
        with socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        self.root = f"http://127.0.0.1:{port}"
        options = shlex.split(os.environ.get(f"SKILLMIX_{launch.provider.upper()}_OPTIONS", ""))
        adapters = ("--enable-lora", "--max-lora-rank", str(launch.rank)) if launch.rank else ()
        command = [*launch.command, "--host", "127.0.0.1", "--port", str(port), *adapters, *options]
        # The server's environment has its own packages, and the server does not need any provider's key.
        hidden = ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV")
        environment = {k: v for k, v in os.environ.items() if k not in hidden and not k.endswith("_KEY")}
        logs = cache_folder() / "servers"
        logs.mkdir(parents=True, exist_ok=True)
        for old in logs.glob("*.log"):  # left by processes that were killed
            if time.time() - old.stat().st_mtime > 7 * 24 * 3600:
                old.unlink(missing_ok=True)
        with NamedTemporaryFile(prefix=f"{launch.provider}-", suffix=".log", dir=logs, delete=False) as log:
            self.log = Path(log.name)
            self._process = subprocess.Popen(
                [sys.executable, "-I", _CHILD, "guard", *command],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                env={**environment, "VLLM_ALLOW_RUNTIME_LORA_UPDATING": "1"},
                start_new_session=True,
            )

    @property
    def is_running(self) -> bool:
        """Whether the server's process is running."""
        return self._process.poll() is None

    def failed(self, what: str) -> UserError:
        """Return an error whose hint shows the last lines of the server's log."""
        lines = self.log.read_text(encoding="utf-8", errors="replace").splitlines()
        shown = "".join(f"\n  {MASK.line(line)}" for line in lines[-15:])
        return UserError(f"The {self.launch.provider} server {what}.", hint=f"Its log, {self.log}, ends with:{shown}")

    async def wait(self, say: Callable[[str], None]) -> None:
        """Wait until the server answers, and report progress; raise an error if it ends or takes too long."""
        begun = said = time.monotonic()
        async with self._endpoint("", timeout=5) as health:
            while not isinstance(await health.get("/health"), bytes):
                now = time.monotonic()
                if not self.is_running:
                    raise self.failed("ended while it was starting")
                if now - begun > _LONGEST_START:
                    raise self.failed(f"has not answered for {_LONGEST_START:.0f} s")
                if now - said > 60:
                    said = now
                    say(f"{self.launch.provider} is starting, {now - begun:.0f} s so far; its log is {self.log}")
                await asyncio.sleep(0.25)
        say(f"{self.launch.provider} answers after {time.monotonic() - begun:.0f} s")

    async def name_of(self, adapter: tuple[str, FileStates] | None) -> str:
        """Load an adapter if necessary, and return its name in requests, or the base's name for None."""
        if adapter is None:
            return _SERVED
        if adapter not in self._adapters:
            name = f"adapter-{len(self._adapters) + 1}"
            body = {"lora_name": name, "lora_path": adapter[0]}
            async with self._endpoint("/v1", timeout=600) as loader:
                made = await loader.change("POST", "/load_lora_adapter", json=body)
            if not isinstance(made, bytes):
                raise self.failed(f"did not load the adapter {adapter[0]}")
            self._adapters[adapter] = name
        return self._adapters[adapter]

    def _endpoint(self, path: str, *, timeout: float) -> "aclosing[Endpoint]":
        from skillmix.models.servers.http import Endpoint  # imported late, because importing aiohttp is slow

        return aclosing(Endpoint(Server(self.root + path, None, None, is_own=False), headers={}, timeout=timeout))

    def stop(self) -> None:
        """End the server with all its processes, and delete its log unless the server had crashed."""
        assert self._process.stdin is not None
        was_running = self.is_running
        with suppress(OSError):
            self._process.stdin.close()
        try:
            self._process.wait(15)
        except subprocess.TimeoutExpired:
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
        if was_running:
            self.log.unlink(missing_ok=True)


class _Servers:
    """The server of this process; there is at most one, because servers share the machine's GPUs."""

    def __init__(self) -> None:
        self._server: _ManagedServer | None = None
        self.blocks = 0

    async def ready(self, launch: _Launch, say: Callable[[str], None]) -> _ManagedServer:
        """Return a server that is ready: the running server if it fits, otherwise a new one."""
        if self._server is None or not self._server.is_running or not self._server.launch.fits(launch):
            await asyncio.to_thread(self.stop)
            self._server = _ManagedServer(launch)
            await self._server.wait(say)
        return self._server

    def stop(self) -> None:
        """End the server, if one is running, to free its memory."""
        server, self._server = self._server, None
        if server is not None:
            server.stop()

    @contextmanager
    def keeping(self) -> Iterator[None]:
        """Keep the server running between uses inside this block; outside a block, the server ends with its model."""
        self.blocks += 1
        try:
            yield
        finally:
            self.blocks -= 1
            if not self.blocks:
                self.stop()


SERVERS: Final = _Servers()


class ManagedModel(Model):
    """A model whose server is started at the first call."""

    def __init__(self, spec: ModelSpec, options: ModelOptions) -> None:
        self._spec = spec
        self._options = options
        self._concurrency = options.concurrency or _CONCURRENCY[spec.provider]

    @property
    def limits(self) -> Limits:
        """The maximum number of calls in flight."""
        return Limits(in_process=True, in_flight=self._concurrency)

    async def probe(self) -> CallProblem | None:
        """Look for the program and the files, and check that an adapter fits its base, without starting the server."""
        launch = await asyncio.to_thread(_launch_of, self._spec, self._concurrency)
        if launch.adapter is not None:
            checkpoint = checkpoint_of(self._spec)
            if checkpoint.bytes() <= _QUICKLY_HASHED:
                await asyncio.to_thread(checkpoint.check_adapters)
        return None

    async def serve(self, requests: AsyncIterator[Request]) -> AsyncIterator[tuple[Request, Outcome]]:
        """Answer requests concurrently; if the server dies, raise an error with the end of its log."""
        from skillmix.models.servers.protocols import OpenAIModel

        first = await anext(requests, None)
        if first is None:
            return
        launch = await asyncio.to_thread(_launch_of, self._spec, self._concurrency)
        server = await SERVERS.ready(launch, self._options.say)
        name = await server.name_of(launch.adapter)
        spec = ModelSpec("openai", name, f"{server.root}/v1")
        model = OpenAIModel(spec, ModelOptions(self._concurrency, self._options.timeout, say=self._options.say))

        async def all_requests() -> AsyncIterator[Request]:
            yield first
            async for request in requests:
                yield request

        try:
            async for request, outcome in model.serve(all_requests()):
                if isinstance(outcome, CallProblem) and not server.is_running:
                    raise server.failed("ended while it was generating text")
                yield request, outcome
        finally:
            await model.close()

    async def close(self) -> None:
        """Keep the server for its next use in a run; outside a run, end it."""
        if not SERVERS.blocks:
            await asyncio.to_thread(SERVERS.stop)
