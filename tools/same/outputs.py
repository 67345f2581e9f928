"""Make the outputs of one copy of the code: every part is a folder in which commands run one after another."""

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final, NamedTuple

import yaml

from skillmix.models.bundled import cache_folder

ROOT: Final = Path(__file__).parents[2]
HERE: Final = Path(__file__).parent
INPUTS: Final = HERE / "inputs"
REFERENCE: Final = ROOT.parent / "shared" / "reference"
"""Records of the original code, where they lie beside a checkout."""
SKIPPED: Final = "skipped.txt"


class Command(NamedTuple):
    """A command of skillmix: the name of its output, its words, and its standard input."""

    name: str
    words: list[str]
    text: str = ""


class Problem(Exception):
    """The comparison cannot be made; the message says why."""


class Skip(Exception):
    """A part cannot be made on this machine."""


@dataclass(frozen=True, slots=True)
class Place:
    """A temporary folder: the code in `tree`, the outputs in `outputs`, a tiny model in `model`."""

    scratch: Path

    @property
    def tree(self) -> Path:
        """The copy of the repository."""
        return self.scratch / "tree"

    @property
    def outputs(self) -> Path:
        """The folder with a folder for each part."""
        return self.scratch / "outputs"

    def python(self, *words: str, cwd: Path, text: str = "") -> str:
        """Run Python with the copied code, offline, on one thread of the CPU; return what it prints."""
        command = [sys.executable, "-P", *words]
        done = subprocess.run(
            command, cwd=cwd, env=self._environment(), input=text, capture_output=True, encoding="utf-8", check=False
        )
        if done.returncode:
            raise Problem(f"{shlex.join(command)} ended with exit status {done.returncode}:\n{done.stderr}")
        return done.stdout

    def run(self, part: str, commands: Iterable[Command], *, cwd: Path | None = None) -> None:
        """Run commands in the folder of their part, or in another one."""
        folder = self.outputs / part
        folder.mkdir(parents=True, exist_ok=True)
        self.python(
            str(HERE / "worker.py"), str(folder / "printed"), cwd=cwd or folder, text=json.dumps(list(commands))
        )

    def printed(self, part: str, name: str) -> str:
        """Return what a command has printed."""
        return (self.outputs / part / "printed" / name).read_text(encoding="utf-8")

    def _environment(self) -> dict[str, str]:
        kept = {name: os.environ[name] for name in ("PATH", "HOME", "TMPDIR") if name in os.environ}
        return {
            **kept,
            "PYTHONPATH": str(self.tree / "src"),
            "SKILLMIX_CACHE": str(self.scratch / "cache"),
            "HF_HUB_OFFLINE": "1",
            "CUDA_VISIBLE_DEVICES": "",
            "OMP_NUM_THREADS": "1",
            "PYTHONHASHSEED": "0",  # PEFT writes a set into adapter_config.json
            "LC_ALL": "C.UTF-8",
            "COLUMNS": "100",
            "TERM": "dumb",
        }


def make(place: Place, parts: Iterable[str], say: Callable[[str], None]) -> None:
    """Make the outputs of some parts; a part that cannot be made here has a file with the reason."""
    place.outputs.mkdir()
    _link_bundled_models(place.scratch / "cache")
    for part in parts:
        say(part)
        try:
            PARTS[part](place)
        except Skip as reason:
            folder = place.outputs / part
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir()
            (folder / SKIPPED).write_text(f"{part}: {reason}\n", encoding="utf-8")


def _link_bundled_models(cache: Path) -> None:
    """Make a cache that has the user's bundled models and keeps everything else to itself."""
    cache.mkdir()
    models = cache_folder() / "bundled"
    if models.is_dir():
        (cache / "bundled").symlink_to(models)


def listed(part: str) -> Iterator[Command]:
    """Read the commands of a part from commands.yaml."""
    document: dict[str, dict[str, str | list[str]]] = _read_yaml(INPUTS / "commands.yaml")
    for name, given in document[part].items():
        words, text = (given, "") if isinstance(given, str) else given
        yield Command(name, shlex.split(words.replace("{tree}", "../../tree")), text)


def _reading(place: Place) -> None:
    place.run("reading", [*listed("reading"), Command("help", ["--help"])])
    names = re.findall(r"^    ([a-z-]+)", place.printed("reading", "help.txt"), re.MULTILINE)
    place.run("reading", [Command(f"help-{name}", [name, "--help"]) for name in names])


def _plans(place: Place) -> None:
    files = sorted(path.name for path in (place.tree / "experiments").glob("*.yaml"))
    commands = [Command(name, ["run", f"experiments/{name}", "--dry-run", "--json"]) for name in files]
    for name in ("self-taught.yaml", "paper-mistral-7b.yaml"):
        commands.append(Command(f"{name}-table", ["run", f"experiments/{name}", "--dry-run"]))
    place.run("plans", commands, cwd=place.tree)


def _replies(place: Place) -> None:
    """Read the golden replies of graders."""
    rows: list[dict[str, Any]] = _read_yaml(_find(ROOT / "tests", "replies.yaml"))
    folder = place.outputs / "replies"
    folder.mkdir()
    commands = []
    for row in rows:
        words = ["parse-reply", "--skills", "; ".join(row["skills"]), "--topic", row["topic"], "--json"]
        if "text" in row:
            (folder / f"{row['id']}.text").write_text(row["text"], encoding="utf-8")
            words += ["--text", f"{row['id']}.text"]
        commands.append(Command(row["id"], words, row["reply"]))
    place.run("replies", commands)


