"""`vllm:MODEL[+ADAPTER]` and `llamacpp:FILE.gguf[+ADAPTER.gguf]`: servers that skillmix starts, calls and stops.

A server runs in a separate environment, because the packages of vLLM conflict with ours. It is started at the first
call, and called like any OpenAI-compatible server. Inside a run, the server waits for the next step that uses it until
another model, a training run or the end of the run stops it. A guard process ends the server however skillmix ends.
"""

import asyncio
import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from shutil import which
from socket import socket
from tempfile import NamedTemporaryFile
from typing import Final

from skillmix.calls import CallProblem, Limits, Outcome, Request
from skillmix.errors import UserError
from skillmix.files import json_object
from skillmix.models.bundled import cache_folder
from skillmix.models.checkpoints import ADAPTER, Checkpoint, FileStates, checkpoint_of
from skillmix.models.servers.keys import Server
from skillmix.models.servers.masking import MASK
from skillmix.models.specs import ModelOptions, ModelSpec

_Say = Callable[[str], None]
_CHILD: Final = str(Path(__file__).with_name("server_guard.py"))
_SERVED: Final = "skillmix"
"""The name of a server's model in requests."""
_CONCURRENCY: Final = {"vllm": 256, "llamacpp": 8}
_CONTEXT: Final = 4096
"""Tokens of a prompt and its reply, for each parallel call to llama.cpp."""
_LONGEST_START: Final = 3600.0
"""The most seconds that a start may take; weights may have to be downloaded."""
_PAUSE: Final = 0.25
_GRACE: Final = 15.0
"""Seconds that the guard has to end a server."""
_QUIET: Final = 60.0
"""Seconds between two lines about a server that is starting."""
_LOG_KEPT: Final = 7 * 24 * 3600.0
_LINES_SHOWN: Final = 15
_RANKS: Final = (8, 16, 32, 64, 128, 256, 320, 512)
"""The maximum ranks of adapters that can be set for vLLM."""
_QUICKLY_HASHED: Final = 2 << 30
"""The most bytes of weights that a probe hashes, to compare them with the weights that an adapter was trained on."""


@dataclass(frozen=True, slots=True)
class _Launch:
    """The settings with which a server is started; launches that are equal share one server."""

    provider: str
    command: tuple[str, ...]
    files: FileStates
    """The state of the weight files; a model that was trained again needs a new server."""
    rank: int = 0
    """The largest rank of adapters that the server can load while it runs; 0 for none."""
    adapter: tuple[str, FileStates] | None = field(default=None, compare=False)
    """The folder of the adapter to call, for a server that loads adapters while it runs."""

    def fits(self, other: "_Launch") -> bool:
        """Return whether a server with this launch can do the work of another launch."""
        same = (self.provider, self.command, self.files) == (other.provider, other.command, other.files)
        return same and self.rank >= other.rank


def _program(provider: str) -> list[str]:
    """Find the command of a server from `SKILLMIX_VLLM` or `SKILLMIX_LLAMACPP`, on the path, or through uvx."""
    name, package = {"vllm": ("vllm", "vllm"), "llamacpp": ("llama-server", "xllamacpp")}[provider]
    variable = f"SKILLMIX_{provider.upper()}"
    own = os.environ.get(variable)
    if own:
        place = Path(own).expanduser()
        programs = [place / "bin" / name, place / "bin" / "python"] if place.is_dir() else [place]
        for program in programs:
            if os.access(program, os.X_OK) and program.is_file():
                is_bare = program.name == "python"
                return [str(program), *((_CHILD, package) if is_bare and provider == "llamacpp" else ())]
        raise UserError(
            f"{variable} is {own}, but {name} is not there.",
            hint=f"Set it to the program, or to the environment folder in which {package} is installed.",
        )
    if found := which(name):
        return [found]
    if uvx := which("uvx"):
        return [uvx, "--from", package, *((name,) if name == package else ("python", _CHILD, package))]
    raise UserError(
        f"{provider}: models need {name}, and it is not on this machine.",
        hint=f"Install uv, which fetches it; or install {package} into a separate environment and set {variable} to "
        "that folder.",
    )


