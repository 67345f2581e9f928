"""The set-up announces, checks the room, goes on after a stop, and explains failures; no test installs anything."""

import ast
import doctest
import io
import os
import re
import subprocess
import sys
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest
from tools.setup import failures, plan
from tools.setup.command import ThisComputer, alone, model_cache, own_temporary_folder
from tools.setup.failures import failure_of
from tools.setup.left_out import write_left_out
from tools.setup.plan import Build, Disk, Places
from tools.setup.progress import ProgressLine, megabytes
from tools.setup.steps import Answer, Setup, SetupError, make_venv

from skillmix.models.bundled import SOURCES, cache_folder

ROOT = Path(__file__).parents[2]
CPU_INDEX = "torch (2.15.0)\nAvailable versions: 2.15.0, 2.13.0+cpu, 2.13.0, 2.12.0\n"
PUBLIC_INDEX = "torch (2.15.0)\nAvailable versions: 2.15.0, 2.13.0, 2.12.0\n"
OFFLINE = (
    "WARNING: Retrying (Retry(total=4)) after connection broken by 'NewConnectionError': /simple/torch/\n"
    "ERROR: Could not find a version that satisfies the requirement {0} (from versions: none)\n"
    "ERROR: No matching distribution found for {0}\n"
)
REQUIRES = ["sympy>=1.13.3", "cuda-toolkit[cublas,cusolver]==13.0.3", "triton==3.7.1", "optree; extra == 'optree'"]


@dataclass
class FakeComputer:
    """Runs nothing; makes the files that the real commands would make."""

    folder: Path
    free_mb: dict[str, int] = field(default_factory=dict)
    gpu: bool = False
    index: Answer = field(default_factory=lambda: Answer(0, PUBLIC_INDEX))
    pip: Answer = field(default_factory=lambda: Answer(0, ""))
    torch_loads: list[bool] = field(default_factory=list)
    venv_mb: int = 0
    is_linux: bool = True
    said: list[str] = field(default_factory=list)
    asked: list[str] = field(default_factory=list)
    worked: list[str] = field(default_factory=list)

    def say(self, text: str) -> None:
        self.said.append(text)

    def disk(self, folder: Path) -> Disk:
        name = folder.name if folder.name in self.free_mb else "all"
        return Disk(hash(name), self.free_mb.get(name, 100_000))

    def megabytes(self, folder: Path) -> int:
        return self.venv_mb

    def has_gpu(self) -> bool:
        return self.gpu

    def ask(self, command: Sequence[str]) -> Answer:
        words = " ".join(command)
        self.asked.append(words)
        venv = self.folder / ".venv"
        if "-m venv" in words:
            (venv / "bin").mkdir(parents=True, exist_ok=True)
            (venv / "bin" / "python").touch()
            (venv / "bin" / "pip").touch()
        if "pip --version" in words:
            return Answer(0 if (venv / "bin" / "pip").exists() else 1, "")
        if "version_info" in words:
            return Answer(0 if (venv / "bin" / "python").exists() else 127, "")
        if "pip index" in words:
            return self.index
        if "importlib.metadata" in words:
            return Answer(0, "\n".join(REQUIRES))
        if "import torch" in words:
            loads = self.torch_loads.pop(0) if self.torch_loads else True
            return Answer(0, "") if loads else Answer(1, "ImportError: libcusolver.so.12")
        return Answer(0, str(self.folder / "pip-cache") if "cache dir" in words else "")

    def work(self, title: str, commands: Sequence[Sequence[str]]) -> Answer:
        self.worked += [" ".join(command) for command in commands]
        if "models" in commands[0]:
            ready = self.folder / "cache" / "bundled" / "smollm2-135m-1"
            ready.mkdir(parents=True)
            (ready / "model.safetensors").touch()
            return Answer(0, "")
        return self.pip

    @property
    def calls_of_pip(self) -> list[str]:
        return [words for words in self.asked + self.worked if "-m pip" in words]


def setup(computer: FakeComputer, *, goal: str = "run", torch: str = "torch==2.13.0") -> Setup:
    folder = computer.folder
    (folder / "pyproject.toml").touch()
    places = Places(folder / ".venv", folder / "tmp", None, folder / "cache")
    return Setup(goal=goal, project=folder, torch=torch, places=places, computer=computer)


