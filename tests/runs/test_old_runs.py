"""Runs that earlier code kept in its own way open with the scores, exports and status they had then.

`tests/fixtures/old_runs` has a packed folder for each: `run.yaml`, `runs/NAME` and what the experiment needs. Beside it
is what commands said about the run when it was made. `git show f7dd9aba:tools/old_runs.py` shows how both were made.
"""

import hashlib
import json
import math
import shutil
import sqlite3
import tarfile
from collections.abc import Iterator, Sequence
from contextlib import closing, redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from skillmix.commands import main as command
from skillmix.commands.run import IN_BATCHES
from skillmix.steps.run import run_experiment
from tests.runs.batches.stub_provider import StubBatch, StubProvider, serving
from tests.runs.databases import forget_steps

FIXTURES: Final = Path(__file__).parents[1] / "fixtures/old_runs"
NAMES: Final = sorted(path.name.removesuffix(".tar.gz") for path in FIXTURES.glob("*.tar.gz"))
EXPORTS: Final = ("texts", "votes", "calls")
SENTENCES: Final = ("notes", "problem", "reason")
"""Columns with words for readers: that there are any is compared, and not which."""
LONG: Final = 80
"""Characters; a longer text is compared by its hash."""
SHARE: Final = 1e-9
IN_A_BATCH: Final = "open-batch"
REFUSED: Final = "version-1-refused"
"""Graders refused calls, which version 1 noted as final; they are failed calls, and every run asks them again."""


def unpack(name: str, folder: Path) -> None:
    """Unpack the folder of a run."""
    with tarfile.open(FIXTURES / f"{name}.tar.gz") as archive:
        if hasattr(tarfile, "data_filter"):
            archive.extractall(folder, filter="data")
        else:  # Python 3.11.2
            archive.extractall(folder)


def described(name: str) -> dict[str, Any]:
    """What commands say about a run, without a call; of a long text only a hash."""
    found: dict[str, Any] = {}
    for key, words in {"status": ["status", name], "scores": ["scores", name, "--sets"]}.items():
        found[key] = json.loads(_printed(*words, "--json"))
    for what in EXPORTS:
        _printed("export", name, "--what", what)
        lines = Path(f"runs/{name}/{what}.jsonl").read_text(encoding="utf-8").splitlines()
        found[what] = [_short(json.loads(line)) for line in lines]
    return found


def _printed(*words: str) -> str:
    with redirect_stdout(StringIO()) as out:
        assert command([*words]) == 0, words
    return out.getvalue()


def _short(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _short(one) for key, one in value.items()}
    if isinstance(value, list):
        return [_short(one) for one in value]
    if isinstance(value, str) and len(value) > LONG:
        return f"{value[:20]}… {hashlib.sha256(value.encode()).hexdigest()[:16]}"
    return value


def differences(old: Any, new: Any, path: str = "$") -> Iterator[str]:
    """Where a value is not what it was; new keys do not count."""
    if isinstance(old, dict) and isinstance(new, dict):
        yield from (f"{path}.{key} is missing" for key in old if key not in new)
        for key in old.keys() & new.keys():
            before, after = (bool(row[key]) if key in SENTENCES else row[key] for row in (old, new))
            yield from differences(before, after, f"{path}.{key}")
    elif isinstance(old, list) and isinstance(new, list):
        if len(old) != len(new):
            yield f"{path}: {len(old)} → {len(new)} values"
        for number, (before, after) in enumerate(zip(old, new, strict=False)):
            yield from differences(before, after, f"{path}[{number}]")
    elif not _is_same(old, new):
        yield f"{path}: {old!r} → {new!r}"


def _is_same(old: Any, new: Any) -> bool:
    if isinstance(old, float) and isinstance(new, float):
        return math.isclose(old, new, rel_tol=SHARE, abs_tol=SHARE)
    return type(old) is type(new) and bool(old == new)


@pytest.fixture(params=NAMES)
def name(request: pytest.FixtureRequest, in_folder: Path) -> str:
    """A run in the working folder."""
    unpack(request.param, in_folder)
    return str(request.param)


def expected(name: str) -> dict[str, Any]:
    document: dict[str, Any] = json.loads((FIXTURES / f"{name}.json").read_text(encoding="utf-8"))
    for batch in document["status"].get("batches", ()):
        batch["part"] = batch.pop("wave")  # the name of earlier versions
    return document


def test_every_kind_of_old_run_is_here() -> None:
    assert set(NAMES) >= {
        "ahead",
        "divided",
        "earlier",
        IN_A_BATCH,
        "people",
        "trained",
        "version-1",
        REFUSED,
        "version-2",
        "version-3",
    }


def test_an_old_run_says_what_it_said(name: str) -> None:
    assert list(differences(expected(name), described(name))) == []


RUN_AGAIN: Final = [
    (name, is_recorded)
    for name in NAMES
    for is_recorded in (True, False)
    # Without its record, its data set is written again, with the larger window of now.
    if name not in (IN_A_BATCH, REFUSED) and (is_recorded or name != "divided")
]


