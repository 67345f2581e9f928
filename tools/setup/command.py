"""Run a set-up on this computer."""

import argparse
import ctypes
import fcntl
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO

from tools.setup.plan import Disk, Places, size
from tools.setup.progress import ProgressLine, megabytes
from tools.setup.steps import Answer, Setup, SetupError, refuse_other_folder

_TEMPORARY = "skillmix-setup-"


@dataclass(frozen=True, slots=True)
class ThisComputer:
    """The real effects."""

    places: Places
    stream: TextIO
    temporary: Path
    """A folder of our own in the temporary folder: its size shows how far pip is, and it is removed after a stop."""
    lock: int
    """Held by pip as well, so that a pip that outlives a killed set-up is waited for."""
    is_linux: bool = sys.platform == "linux"

    def say(self, text: str) -> None:
        """Print a text."""
        self.stream.write(f"{text}\n")
        self.stream.flush()

    def disk(self, folder: Path) -> Disk:
        """Return the disk of a folder, or of the folder it will be made in."""
        while not folder.exists():
            folder = folder.parent
        return Disk(folder.stat().st_dev, shutil.disk_usage(folder).free // 1_000_000)

    def megabytes(self, folder: Path) -> int:
        """Return the size of a folder."""
        return megabytes(folder)

    def has_gpu(self) -> bool:
        """Return whether the driver of an NVIDIA GPU is here."""
        if Path("/proc/driver/nvidia/version").exists():
            return True
        try:
            ctypes.CDLL("libcuda.so.1")
        except OSError:
            return shutil.which("nvidia-smi") is not None and not self.ask(["nvidia-smi", "-L"]).status
        return True

    def ask(self, command: Sequence[str]) -> Answer:
        """Run a short command."""
        try:
            done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False)
        except OSError as error:
            return Answer(127, str(error))
        return Answer(done.returncode, done.stdout.decode(errors="replace"))

    def work(self, title: str, commands: Sequence[Sequence[str]]) -> Answer:
        """Run long commands until one fails: their output goes to the log, a line of progress to the terminal."""
        line, start, before = ProgressLine(self.stream, time.monotonic), time.monotonic(), self._installed()
        fetched: list[int] = []

        def progress() -> str:
            fetched[-1] = max(fetched[-1], self._fetched())  # it shrinks when pip cleans up
            seconds, installed = time.monotonic() - start, max(0, self._installed() - before)
            return f"{title}: {seconds:.0f} s, {size(sum(fetched))} fetched, {size(installed)} installed"

        answer = Answer(0, "")
        for command in commands:
            fetched.append(0)
            answer = self._logged(command, lambda: line.show(progress()))
            if answer.status:
                line.end(f"{title}: failed")
                return answer
        line.end(progress())
        return answer

    def _logged(self, command: Sequence[str], meanwhile: Callable[[], None]) -> Answer:
        file = self.places.venv / "setup.log"
        with file.open("ab") as log:
            log.write(f"\n$ {' '.join(command)}\n".encode())
            log.flush()
            begin = log.tell()
            with self._started(command, log.fileno()) as process:
                while process.poll() is None:
                    looked = time.monotonic()
                    meanwhile()
                    pause = max(1.0, 4 * (time.monotonic() - looked))  # looking may take at most a fifth of the time
                    with suppress(subprocess.TimeoutExpired):
                        process.wait(pause)
        return Answer(process.returncode, file.read_bytes()[begin:].decode(errors="replace"))

    def _fetched(self) -> int:
        """Count the folders of pip's downloads, and not the files beside them, which are copies for its cache."""
        return sum(megabytes(path) for path in self.temporary.iterdir() if path.is_dir())

    def _installed(self) -> int:
        return megabytes(self.places.venv) + megabytes(self.places.model_cache)

    @contextmanager
    def _started(self, command: Sequence[str], log: int) -> Iterator[subprocess.Popen[bytes]]:
        environment = {**os.environ, "TMPDIR": str(self.temporary)}
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=environment, pass_fds=[self.lock]
        )
        try:
            yield process
        finally:
            if process.poll() is None:
                process.terminate()
                with suppress(subprocess.TimeoutExpired):
                    process.wait(5)
                process.kill()
                process.wait()