def installs(computer: FakeComputer) -> list[str]:
    return [words for words in computer.worked if "pip install" in words]


def test_two_free_gigabytes_are_refused_before_any_call_of_pip(tmp_path: Path) -> None:
    computer = FakeComputer(tmp_path, free_mb={"all": 2000})

    with pytest.raises(SetupError) as refused:
        setup(computer).run()

    assert computer.calls_of_pip == [] and computer.worked == []
    assert not (tmp_path / ".venv").exists()
    assert re.search(r"2\.\d GB needed, 2\.0 GB free", str(refused.value))
    assert "nothing was downloaded" in str(refused.value)
    assert "make run VENV=FOLDER TMPDIR=FOLDER SKILLMIX_CACHE=FOLDER" in refused.value.hint


def test_room_for_the_cpu_build_alone_is_refused_once_pip_says_that_it_would_take_the_cuda_build(
    tmp_path: Path,
) -> None:
    computer = FakeComputer(tmp_path, free_mb={"all": 6000})

    with pytest.raises(SetupError, match=r"6\.0 GB free"):
        setup(computer).run()
    assert computer.worked == []

    computer.index = Answer(0, CPU_INDEX)
    setup(computer).run()
    assert len(installs(computer)) == 2


@pytest.mark.parametrize(
    ("folder", "purpose", "variable"),
    [
        ("tmp", "downloads in progress", "TMPDIR"),
        (".venv", "the virtual environment", "VENV"),
        ("cache", "the bundled model", "SKILLMIX_CACHE"),
    ],
)
def test_each_disk_is_checked_on_its_own(tmp_path: Path, folder: str, purpose: str, variable: str) -> None:
    computer = FakeComputer(tmp_path, free_mb={folder: 100})

    with pytest.raises(SetupError, match=rf"100 MB free, for:\n    {purpose}") as refused:
        setup(computer).run()

    assert computer.calls_of_pip == []
    assert refused.value.hint.endswith(f"make run {variable}=FOLDER")


def test_a_full_disk_of_pips_cache_turns_the_cache_off(tmp_path: Path) -> None:
    computer = FakeComputer(tmp_path, free_mb={"pip-cache": 10})

    setup(computer).run()

    assert all("--no-cache-dir" in words for words in installs(computer))


def test_the_downloads_are_announced_first(tmp_path: Path) -> None:
    computer = FakeComputer(tmp_path, index=Answer(0, CPU_INDEX), pip=Answer(1, "ERROR: stop here"))

    with pytest.raises(SetupError, match="stop here"):
        setup(computer, goal="test").run()

    text = computer.said[0]
    assert text.startswith(f"Setting up {tmp_path / '.venv'}, once.")
    assert re.search(r"torch 2.13.0, CPU build +\d+ MB +\d+ MB", text)
    assert re.search(r"together, about +\d+ MB +3\.\d GB", text)


def test_a_second_call_installs_and_prints_nothing(tmp_path: Path) -> None:
    computer = FakeComputer(tmp_path)
    assert setup(computer, goal="test").run()
    computer.worked.clear()
    computer.said.clear()

    assert not setup(computer, goal="test").run()

    assert computer.worked == computer.said == []


def test_the_site_needs_neither_torch_nor_the_bundled_model(tmp_path: Path) -> None:
    computer = FakeComputer(tmp_path, free_mb={"all": 1000})

    assert setup(computer, goal="docs").run()
    first, second = list(computer.worked), setup(computer, goal="docs").run()

    assert [words.rpartition(" ")[2] for words in first] == [f"{tmp_path}[docs]"]
    assert not second and computer.worked == first
    assert not any("torch" in words for words in computer.asked + first)
    assert re.search(r"together, about +100 MB +453 MB", computer.said[0])


