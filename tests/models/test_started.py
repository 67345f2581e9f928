"""Servers that skillmix starts: used again, ended whatever happens, and shown with their log when they fail."""

import asyncio
import os
import subprocess
import sys
import time
from pathlib import Path
from signal import SIGKILL

import pytest

from skillmix.calls import Outcome, Reply
from skillmix.errors import UserError
from skillmix.models.servers.started import SERVERS, require_server
from skillmix.models.specs import open_model, parse_spec, provider_of
from tests.models.stub import ask, request

PROGRAM = Path(__file__).with_name("stub_program.py")


@pytest.fixture(autouse=True)
def notes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The stub's notes; it is both programs, and a key of a provider is in the environment."""
    folder = tmp_path / "notes"
    folder.mkdir()
    for variable in ("SKILLMIX_VLLM", "SKILLMIX_LLAMACPP"):
        monkeypatch.setenv(variable, str(PROGRAM))
    monkeypatch.setenv("SKILLMIX_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("STUB_NOTES", str(folder))
    monkeypatch.setenv("OPENAI_API_KEY", "sk-0123456789abcdef")
    return folder


@pytest.fixture
def gguf(tmp_path: Path) -> str:
    file = tmp_path / "model.gguf"
    file.write_bytes(b"GGUF")
    return f"llamacpp:{file}"


def noted(notes: Path, name: str) -> list[str]:
    file = notes / name
    return file.read_text(encoding="utf-8").splitlines() if file.exists() else []


def answers(spec: str, count: int = 1) -> list[Outcome]:
    model = open_model(parse_spec(spec))
    return [outcome for _, outcome in asyncio.run(ask(model, *map(request, range(count))))]


def is_alive(pid: str) -> bool:
    status = Path(f"/proc/{pid}/stat")
    return status.exists() and status.read_text().rpartition(")")[2].split()[0] != "Z"


def wait_until_ended(notes: Path) -> None:
    pids = noted(notes, "pids")
    assert len(pids) >= 2
    deadline = time.monotonic() + 20
    while any(map(is_alive, pids)):
        assert time.monotonic() < deadline, "processes of the server are left over"
        time.sleep(0.05)


def test_a_server_answers_and_ends_with_its_model(gguf: str, notes: Path) -> None:
    (reply,) = answers(gguf)

    assert isinstance(reply, Reply)
    assert reply.text == "Answer: a text of skillmix."
    wait_until_ended(notes)
    assert not list((notes.parent / "cache" / "servers").iterdir()), "the log of a server that did its work is gone"


def test_decoding_comes_from_requests_and_no_key_reaches_the_server(gguf: str, notes: Path) -> None:
    answers(gguf)

    (start,) = noted(notes, "starts")
    assert "--top-k 0 --top-p 1 --min-p 0 --repeat-penalty 1" in start
    assert "--host 127.0.0.1" in start
    (variables,) = noted(notes, "variables")
    assert "OPENAI_API_KEY" not in variables.split()


def test_options_of_the_user_come_last(gguf: str, notes: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SKILLMIX_LLAMACPP_OPTIONS", "--threads 1 --chat-template-file 'my file'")

    answers(gguf)

    (start,) = noted(notes, "starts")
    assert start.endswith("--threads 1 --chat-template-file my file")


def test_a_run_keeps_a_server_for_its_next_step_and_stops_it_for_another_model(
    gguf: str, notes: Path, tmp_path: Path
) -> None:
    (tmp_path / "other.gguf").write_bytes(b"GGUF2")

    with SERVERS.keeping():
        answers(gguf)
        answers(gguf, 2)
        assert len(noted(notes, "starts")) == 1
        first = noted(notes, "pids")
        answers(f"llamacpp:{tmp_path / 'other.gguf'}")
        assert len(noted(notes, "starts")) == 2
        assert not any(map(is_alive, first))
    wait_until_ended(notes)


def test_weights_that_changed_get_a_new_server(gguf: str, notes: Path) -> None:
    with SERVERS.keeping():
        answers(gguf)
        Path(gguf.removeprefix("llamacpp:")).write_bytes(b"GGUF, trained again")
        answers(gguf)

    assert len(noted(notes, "starts")) == 2


def test_training_stops_the_server_that_waits(gguf: str, notes: Path) -> None:
    with SERVERS.keeping():
        answers(gguf)
        SERVERS.stop()
        wait_until_ended(notes)


def test_a_server_that_does_not_start_is_an_error_with_its_log(gguf: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STUB_FAULT", "start")

    with pytest.raises(UserError, match="ended while it was starting") as caught:
        answers(gguf)

    assert "no kernel for this GPU" in str(caught.value.hint)


def test_a_server_that_dies_ends_the_run_with_its_log_and_without_keys(
    gguf: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STUB_FAULT", "dies")

    with pytest.raises(UserError, match="ended while it was generating text") as caught:
        for _ in range(20):
            answers(gguf, 4)

    assert "out of memory with" in str(caught.value.hint)
    assert "0123456789abcdef" not in str(caught.value.hint)


def test_a_killed_process_leaves_no_server(gguf: str, notes: Path) -> None:
    program = (
        "import asyncio, sys, time\n"
        "from skillmix.models.servers.started import SERVERS\n"
        "from tests.models.test_started import answers\n"
        "with SERVERS.keeping():\n"
        f"    answers({gguf!r})\n"
        "    print('ready', flush=True)\n"
        "    time.sleep(60)\n"
    )
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, env=dict(os.environ)) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        assert all(map(is_alive, noted(notes, "pids")))
        process.send_signal(SIGKILL)
    wait_until_ended(notes)


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("llamacpp:nowhere.gguf", "There is no file nowhere.gguf"),
        ("vllm:nowhere", "There is no checkpoint in nowhere"),
    ],
)
def test_missing_files_are_found_by_the_probe(spec: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        asyncio.run(open_model(parse_spec(spec)).probe())


def test_a_program_that_is_not_there_is_found_by_the_probe(gguf: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SKILLMIX_LLAMACPP", "/nowhere/llama")
    with pytest.raises(UserError, match="there is no llama-server there"):
        asyncio.run(open_model(parse_spec(gguf)).probe())

    monkeypatch.delenv("SKILLMIX_LLAMACPP")
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(UserError, match="need the program llama-server") as caught:
        asyncio.run(open_model(parse_spec(gguf)).probe())
    assert "SKILLMIX_LLAMACPP" in str(caught.value.hint)


def test_a_dry_run_reports_a_missing_file_and_a_missing_program(gguf: str, monkeypatch: pytest.MonkeyPatch) -> None:
    require_server(parse_spec(gguf))
    with pytest.raises(UserError, match=r"There is no file nowhere\.gguf"):
        require_server(parse_spec("llamacpp:nowhere.gguf"))

    monkeypatch.delenv("SKILLMIX_VLLM")
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(UserError, match="need the program vllm"):
        require_server(parse_spec("vllm:org/name"))


def test_an_environment_is_named_by_its_folder(
    gguf: str, notes: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    programs = tmp_path / "env" / "bin"
    programs.mkdir(parents=True)
    (programs / "llama-server").symlink_to(PROGRAM)
    monkeypatch.setenv("SKILLMIX_LLAMACPP", str(tmp_path / "env"))

    answers(gguf)

    assert len(noted(notes, "starts")) == 1


def adapter_of(folder: Path, rank: int) -> Path:
    folder.mkdir()
    (folder / "adapter_config.json").write_text(f'{{"r": {rank}}}', encoding="utf-8")
    return folder


def test_adapters_of_one_base_share_a_server(tmp_path: Path, notes: Path) -> None:
    base = tmp_path / "base"
    base.mkdir()
    (base / "config.json").write_text("{}", encoding="utf-8")
    one, two, large = (adapter_of(tmp_path / f"rank-{number}", r) for number, r in enumerate((8, 4, 20)))

    with SERVERS.keeping():
        texts = [answers(f"vllm:{base}+{folder}") for folder in (one, two, one)]
        base_text = answers(f"vllm:{base}")
        answers(f"vllm:{base}+{large}")

    assert [reply.text.split()[-1] for (reply,) in texts if isinstance(reply, Reply)] == [
        "adapter-1.",
        "adapter-2.",
        "adapter-1.",
    ]
    assert isinstance(base_text[0], Reply)
    assert base_text[0].text.endswith("skillmix.")
    first, second = noted(notes, "starts")
    assert "--enable-lora --max-lora-rank 8" in first
    assert "--enable-lora --max-lora-rank 32" in second
    assert "--load-format safetensors" in first
    assert noted(notes, "adapters") == [str(one), str(two), str(large)]


def test_an_adapter_that_the_server_refuses_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STUB_FAULT", "adapter")
    base = tmp_path / "base"
    base.mkdir()
    (base / "config.json").write_text("{}", encoding="utf-8")

    with pytest.raises(UserError, match="did not load the adapter"):
        answers(f"vllm:{base}+{adapter_of(tmp_path / 'adapter', 8)}")


def test_started_models_take_turns_and_can_be_trained_from_a_folder() -> None:
    assert provider_of("vllm:m").has_checkpoint
    assert not provider_of("vllm:m").is_engine
    assert provider_of("vllm:m").is_in_process
    assert not provider_of("llamacpp:m").has_checkpoint