def model_cache() -> Path:
    """Return the folder that `skillmix.models.bundled.cache_folder` names; skillmix is not installed yet."""
    if own := os.environ.get("SKILLMIX_CACHE"):
        return Path(own).expanduser().absolute()
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser().absolute() / "skillmix"


def temporary_folder() -> Path:
    """Return the folder for downloads; a TMPDIR that does not exist yet is made, not passed over."""
    if own := os.environ.get("TMPDIR"):
        try:
            Path(own).mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise SetupError(f"TMPDIR={own} cannot be made: {error.strerror}.", "Name another folder.") from None
    return Path(tempfile.gettempdir())


@contextmanager
def alone(venv: Path, stream: TextIO) -> Iterator[int]:
    """Wait until no other set-up of the same virtual environment is running."""
    made = not venv.exists()
    venv.mkdir(parents=True, exist_ok=True)
    lock = os.open(venv / ".setup.lock", os.O_CREAT | os.O_RDWR)
    try:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            stream.write(f"waiting for another set-up of {venv}\n")
            stream.flush()
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield lock
    finally:
        os.close(lock)
        if made and not (venv / "pyvenv.cfg").exists():  # refused before anything was made
            shutil.rmtree(venv, ignore_errors=True)


@contextmanager
def own_temporary_folder(venv: Path, parent: Path) -> Iterator[Path]:
    """Make a folder for downloads, and remove it; one that a killed set-up left behind is removed first."""
    note = venv / ".downloads"
    if note.exists():
        left_over = Path(note.read_text(encoding="utf-8"))
        if left_over.name.startswith(_TEMPORARY) and not left_over.is_symlink():
            shutil.rmtree(left_over, ignore_errors=True)
    folder = Path(tempfile.mkdtemp(prefix=_TEMPORARY, dir=parent))
    note.write_text(str(folder), encoding="utf-8")
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        note.unlink(missing_ok=True)


def set_up(goal: str, *, venv: Path, torch: str) -> None:
    """Set up a virtual environment on this computer."""
    refuse_other_folder(venv)
    places = Places(venv=venv, temporary=temporary_folder(), pip_cache=None, model_cache=model_cache())
    with alone(venv, sys.stdout) as lock, own_temporary_folder(venv, places.temporary) as temporary:
        computer = ThisComputer(places, sys.stdout, temporary, lock)
        start = time.monotonic()
        if Setup(goal=goal, project=Path.cwd(), torch=torch, places=places, computer=computer).run():
            computer.say(f"{venv} is ready after {time.monotonic() - start:.0f} s; it holds {size(megabytes(venv))}")


def _stop(number: int, _: object) -> None:
    raise KeyboardInterrupt(number)


def main() -> None:
    """Read the arguments, set up, and turn problems into messages."""
    parser = argparse.ArgumentParser(prog="tools.setup", description=__doc__)
    parser.add_argument("goal", choices=["run", "test", "docs"])
    parser.add_argument("--venv", type=Path, default=Path(".venv"))
    parser.add_argument("--torch", default="torch==2.13.0")
    arguments = parser.parse_args()
    if not arguments.torch.strip():
        parser.error("TORCH is empty")
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _stop)
    try:
        set_up(arguments.goal, venv=arguments.venv, torch=arguments.torch)
    except SetupError as error:
        sys.exit(f"error: {error}\nhint: {error.hint}")
    except OSError as error:
        sys.exit(
            f"error: The set-up failed: {error}\nhint: Are the folders writable, and is there room on their disks?"
        )
    except KeyboardInterrupt:
        sys.stderr.write("\nstopped; the same command goes on from here\n")
        sys.exit(130)