def test_a_changed_pyproject_updates_the_packages_and_not_torch(tmp_path: Path) -> None:
    computer = FakeComputer(tmp_path)
    setup(computer).run()
    computer.worked.clear()
    computer.free_mb = {"all": 500}
    again = setup(computer)
    (tmp_path / "pyproject.toml").write_text("[project]\n", encoding="utf-8")

    again.run()

    assert [words.rpartition(" ")[2] for words in computer.worked] == [f"{tmp_path}[train]"]
    assert computer.said[-1] == f"pyproject.toml or TORCH changed: updating {tmp_path / '.venv'}"


def test_an_interrupted_set_up_goes_on_with_the_stage_that_it_stopped_in(tmp_path: Path) -> None:
    class Interrupted(FakeComputer):
        def work(self, title: str, commands: Sequence[Sequence[str]]) -> Answer:
            if "--editable" in commands[0]:
                raise KeyboardInterrupt
            return super().work(title, commands)

    with pytest.raises(KeyboardInterrupt):
        setup(Interrupted(tmp_path)).run()
    computer = FakeComputer(tmp_path, venv_mb=4000, free_mb={"all": 2600})

    setup(computer).run()

    assert len(installs(computer)) == 1 and "--editable" in computer.worked[0]
    assert computer.said[0].startswith(f"Going on with {tmp_path / '.venv'}, which holds 4.0 GB.")
    assert "torch" not in computer.said[0]


@pytest.mark.parametrize(("has_python", "options"), [(True, ""), (False, "--clear ")])
def test_a_half_made_virtual_environment_is_repaired(tmp_path: Path, has_python: bool, options: str) -> None:
    (tmp_path / ".venv" / "bin").mkdir(parents=True)
    if has_python:
        (tmp_path / ".venv" / "bin" / "python").touch()
    computer = FakeComputer(tmp_path)

    setup(computer).run()

    assert computer.said[0].endswith("is incomplete: repairing it")
    assert f"{sys.executable} -m venv {options}{tmp_path / '.venv'}" in computer.asked
    assert "--editable" in installs(computer)[-1]


@pytest.mark.parametrize("name", ["thesis.tex", ".bashrc"])
def test_a_folder_with_other_things_is_never_cleared(tmp_path: Path, name: str) -> None:
    (tmp_path / ".venv").mkdir()
    (tmp_path / ".venv" / name).touch()
    computer = FakeComputer(tmp_path)

    with pytest.raises(SetupError, match=f"not a virtual environment: it holds {name}"):
        setup(computer).run()

    assert computer.asked == []


def test_no_network_is_explained_before_an_installation_starts(tmp_path: Path) -> None:
    computer = FakeComputer(tmp_path, index=Answer(1, OFFLINE.format("torch")))

    with pytest.raises(SetupError) as failed:
        setup(computer).run()

    assert str(failed.value) == "Cannot reach the package index: torch 2.13.0 is missing."
    assert "Check the network" in failed.value.hint
    assert computer.worked == []


def test_an_older_pip_without_the_question_is_no_obstacle(tmp_path: Path) -> None:
    computer = FakeComputer(tmp_path, index=Answer(1, 'ERROR: unknown command "index"'))

    setup(computer).run()

    assert "CUDA build" in computer.said[0]


@pytest.mark.parametrize(
    ("output", "message"),
    [
        (OFFLINE.format("hatchling>=1.25"), "Cannot reach the package index: hatchling>=1.25 is missing."),
        ("WARNING: Retrying (x)\nReadTimeoutError", "Cannot reach the package index: torch 2.13.0 is missing."),
        (
            "WARNING: Retrying (x)\nSSLError: CERTIFICATE_VERIFY_FAILED\nNo matching distribution found for peft>=0.17",
            "Cannot trust the certificate of the package index: peft>=0.17 is missing.",
        ),
        (
            "ERROR: No matching distribution found for torch==2.13.0",
            "The package index has no torch 2.13.0 for this Python and this machine.",
        ),
        (
            "ERROR: Could not install packages due to an OSError: [Errno 28] No space left on device",
            "The disk became full during the installation of torch 2.13.0.",
        ),
        (
            "Collecting a\nWARNING: b\nERROR: Failed to build c\n[notice] A new release of pip is available",
            "The installation of torch 2.13.0 failed:\n  ERROR: Failed to build c",
        ),
    ],
)
def test_failures_of_pip_are_explained(output: str, message: str) -> None:
    failure = failure_of(output, installing="torch 2.13.0", log="setup.log")

    assert failure.message == message
    assert failure.hint