def _launch_of(spec: ModelSpec, concurrency: int) -> _Launch:
    """Determine how to start a model's server; missing files raise errors."""
    if spec.provider == "llamacpp":
        named = [Path(name).expanduser() for name in spec.name.split("+")]
        for file in named:
            if not file.is_file():
                raise UserError(f"There is no file {file}.", hint="Write llamacpp:FILE.gguf, with a path to the file.")
        states = tuple((str(f.resolve()), f.stat().st_size, f.stat().st_mtime_ns, f.stat().st_ino) for f in named)
        model, *adapters = [place for place, _, _, _ in states]
        sizes = ("--parallel", str(concurrency), "--ctx-size", str(_CONTEXT * concurrency))
        # Sampling settings come only from the request.
        plain = ("--top-k", "0", "--top-p", "1", "--min-p", "0", "--repeat-penalty", "1")
        lora = [part for adapter in adapters for part in ("--lora", adapter)]
        command = (*_program("llamacpp"), "--model", model, "--alias", _SERVED, *sizes, *plain, *lora)
        return _Launch(spec.provider, command, states)
    checkpoint = checkpoint_of(spec)
    if len(checkpoint.adapters) > 1:
        raise UserError(
            f"{spec} has {len(checkpoint.adapters)} adapters, but vLLM applies only one.",
            hint="Merge the first one into a checkpoint: skillmix merge.",
        )
    tokenizer = ("--tokenizer", str(checkpoint.tokenizer.resolve())) if checkpoint.tokenizer != checkpoint.base else ()
    served = ("--served-model-name", _SERVED, "--generation-config", "vllm", "--load-format", "safetensors")
    command = (*_program("vllm"), "serve", str(checkpoint.base.resolve()), *served, *tokenizer)
    files = Checkpoint(checkpoint.base).file_states()
    if not checkpoint.adapters:
        return _Launch(spec.provider, command, files)
    (folder,) = checkpoint.adapters
    config = json_object((folder / ADAPTER).read_bytes(), source=str(folder / ADAPTER), hint="Train or fetch it again.")
    rank = next((rank for rank in _RANKS if rank >= config.get("r", 8)), _RANKS[-1])
    return _Launch(spec.provider, command, files, rank, (str(folder.resolve()), Checkpoint(folder).file_states()))


class _ManagedServer:
    """A running server."""

    def __init__(self, launch: _Launch) -> None:
        self.launch = launch
        self.loaded: dict[tuple[str, FileStates], str] = {}
        """The names of the adapters that it has loaded."""
        with socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        self.root = f"http://127.0.0.1:{port}"
        options = shlex.split(os.environ.get(f"SKILLMIX_{launch.provider.upper()}_OPTIONS", ""))
        adapters = ("--enable-lora", "--max-lora-rank", str(launch.rank)) if launch.rank else ()
        command = [*launch.command, "--host", "127.0.0.1", "--port", str(port), *adapters, *options]
        # Another environment has its own packages, and a server does not need any provider's key.
        hidden = ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV")
        environment = {k: v for k, v in os.environ.items() if k not in hidden and not k.endswith("_KEY")}
        logs = cache_folder() / "servers"
        logs.mkdir(parents=True, exist_ok=True)
        for old in logs.glob("*.log"):  # left by processes that were killed
            if time.time() - old.stat().st_mtime > _LOG_KEPT:
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
        """Return whether the process is running."""
        return self._process.poll() is None

    def failed(self, what: str) -> UserError:
        """Return an error with the end of the server's log, and keep the log."""
        lines = self.log.read_text(encoding="utf-8", errors="replace").splitlines()
        shown = "".join(f"\n  {MASK.line(line)}" for line in lines[-_LINES_SHOWN:])
        return UserError(f"The server of {self.launch.provider}: {what}.", hint=f"Its log, {self.log}, ends:{shown}")

    async def wait(self, say: _Say) -> None:
        """Wait until the server answers."""
        from skillmix.models.servers.http import Endpoint  # here, because importing aiohttp is slow

        begun = said = time.monotonic()
        health = Endpoint(Server(self.root, None, None, is_own=False), headers={}, timeout=5)
        try:
            while not isinstance(await health.get("/health"), bytes):
                if not self.is_running:
                    raise self.failed("it ended while it started")
                if time.monotonic() - begun > _LONGEST_START:
                    raise self.failed(f"it has not answered for {_LONGEST_START:.0f} s")
                if time.monotonic() - said > _QUIET:
                    said = time.monotonic()
                    say(f"{self.launch.provider} is starting, {said - begun:.0f} s so far; its log is {self.log}")
                await asyncio.sleep(_PAUSE)
        finally:
            await health.close()
        say(f"{self.launch.provider} answers after {time.monotonic() - begun:.0f} s")

    async def name_of(self, adapter: tuple[str, FileStates] | None) -> str:
        """Load an adapter if necessary, and return its name in requests, or the base's name for None."""
        if adapter is None:
            return _SERVED
        if adapter not in self.loaded:
            from skillmix.models.servers.http import Endpoint

            name = f"adapter-{len(self.loaded) + 1}"
            loader = Endpoint(Server(f"{self.root}/v1", None, None, is_own=False), headers={}, timeout=600)
            try:
                body = {"lora_name": name, "lora_path": adapter[0]}
                made = await loader.change("POST", "/load_lora_adapter", json=body)
            finally:
                await loader.close()
            if not isinstance(made, bytes):
                raise self.failed(f"it did not load the adapter {adapter[0]}")
            self.loaded[adapter] = name
        return self.loaded[adapter]

    def stop(self) -> None:
        """End the server with all its processes; its log is no longer needed."""
        assert self._process.stdin is not None
        was_running = self.is_running
        with suppress(OSError):
            self._process.stdin.close()
        try:
            self._process.wait(_GRACE)
        except subprocess.TimeoutExpired:
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
        if was_running:
            self.log.unlink(missing_ok=True)


