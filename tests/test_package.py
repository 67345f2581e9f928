"""The wheel and the sdist: built, installed into an empty environment, and used from another folder."""

import json
import os
import re
import subprocess
import sys
import sysconfig
import tarfile
import venv
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

import skillmix

ROOT = Path(__file__).parents[1]
SMOKE = """
name: trial
catalog: verifiable
students: {writer: {model: "scripted:student?skill=0.9"}}
graders: {code: {model: "rules:"}}
steps:
  - {name: eval, stage: evaluate, students: [writer], graders: [code], k: [1, 2], settings: [train],
     combinations: 3, generations: 1}
  - {name: report, stage: report}
"""


@dataclass(frozen=True)
class Installed:
    """An environment that has the wheel and nothing of this checkout."""

    environment: Path
    folder: Path

    def run(self, *words: str) -> str:
        return call([str(self.environment / "bin" / words[0]), *words[1:]], folder=self.folder)


def call(words: Sequence[str], *, folder: Path) -> str:
    variables = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "PIP_"))}
    result = subprocess.run(words, cwd=folder, env=variables, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout


@pytest.fixture(scope="module")
def sdist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("sdist")
    call([sys.executable, "-m", "hatchling", "build", "-t", "sdist", "-d", str(folder)], folder=ROOT)
    (file,) = folder.glob("*.tar.gz")
    return file


@pytest.fixture(scope="module")
def wheel(sdist: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built from the sdist: what the sdist lacks, the wheel lacks too."""
    folder = tmp_path_factory.mktemp("wheel")
    # Python 3.11.3 and older unpack without the filter that 3.12 asks for.
    subprocess.run(["tar", "xzf", str(sdist), "-C", str(folder)], check=True)
    (source,) = folder.iterdir()
    call([sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)], folder=source)
    (file,) = folder.glob("*.whl")
    return file


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Installed:
    environment = tmp_path_factory.mktemp("environment")
    venv.create(environment, symlinks=True)
    python = str(environment / "bin" / "python")
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--python", python, "install", "-q"]
    call([*pip, "--no-index", "--no-deps", str(wheel)], folder=environment)
    # Tests have no network, so the dependencies come from this environment. A line in a .pth file adds the folder
    # alone: Python does not follow the .pth files inside it, one of which leads to this checkout.
    (packages,) = (environment / "lib").glob("python*/site-packages")
    (packages / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n", encoding="utf-8")
    return Installed(environment, tmp_path_factory.mktemp("elsewhere"))


def test_the_environment_uses_the_wheel(installed: Installed) -> None:
    path = installed.run("python", "-c", "import skillmix; print(skillmix.__file__)")

    assert Path(path.strip()).is_relative_to(installed.environment)


def test_every_resource_of_the_package_is_in_the_wheel(wheel: Path) -> None:
    tracked = call(["git", "ls-files", "src/skillmix"], folder=ROOT).split() if (ROOT / ".git").exists() else []
    if not tracked:
        pytest.skip("this is no git checkout, so nothing lists the package's files")

    with zipfile.ZipFile(wheel) as archive:
        packed = {name for name in archive.namelist() if not name.split("/")[0].endswith(".dist-info")}

    shipped = {name for name in packed if name.startswith("skillmix/data/shipped/")}
    assert packed - shipped == {name.removeprefix("src/") for name in tracked}
    assert {name.removeprefix("skillmix/data/shipped/") for name in shipped} == {
        *call(["git", "ls-files", "experiments"], folder=ROOT).split()
    }


def test_every_experiment_that_ships_is_found_by_name_from_any_folder(installed: Installed) -> None:
    names = sorted(file.stem for file in (ROOT / "experiments").glob("*.yaml"))
    code = (
        "import sys; from skillmix.commands import main\n"
        "sys.exit(max(main(['run', name, '--dry-run', '--json']) for name in sys.argv[1:]))"
    )

    estimates = installed.run("python", "-c", code, *names)

    assert "smoke" in names and "quickstart" in names
    assert estimates.count('"role": "student"') >= len(names)


def test_an_experiment_that_ships_runs_by_name(installed: Installed) -> None:
    few = ["--set", "steps.eval.combinations=2", "--set", "steps.eval.k=[1]"]

    scores = json.loads(installed.run("skillmix", "run", "smoke", *few, "--json"))

    assert {score["student"] for score in scores} == {"weak", "strong"}
    assert (installed.folder / "runs/smoke/report/index.html").is_file()


def test_commands_that_read_resources_work(installed: Installed) -> None:
    assert "104 skills" in installed.run("skillmix", "catalog", "paper")
    assert "56 skills" in installed.run("skillmix", "catalog", "verifiable")
    assert "metaphor" in installed.run("skillmix", "prompts", "--skills", "metaphor", "--topic", "Sewing")
    assert installed.run("skillmix", "models")


def test_an_experiment_runs_and_ends_with_a_report(installed: Installed) -> None:
    (installed.folder / "trial.yaml").write_text(SMOKE, encoding="utf-8")

    scores = json.loads(installed.run("skillmix", "run", "trial.yaml", "--json"))

    assert {score["k"] for score in scores} == {1, 2}
    assert (installed.folder / "runs/trial/report/index.html").is_file()
    assert (installed.folder / "runs/trial/report/figures").is_dir()


def test_the_sdist_holds_what_its_tests_need(sdist: Path) -> None:
    with tarfile.open(sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}

    for name in ("Makefile", "README.md", "CONTRIBUTING.md", "docs/commands.md", "experiments/quickstart.yaml"):
        assert name in names
    assert "tests/test_package.py" in names


def test_the_metadata_have_the_version_and_a_page_without_relative_links(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        metadata = archive.read(name).decode()

    fields, _, page = metadata.partition("\n\n")
    assert f"\nVersion: {skillmix.__version__}\n" in fields
    assert "Description-Content-Type: text/markdown" in fields
    assert page.startswith("# skillmix")
    assert not re.findall(r"\]\((?!https://)", page)