@pytest.mark.parametrize(
    ("version", "requirement", "gpu", "linux", "build"),
    [
        ("2.13.0+cpu", "torch==2.13.0", False, True, Build.CPU),
        ("2.13.0+cpu", "torch==2.13.0", True, True, Build.CPU),
        ("2.13.0", "torch==2.13.0", True, True, Build.CUDA),
        ("2.13.0", "torch==2.13.0", False, True, Build.CUDA_TRIMMED),
        ("2.15.0", "torch", False, True, Build.CUDA),
        (None, "torch==2.13.0", False, True, Build.CUDA_TRIMMED),
        ("2.13.0", "torch==2.13.0", False, False, Build.CPU),
    ],
)
def test_the_build_of_torch_depends_on_the_index_and_the_machine(
    version: str | None, requirement: str, gpu: bool, linux: bool, build: Build
) -> None:
    assert plan.build_of(version, requirement=requirement, has_gpu=gpu, is_linux=linux) is build


def test_without_a_gpu_the_parts_that_only_a_gpu_uses_are_left_out(tmp_path: Path) -> None:
    computer = FakeComputer(tmp_path)

    setup(computer).run()

    of_torch = [words for words in computer.worked if "--find-links" in words]
    folder = tmp_path / ".venv" / ".left-out"
    assert [words.rpartition(f"--find-links {folder} ")[2] for words in of_torch] == [
        "--no-deps torch==2.13.0",
        "cuda-toolkit[cublas]==13.0.3",
        "cuda-toolkit[cusolver]==13.0.3",
        "triton==3.7.1",
        "torch==2.13.0",
    ]
    assert len(list((tmp_path / ".venv" / ".left-out").glob("*.whl"))) == 2


@pytest.mark.parametrize(("gpu", "torch"), [(True, "torch==2.13.0"), (False, "torch==2.12.0 --pre")])
def test_a_gpu_or_another_torch_gets_everything(tmp_path: Path, gpu: bool, torch: str) -> None:
    computer = FakeComputer(tmp_path, gpu=gpu)

    setup(computer, torch=torch).run()

    assert computer.worked[0].endswith(f"--progress-bar off --no-deps {torch}")
    assert any(words.endswith(f"--progress-bar off {torch}") for words in computer.worked)
    assert not any("--find-links" in words for words in computer.worked)


def test_a_torch_that_does_not_load_without_the_left_out_parts_gets_them(tmp_path: Path) -> None:
    computer = FakeComputer(tmp_path, torch_loads=[False, True])

    setup(computer).run()

    assert ["--find-links" in words for words in installs(computer)] == [True] * 5 + [False] * 6


def test_a_torch_that_does_not_load_at_all_is_an_error(tmp_path: Path) -> None:
    computer = FakeComputer(tmp_path, torch_loads=[False, False])

    with pytest.raises(SetupError, match=r"does not load:\n  ImportError: libcusolver"):
        setup(computer).run()


def test_a_gpu_that_was_added_later_gets_the_left_out_parts(tmp_path: Path) -> None:
    setup(FakeComputer(tmp_path)).run()
    (tmp_path / ".venv/lib/python3.11/site-packages/triton-3.7.1+left.out.dist-info").mkdir(parents=True)
    computer = FakeComputer(tmp_path, gpu=True)

    setup(computer).run()

    assert any("pip uninstall --yes triton nvidia-cusolver" in words for words in computer.asked)
    assert computer.worked[0].endswith("torch==2.13.0") and "--find-links" not in computer.worked[0]


def test_left_out_packages_are_wheels_that_pip_installs(tmp_path: Path) -> None:
    write_left_out(tmp_path / "wheels", {"triton": "3.7.1"})

    (wheel,) = (tmp_path / "wheels").iterdir()
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-index", "--disable-pip-version-check"]
    subprocess.run(
        [*command, "--target", str(tmp_path / "t"), f"--find-links={wheel.parent}", "triton==3.7.1"], check=True
    )

    assert sorted(path.name for path in (tmp_path / "t").iterdir()) == ["triton-3.7.1+left.out.dist-info"]
    assert zipfile.ZipFile(wheel).testzip() is None


