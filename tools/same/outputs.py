"""Make the outputs of one copy of the code. Every part is a folder in which commands run one after another."""

import csv
import json
import os
import re
import shlex
import shutil
import signal
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
from aiohttp import web
from tests.runs.batches.stub_provider import StubProvider, serving

from tools.same.compare import UUID

ROOT: Final = Path(__file__).parents[2]
HERE: Final = Path(__file__).parent
INPUTS: Final = HERE / "inputs"
REFERENCE: Final = ROOT.parent / "shared" / "reference"
"""The folder with records of the original code, which exists only beside some checkouts."""
SKIPPED: Final = "skipped.txt"


class Command(NamedTuple):
    """A command of skillmix: the name of its output, its words, and its standard input."""

    name: str
    words: list[str]
    text: str = ""


class Problem(Exception):
    """An error that prevents the comparison, with the reason as its message."""


class Skip(Exception):
    """An error that prevents one part on this machine."""


@dataclass(frozen=True, slots=True)
class Place:
    """A temporary folder with the code in `tree`, the outputs in `outputs` and a tiny model in `model`."""

    scratch: Path

    @property
    def tree(self) -> Path:
        """Return the copy of the repository."""
        return self.scratch / "tree"

    @property
    def outputs(self) -> Path:
        """Return the folder that contains a folder for each part."""
        return self.scratch / "outputs"

    def python(self, *words: str, cwd: Path, text: str = "") -> str:
        """Run Python with the copied code, offline, on one thread of the CPU; return its output."""
        command = [sys.executable, "-P", *words]
        done = subprocess.run(
            command, cwd=cwd, env=self._environment(), input=text, capture_output=True, encoding="utf-8", check=False
        )
        if done.returncode:
            raise Problem(f"{shlex.join(command)} ended with exit status {done.returncode}:\n{done.stderr}")
        return done.stdout

    def start(self, *words: str, cwd: Path) -> "subprocess.Popen[bytes]":
        """Start a command of skillmix that a part will kill."""
        command = [sys.executable, "-P", "-m", "skillmix", *words]
        quiet = subprocess.DEVNULL
        return subprocess.Popen(command, cwd=cwd, env=self._environment(), stdout=quiet, stderr=quiet)

    def run(self, part: str, commands: Iterable[Command], *, cwd: Path | None = None) -> None:
        """Run commands in the folder of their part, or in another folder."""
        folder = self.outputs / part
        folder.mkdir(parents=True, exist_ok=True)
        self.python(
            str(HERE / "worker.py"), str(folder / "printed"), cwd=cwd or folder, text=json.dumps(list(commands))
        )

    def printed(self, part: str, name: str) -> str:
        """Return the output of a command."""
        file = self.outputs / part / "printed" / name
        return file.read_text(encoding="utf-8") if file.exists() else ""

    def _environment(self) -> dict[str, str]:
        kept = {name: os.environ[name] for name in ("PATH", "HOME", "TMPDIR") if name in os.environ}
        return {
            **kept,
            "PYTHONPATH": str(self.tree / "src"),
            "SKILLMIX_CACHE": str(self.scratch / "cache"),
            "HF_HUB_OFFLINE": "1",
            "CUDA_VISIBLE_DEVICES": "",
            "OMP_NUM_THREADS": "1",
            "PYTHONHASHSEED": "0",  # because PEFT writes an unordered set into adapter_config.json
            "RAY_AUTH_MODE": "disabled",  # otherwise a run leaves a token in the user's home
            "LC_ALL": "C.UTF-8",
            "COLUMNS": "100",
            "TERM": "dumb",
        }


def make(place: Place, parts: Iterable[str], say: Callable[[str], None]) -> None:
    """Make the outputs of some parts; a part that cannot be made here consists of a file with the reason."""
    place.outputs.mkdir()
    _link_bundled_models(place.scratch / "cache")
    for part in parts:
        say(part)
        try:
            PARTS[part](place)
            _describe_runs(place, part)
        except Skip as reason:
            folder = place.outputs / part
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir()
            (folder / SKIPPED).write_text(f"{part}: {reason}\n", encoding="utf-8")