@pytest.mark.parametrize(("name", "is_recorded"), RUN_AGAIN, indirect=["name"])
def test_an_old_run_that_is_run_again_makes_no_call_and_trains_nothing(name: str, is_recorded: bool) -> None:
    if name == "trained":
        pytest.importorskip("torch", reason="the extra `local` is not installed")
    if not is_recorded:  # as after a change of the code that reads replies
        forget_steps(name)
    made = {path: path.read_bytes() for path in _products(Path("runs") / name)}

    again = run_experiment(Path("run.yaml"))

    assert again.called == 0
    assert [trained.step for trained in again.trained.values() if not trained.was_there] == []
    assert {path: path.read_bytes() for path in _products(Path("runs") / name)} == made
    assert list(differences(expected(name), described(name))) == []


@pytest.mark.parametrize("name", [REFUSED], indirect=True)
def test_what_graders_refused_in_an_old_run_is_asked_again_and_nothing_else(name: str) -> None:
    again = run_experiment(Path("run.yaml"))

    assert again.called == expected(name)["status"]["calls"]["failed"] > 0
    now = described(name)
    for call in now["calls"]:
        call["at"] = None
    then = expected(name)
    then["calls"] = [{**call, "at": None} for call in then["calls"]]
    assert list(differences(then, now)) == []


def _products(run: Path) -> Sequence[Path]:
    """The texts of data sets and the weights of models."""
    return sorted([*run.glob("*/dataset/*.jsonl"), *run.glob("*/model/*.safetensors")])


def test_an_open_batch_is_looked_at_and_nothing_is_sent_again(
    in_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    unpack(IN_A_BATCH, in_folder)
    stub = StubProvider()
    [part] = expected(IN_A_BATCH)["status"]["batches"]
    stub.batches[part["batch"]] = StubBatch(part["batch"], [], is_foreign=True)
    with serving(stub):
        _move_to(stub.address, in_folder)

        assert command(["run", "run.yaml", "--no-wait", "--json"]) == IN_BATCHES, capsys.readouterr().err

    assert (stub.direct, stub.uploads, stub.creations) == (0, 0, 0)
    assert stub.batches[part["batch"]].looks > 0
    assert list(differences(expected(IN_A_BATCH), described(IN_A_BATCH))) == []


def _move_to(address: str, folder: Path) -> None:
    """Let the run's provider be at an address where one listens."""
    models = yaml.safe_load((folder / "run.yaml").read_text(encoding="utf-8"))["students"]
    former = str(models["s"]["model"]).partition("@")[2]
    for file in (folder / "run.yaml", folder / f"runs/{IN_A_BATCH}/experiment.yaml"):
        file.write_text(file.read_text(encoding="utf-8").replace(former, address), encoding="utf-8")
    with closing(sqlite3.connect(folder / f"runs/{IN_A_BATCH}/journal/calls.sqlite")) as journal, journal:
        journal.execute("UPDATE batches SET address = replace(address, ?, ?)", (former, address))


def test_what_a_fixture_is_for_is_in_it(tmp_path: Path) -> None:
    for name in NAMES:
        unpack(name, tmp_path / name)
    runs = {name: tmp_path / name / "runs" / name for name in NAMES}

    for version in (1, 2, 3):
        with closing(sqlite3.connect(runs[f"version-{version}"] / "journal/calls.sqlite")) as journal:
            assert journal.execute("PRAGMA user_version").fetchone() == (version,)
    assert len(list((runs["divided"] / "journal").glob("calls*.sqlite"))) == 3
    events = [json.loads(line) for line in (runs["ahead"] / "journal/ahead.jsonl").read_text("utf-8").splitlines()]
    begun, tried = ({tuple(rest) for kind, *rest in events if kind == event} for event in ("begun", "tried"))
    assert tried and begun - tried
    assert list((runs["people"] / "journal").glob("human-*.sqlite"))
    assert expected(IN_A_BATCH)["status"]["calls"]["submitted"] > 0
    assert yaml.safe_load((runs["earlier"] / "earlier.yaml").read_text("utf-8"))
    assert json.loads((runs["earlier"] / "around.json").read_text("utf-8"))["eval"]
    assert list((runs["trained"] / "tune/model").glob("*.safetensors"))
    shutil.rmtree(tmp_path)


@pytest.mark.parametrize("name", NAMES)
def test_a_changed_value_is_a_difference(name: str) -> None:
    old = expected(name)
    for what in ("scores", *EXPORTS):
        for row in old[what][:1]:
            assert list(differences(old, {**old, what: [{**row, "student": "another", "key": "another"}]}))
    assert list(differences(old, {**old, "new": 1})) == []
    assert list(differences({"value": 0.5}, {"value": 0.5 + 1e-7})) == ["$.value: 0.5 → 0.5000001"]