def test_the_torch_of_the_makefile_is_the_one_that_the_plan_knows() -> None:
    found = re.search(r"^TORCH \?= (\S+)$", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)

    assert found and found[1] in plan.GPU_ONLY


def test_folders_on_one_disk_are_added_up(tmp_path: Path) -> None:
    places = Places(tmp_path / "venv", tmp_path / "tmp", tmp_path / "pip", tmp_path / "cache")
    stages = plan.stages("run", Build.CPU)
    needed = plan.needs(stages, of=stages, places=places, venv_mb=0, model_is_ready=True)
    total = sum(need.mb for need in needed)

    (short,) = plan.shortages(needed, lambda _: Disk(1, total - 1))

    assert short.needed_mb == total and len(short.needs) == 3
    assert plan.shortages(needed, lambda _: Disk(1, total)) == []


def test_the_cache_and_the_download_are_those_of_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    assert plan.MODEL_COST.download == SOURCES["smollm2-135m"].download_mb
    for name, value in [("SKILLMIX_CACHE", "~/models"), ("XDG_CACHE_HOME", "/var/cache/me"), ("HOME", "/home/me")]:
        for other in ("SKILLMIX_CACHE", "XDG_CACHE_HOME"):
            monkeypatch.delenv(other, raising=False)
        monkeypatch.setenv(name, value)
        assert model_cache() == cache_folder()


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_progress_is_one_line_on_a_terminal_and_a_line_every_15_seconds_elsewhere() -> None:
    times = [0.0]
    terminal, file = Terminal(), io.StringIO()
    lines = [ProgressLine(terminal, lambda: times[0]), ProgressLine(file, lambda: times[0])]
    for second in range(40):
        times[0] = second
        for line in lines:
            line.show(f"{second} s")

    assert terminal.getvalue().count("\r") == 40 and "\n" not in terminal.getvalue()
    assert file.getvalue() == "15 s\n30 s\n"


def real_computer(tmp_path: Path, stream: io.StringIO) -> ThisComputer:
    venv, temporary = tmp_path / "venv", tmp_path / "tmp"
    for folder in (venv, temporary):
        folder.mkdir()
    places = Places(venv, temporary, None, tmp_path / "cache")
    return ThisComputer(places, stream, temporary, os.open(venv / ".setup.lock", os.O_CREAT))


def test_a_long_command_is_logged_and_its_megabytes_are_counted(tmp_path: Path) -> None:
    stream = io.StringIO()
    computer = real_computer(tmp_path, stream)
    program = "import os, pathlib, time; print('noise')\n"
    program += "folder = pathlib.Path(os.environ['TMPDIR'], 'pip-unpack'); folder.mkdir()\n"
    program += "(folder / 'wheel').write_bytes(bytes(3_000_000)); time.sleep(1.5)"

    answer = computer.work("installing it", [[sys.executable, "-c", program]])

    assert answer == Answer(0, "noise\n")
    assert re.fullmatch(r"installing it: \d s, 3 MB fetched, 0 MB installed\n", stream.getvalue())
    assert "noise" in (tmp_path / "venv" / "setup.log").read_text(encoding="utf-8")