def _checkers(place: Place) -> None:
    """Let code grade texts that show two skills: every other one for the skills of the text after it, as a bad one."""
    rows = _witnesses()[::3]
    commands = []
    for number, (row, other) in enumerate(zip(rows, [*rows[1:], rows[0]], strict=True)):
        asked = other if number % 2 else row
        words = [
            "grade-text",
            "verifiable",
            "--skills",
            "; ".join(asked["skills"]),
            "--topic",
            asked["topic"],
            "--json",
        ]
        commands.append(Command(f"{number:03}", words, row["text"]))
    place.run("checkers", commands)


def _smoke(place: Place) -> None:
    place.run("smoke", listed("smoke"))


def _datasets(place: Place) -> None:
    _give(place, "datasets", "data.yaml", "graded.yaml")
    place.run("datasets", listed("datasets"))


def _training(place: Place) -> None:
    for package in ("torch", "transformers", "peft"):
        if find_spec(package) is None:
            raise Skip(f"{package} is not installed")
    folder = _give(place, "training", "tune.yaml")
    bundled = json.loads(place.python("-m", "skillmix", "models", "--json", cwd=folder))["bundled"]
    tokenizer = bundled[0]["folder"]
    if tokenizer is None:
        raise Skip(
            "the bundled model, which has the tokenizer, is not in the cache: `skillmix models --fetch` brings it"
        )
    shutil.copytree(_tiny_model(Path(tokenizer).resolve()).name, place.scratch / "model")
    rows = (place.tree / "data/self-taught/train.jsonl").read_text(encoding="utf-8").splitlines()
    (folder / "conversations.jsonl").write_text("\n".join(rows[:16]), encoding="utf-8")
    (folder / "replay.txt").write_text("The harbour is quiet in winter. " * 200, encoding="utf-8")
    place.run("training", listed("training"))


@cache
def _tiny_model(tokenizer: Path) -> TemporaryDirectory[str]:
    """Make a model for both sides of a comparison."""
    folder = TemporaryDirectory()
    subprocess.run(
        [sys.executable, "-P", HERE / "model.py", tokenizer, folder.name], stderr=subprocess.DEVNULL, check=True
    )
    return folder


def _imports(place: Place) -> None:
    folder = _give(place, "imports")
    _give_example(place, folder)
    with (folder / "witnesses.jsonl").open("w", encoding="utf-8") as stream:
        for row in _witnesses():
            stream.write(json.dumps({"student": "by-hand", **row}, ensure_ascii=False) + "\n")
    place.run("imports", listed("imports"))


def _reference(place: Place) -> None:
    if not REFERENCE.is_dir():
        raise Skip("the records of the original code (../shared/reference) are not here")
    original = _give(place, "reference") / "original"
    gpt, llama = original / "k3_s10_vdefault_r2/gpt-4", original / "k3_s10_vdefault_r1/llama2-7b-chat"
    for student, file in ((gpt, "gpt-4-round2"), (llama, "llama2-7b-chat-round1")):
        for vote in (1, 2, 3):
            graded = student / f"graded/by_gpt-4_on_text_1_{vote}_gpt"
            graded.mkdir(parents=True)
            shutil.copy(REFERENCE / f"{file}-graded-by-gpt-4.csv", graded / "records.csv")
    shutil.copy(REFERENCE / "gpt-4-round2-generations.csv", gpt / "records.csv")
    place.run("reference", listed("reference"))


def _mistakes(place: Place) -> None:
    """Give commands what they cannot use: a torn journal, a damaged experiment, faulty files."""
    folder = _give(place, "mistakes", "good.yaml", "faulty.yaml", "faulty.jsonl")
    (folder / "empty.jsonl").touch()
    (folder / "broken.yaml").write_text("name: [\n", encoding="utf-8")
    _give_example(place, folder)
    names = ("demo", "torn", "binary")
    place.run("mistakes", [Command(f"made-{name}", ["import-texts", "demo.jsonl", "--run", name]) for name in names])
    journal = folder / "runs/torn/journal/calls.sqlite"
    journal.write_bytes(journal.read_bytes()[: journal.stat().st_size // 2])
    (folder / "runs/binary/experiment.yaml").write_bytes(b"\xff\xfe\x00")
    place.run("mistakes", listed("mistakes"))


def _python(place: Place) -> None:
    folder = _give(place, "python", "evaluate.py")
    (folder / "printed.txt").write_text(place.python("evaluate.py", cwd=folder), encoding="utf-8")


PARTS: Final[dict[str, Callable[[Place], None]]] = {
    "reading": _reading,
    "plans": _plans,
    "replies": _replies,
    "checkers": _checkers,
    "mistakes": _mistakes,
    "imports": _imports,
    "reference": _reference,
    "python": _python,
    "datasets": _datasets,
    "smoke": _smoke,
    "training": _training,
}


def _give(place: Place, part: str, *files: str) -> Path:
    """Return the new folder of a part, with copies of files in it."""
    folder = place.outputs / part
    folder.mkdir()
    for file in files:
        shutil.copy(INPUTS / file, folder)
    return folder


def _give_example(place: Place, folder: Path) -> None:
    """Copy the example that ships with the package."""
    shutil.copy(_find(place.tree / "src", "demo.jsonl"), folder)


def _witnesses() -> list[dict[str, Any]]:
    """Read texts that are known to show two skills; both sides get those of the present tests."""
    rows: list[dict[str, Any]] = _read_yaml(_find(ROOT / "tests", "witnesses.yaml"))
    return rows


def _find(folder: Path, name: str) -> Path:
    """Find a file wherever it lies in a folder: it may be moved."""
    found = list(folder.rglob(name))
    if len(found) != 1:
        raise Problem(f"{folder} has {len(found)} files called {name}; one was expected.")
    return found[0]


def _read_yaml(path: Path) -> Any:
    return yaml.safe_load(path.read_text(encoding="utf-8"))