def _describe_runs(place: Place, part: str) -> None:
    """Write the output of commands for every run of a part, to be compared instead of the files that store the run."""
    folder = place.outputs / part
    commands = []
    # A run of `frequency` has no texts, so its frequencies.json is compared.
    runs = [path.name for path in (folder / "runs").glob("*") if not (path / "frequencies.json").exists()]
    for run in sorted(runs):
        for what in ("texts", "votes", "calls"):
            words = ["export", run, "--what", what, "--output", f"printed/run-{run}-{what}.jsonl"]
            commands.append(Command(f"run-{run}-{what}", words))
        commands.append(Command(f"run-{run}-scores", ["scores", run, "--sets", "--json"]))
        commands.append(Command(f"run-{run}-status", ["status", run, "--json"]))
    place.run(part, commands)
    for file in (folder / "printed").glob("run-*-status.json"):
        status = json.loads(file.read_text(encoding="utf-8"))
        status.pop("workers", None)  # the removed entry contains machines, processes and paces
        file.write_text(json.dumps(status, ensure_ascii=False, indent=1), encoding="utf-8")


def _link_bundled_models(cache: Path) -> None:
    """Make a separate cache that links to the user's bundled models."""
    cache.mkdir()
    own = os.environ.get("SKILLMIX_CACHE") or Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache") / "skillmix"
    models = Path(own).expanduser().absolute() / "bundled"
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
    for name in ("quickstart.yaml", "paper-mistral-7b.yaml"):
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
    """Let code grade texts that show two skills; every second text is graded for the skills of the next text."""
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
    folder = _give(place, "training", "tune.yaml", "conversations.jsonl")
    bundled = json.loads(place.python("-m", "skillmix", "models", "--json", cwd=folder))["bundled"]
    tokenizer = bundled[0]["folder"]
    if tokenizer is None:
        raise Skip(
            "the bundled model, which has the tokenizer, is not in the cache: `skillmix models --fetch` brings it"
        )
    shutil.copytree(_tiny_model(Path(tokenizer).resolve()).name, place.scratch / "model")
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
    """Run commands with unusable input: a torn journal, a damaged experiment and faulty files."""
    folder = _give(place, "mistakes", "good.yaml", "faulty.yaml", "faulty.jsonl")
    (folder / "empty.jsonl").touch()
    (folder / "broken.yaml").write_text("name: [\n", encoding="utf-8")
    _give_example(place, folder)
    names = ("demo", "torn", "binary")
    place.run("mistakes", [Command(f"made-{name}", ["import-texts", "demo.jsonl", "--run", name]) for name in names])
    # An older revision has the database in another place.
    journal = max((folder / "runs/torn").rglob("*.sqlite"), key=lambda file: file.stat().st_size)
    journal.write_bytes(journal.read_bytes()[: journal.stat().st_size // 2])
    (folder / "runs/binary/experiment.yaml").write_bytes(b"\xff\xfe\x00")
    place.run("mistakes", listed("mistakes"))


def _people(place: Place) -> None:
    """Collect votes from scripted raters, and from one more rater in a spreadsheet."""
    place.run("people", listed("people"))
    folder = place.outputs / "people"
    sheet = folder / "sheet.csv"
    with sheet.open(encoding="utf-8-sig", newline="") as stream:
        rows = list(csv.DictReader(stream))
    with (folder / "filled.csv").open("w", encoding="utf-8", newline="") as stream:
        writer = csv.DictWriter(stream, list(rows[0]))
        writer.writeheader()
        writer.writerows({**row, "vote": "110?1"[number % 5]} for number, row in enumerate(rows))
    place.run("people", listed("people-after-the-spreadsheet"))


def _calibration(place: Place) -> None:
    _give(place, "calibration", "labelled.yaml")
    place.run("calibration", listed("calibration"))


def _frequency(place: Place) -> None:
    folder = _give(place, "frequency")
    with (folder / "corpus.jsonl").open("w", encoding="utf-8") as stream:
        for row in _witnesses():
            stream.write(json.dumps({"text": row["text"]}, ensure_ascii=False) + "\n")
    place.run("frequency", listed("frequency"))


def _exchange(place: Place) -> None:
    """Export a run for other tools, and import the Inspect logs from the tests."""
    folder = _give(place, "exchange", "good.yaml")
    for log in sorted((ROOT / "tests/exchange/logs").iterdir()):
        shutil.copy(log, folder)
    place.run("exchange", listed("exchange"))
    for record in [path for path in folder.glob("shared*/**/*") if UUID.search(path.name)]:
        record.rename(record.with_name(UUID.sub("UUID", record.name)))


def _safety(place: Place) -> None:
    place.run("safety", listed("safety"))


def _batches(place: Place) -> None:
    """Make the calls of a run in batches of both shapes, in as many invocations as necessary."""
    for shape, faults in (("openai", frozenset[str]()), ("anthropic", frozenset({"anthropic"}))):
        with serving(StubProvider(faults, most_requests=1000)) as stub:
            folder = place.outputs / "batches"
            _write_served(folder, shape, shape, stub.address, {"batch": True})
            run = Command(f"{shape}-run", ["run", f"{shape}.yaml", "--no-wait", "--json"])
            place.run("batches", [run, Command(f"{shape}-open", ["status", shape, "--json"])])
            for _ in range(30):
                if not place.printed("batches", f"{shape}-run.stderr.txt").startswith("exit status 3\n"):
                    break
                place.run("batches", [run])
            bill = {"calls in batches": sorted(stub.billed.values()), "direct calls": stub.direct}
            (folder / f"{shape}-bill.json").write_text(json.dumps(bill), encoding="utf-8")


def _write_served(folder: Path, name: str, shape: str, address: str, options: dict[str, Any]) -> None:
    """Write an experiment whose models are served by a stub provider."""
    folder.mkdir(exist_ok=True)
    step = {"name": "e", "stage": "evaluate", "students": ["s"], "graders": ["g"], "settings": ["all"], "k": [1, 2]}
    document = {
        "name": name,
        "students": {"s": {"model": f"{shape}:student@{address}", **options}},
        "graders": {"g": {"model": f"{shape}:grader@{address}", "rounds": 3, "attempts": 2, **options}},
        "steps": [{**step, "combinations": 12, "generations": 1}],
    }
    (folder / f"{name}.yaml").write_text(yaml.safe_dump(document), encoding="utf-8")


def _ray(place: Place) -> None:
    if find_spec("ray") is None:
        raise Skip("Ray is not installed")
    _give(place, "ray", "data.yaml")
    place.run("ray", listed("ray"))


class KillingProvider(StubProvider):
    """A provider that kills a process with SIGKILL after a given number of calls."""

    victim: "subprocess.Popen[bytes] | None" = None
    last_call = 75

    async def direct_chat(self, request: web.Request) -> web.Response:
        """Answer a call, after killing the process if this is the last call."""
        if self.victim is not None and self.direct == self.last_call:
            self.victim.send_signal(signal.SIGKILL)
            self.victim = None
        return await super().direct_chat(request)


def _resume(place: Place) -> None:
    """Finish a run that a budget stopped, and one that was killed in the middle of a call."""
    folder = _give(place, "resume", "data.yaml")
    place.run("resume", listed("resume"))
    with serving(KillingProvider()) as stub:
        assert isinstance(stub, KillingProvider)
        _write_served(folder, "killed", "openai", stub.address, {"concurrency": 2})
        victim = stub.victim = place.start("run", "killed.yaml", cwd=folder)
        if victim.wait(300) != -signal.SIGKILL:
            raise Problem(f"The run that was to be killed ended with exit status {victim.returncode}.")
        place.run("resume", [Command("killed-run", ["run", "killed.yaml", "--json"])])
        again = stub.direct
        place.run("resume", [Command("killed-again", ["run", "killed.yaml", "--json"])])
        (folder / "bill.json").write_text(json.dumps({"calls of a third run": stub.direct - again}), encoding="utf-8")
    # The number of calls that were found depends on how many calls had no reply when the process died.
    (folder / "printed/killed-run.stderr.txt").unlink()


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
    "people": _people,
    "calibration": _calibration,
    "frequency": _frequency,
    "exchange": _exchange,
    "safety": _safety,
    "batches": _batches,
    "resume": _resume,
    "training": _training,
    "ray": _ray,
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
    """Read texts that are known to show two skills; both sides use the texts of the current tests."""
    rows: list[dict[str, Any]] = _read_yaml(_find(ROOT / "tests", "witnesses.yaml"))
    return rows


def _find(folder: Path, name: str) -> Path:
    """Find a file anywhere in a folder, because revisions may keep it in different places."""
    found = list(folder.rglob(name))
    if len(found) != 1:
        raise Problem(f"{folder} has {len(found)} files called {name}; one was expected.")
    return found[0]


def _read_yaml(path: Path) -> Any:
    return yaml.safe_load(path.read_text(encoding="utf-8"))