def test_a_stop_ends_the_command_that_is_running(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    computer = real_computer(tmp_path, io.StringIO())
    program = f"import os, pathlib, time; pathlib.Path({str(tmp_path / 'pid')!r}).write_text(str(os.getpid()))\n"
    program += "time.sleep(60)"

    def stop(*_: object) -> None:
        if (tmp_path / "pid").exists():
            raise KeyboardInterrupt

    monkeypatch.setattr(ProgressLine, "show", stop)
    with pytest.raises(KeyboardInterrupt):
        computer.work("waiting", [[sys.executable, "-c", program]])

    with pytest.raises(ProcessLookupError):
        os.kill(int((tmp_path / "pid").read_text(encoding="utf-8")), 0)


def test_the_disk_of_a_folder_that_does_not_exist_yet_is_that_of_its_parent(tmp_path: Path) -> None:
    computer = real_computer(tmp_path, io.StringIO())

    disk = computer.disk(tmp_path / "not" / "yet")

    assert disk.identity == tmp_path.stat().st_dev and disk.free_mb > 0
    assert replace(disk, free_mb=0) == replace(computer.disk(tmp_path), free_mb=0)


def test_downloads_of_a_killed_set_up_are_removed(tmp_path: Path) -> None:
    left_over = tmp_path / "skillmix-setup-old"
    left_over.mkdir()
    (tmp_path / ".downloads").write_text(str(left_over), encoding="utf-8")

    with own_temporary_folder(tmp_path, tmp_path) as folder:
        assert not left_over.exists() and folder.is_dir()

    assert not folder.exists() and not (tmp_path / ".downloads").exists()


def test_a_refused_set_up_leaves_no_folder(tmp_path: Path) -> None:
    with pytest.raises(SetupError), alone(tmp_path / "venv", io.StringIO()):
        raise SetupError("no room", "free some")

    assert list(tmp_path.iterdir()) == []


def test_megabytes_are_counted_in_blocks_and_links_are_not_followed(tmp_path: Path) -> None:
    for number in range(300):
        (tmp_path / str(number)).write_text("x", encoding="utf-8")
    (tmp_path / "loop").symlink_to(tmp_path)

    assert megabytes(tmp_path) == 300 * 4096 // 1_000_000
    assert megabytes(tmp_path / "absent") == 0


@pytest.mark.parametrize("file", ["__init__.py", "__main__.py"])
def test_an_older_python_can_read_the_files_that_refuse_it(file: str) -> None:
    ast.parse((ROOT / "tools" / "setup" / file).read_text(encoding="utf-8"), feature_version=(3, 6))


def test_an_older_python_is_refused_with_its_version() -> None:
    program = "import runpy, sys; sys.version_info = (3, 9, 1); runpy.run_module('tools.setup', run_name='__main__')"

    result = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=False)

    assert result.returncode == 1
    assert result.stderr.startswith("skillmix needs Python 3.11 or newer, and ")
    assert "is Python 3.9.\n" in result.stderr and "Traceback" not in result.stderr


def test_the_examples_in_the_docstrings_hold() -> None:
    for module in (failures, plan):
        result = doctest.testmod(module)
        assert result.attempted and not result.failed


@pytest.mark.parametrize(("document", "goal"), [("README.md", "run"), ("CONTRIBUTING.md", "test")])
def test_the_documents_state_the_sizes_of_the_plan(document: str, goal: str) -> None:
    text = re.sub(r"\s+", " ", (ROOT / document).read_text(encoding="utf-8"))

    for build in Build:
        costs = [plan.MODEL_COST, *(stage.cost for stage in plan.stages(goal, build))]
        download, disk = sum(cost.download for cost in costs) / 1000, sum(cost.disk for cost in costs) / 1000
        assert re.search(rf"{download:.1f} GB( \| | and (takes )?){disk:.1f} GB", text), (build, download, disk)


def test_half_a_pip_is_removed_and_what_is_installed_stays(tmp_path: Path) -> None:
    packages = tmp_path / ".venv" / "lib" / "python3.11" / "site-packages"
    for name in ("pip", "pip-23.2.1.dist-info", "torch"):
        (packages / name).mkdir(parents=True)
    (tmp_path / ".venv" / "bin").mkdir()
    (tmp_path / ".venv" / "bin" / "python").touch()
    computer = FakeComputer(tmp_path)

    make_venv(tmp_path / ".venv", computer)

    assert [path.name for path in packages.iterdir()] == ["torch"]
    assert f"{sys.executable} -m venv {tmp_path / '.venv'}" in computer.asked
    assert not any("--clear" in words for words in computer.asked)


def test_a_pip_that_outlives_its_set_up_is_waited_for(tmp_path: Path) -> None:
    stream = io.StringIO()
    with alone(tmp_path, stream) as lock:
        pip = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(1)"], pass_fds=[lock])
    assert stream.getvalue() == ""

    with alone(tmp_path, stream):
        assert pip.wait(5) == 0

    assert stream.getvalue() == f"waiting for another set-up of {tmp_path}\n"