class _Servers:
    """The server of this process; there is at most one, because there is only one GPU or set of GPUs."""

    def __init__(self) -> None:
        self._server: _ManagedServer | None = None
        self.blocks = 0

    async def ready(self, launch: _Launch, say: _Say) -> _ManagedServer:
        """Return a server that answers: the present server if it fits, otherwise a new one."""
        if self._server is None or not self._server.is_running or not self._server.launch.fits(launch):
            await asyncio.to_thread(self.stop)
            self._server = _ManagedServer(launch)
            await self._server.wait(say)
        return self._server

    def stop(self) -> None:
        """End the server, if there is one, because something else may need the memory."""
        server, self._server = self._server, None
        if server is not None:
            server.stop()

    @contextmanager
    def keeping(self) -> Iterator[None]:
        """Let a server wait for its next use inside this block; without a block, the server ends with its model."""
        self.blocks += 1
        try:
            yield
        finally:
            self.blocks -= 1
            if not self.blocks:
                self.stop()


SERVERS: Final = _Servers()


class ManagedModel:
    """A model whose server is started at the first call."""

    def __init__(self, spec: ModelSpec, options: ModelOptions) -> None:
        self._spec = spec
        self._options = options
        self._concurrency = options.concurrency or _CONCURRENCY[spec.provider]
        self.limits = Limits(in_process=True, in_flight=self._concurrency)
        """The calls in flight."""

    async def probe(self) -> CallProblem | None:
        """Look for the program and the files, and check that adapters match their base; do not start the server."""
        launch = await asyncio.to_thread(_launch_of, self._spec, self._concurrency)
        if launch.adapter is not None:
            checkpoint = checkpoint_of(self._spec)
            if checkpoint.bytes() <= _QUICKLY_HASHED:
                await asyncio.to_thread(checkpoint.check_adapters)
        return None

    async def serve(self, requests: AsyncIterator[Request]) -> AsyncIterator[tuple[Request, Outcome]]:
        """Answer requests, many at a time; if the server dies, raise an error with the end of its log."""
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
                    raise server.failed("it ended while it wrote")
                yield request, outcome
        finally:
            await model.close()

    async def close(self) -> None:
        """Let the server wait for its next use, or end it outside of a run."""
        if not SERVERS.blocks:
            await asyncio.to_thread(SERVERS.stop)
