"""Every file of examples/ runs as it is, except for sizes and for the server that one of them needs."""

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import pytest
import yaml

from skillmix.commands import main
from tests.models.stub import chat, serving

ROOT: Final = Path(__file__).parents[1]
EXAMPLES: Final = sorted(file.stem for file in (ROOT / "examples").glob("*.yaml"))
SMALLER: Final = {
    "evaluate-served": ["steps.eval.combinations=2"],
    "own-grader": ["steps.eval.combinations=5"],
    "data-for-trl": ["steps.pairs.target={1: 20, 2: 20}", "steps.check.combinations=3"],
    "partitions": ["steps.eval.combinations=12"],
    "laboratory": [
        "steps.singles.target=60",
        "steps.composed.target=60",
        "matrix.pairs=[10, 50]",
        "steps.model.steps=3",
        "steps.eval.combinations=3",
    ],
}
"""What a test changes so that an example takes seconds."""


@pytest.fixture(autouse=True)
def in_a_checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    monkeypatch.chdir(tmp_path)


def test_there_are_five_and_each_is_shown_on_the_first_page() -> None:
    page = (ROOT / "docs/index.md").read_text(encoding="utf-8")

    assert len(EXAMPLES) == 5
    assert sorted(SMALLER) == EXAMPLES
    for name in EXAMPLES:
        assert f"examples/{name}.yaml" in page
        assert f"figures/example-{name}.png" in page
        assert (ROOT / f"docs/figures/example-{name}.png").is_file()


@pytest.mark.parametrize("name", EXAMPLES)
def test_an_example_is_short_and_says_how_to_run_it(name: str) -> None:
    text = (ROOT / f"examples/{name}.yaml").read_text(encoding="utf-8")

    assert text.count("\n") <= 30
    assert f"#   skillmix run examples/{name}.yaml" in text
    assert yaml.safe_load(text)["name"] == name


@pytest.mark.parametrize("name", [name for name in EXAMPLES if name != "evaluate-served"])
def test_an_example_ends_with_a_report(name: str) -> None:
    changes = [word for setting in SMALLER[name] for word in ("--set", setting)]

    assert main(["run", f"examples/{name}.yaml", *changes]) == 0
    assert Path(f"runs/{name}/report/index.html").is_file()
    if name == "own-grader":
        assert main(["graders", name, "--truth", "truth"]) == 0


def test_the_data_for_trl_are_conversations() -> None:
    from datasets import load_dataset

    assert main(["dataset", "examples/data-for-trl.yaml", "--set", "steps.pairs.target={1: 10, 2: 10}"]) == 0
    rows = load_dataset(
        "json", data_files="runs/data-for-trl/pairs/dataset/train.jsonl", cache_dir="cache", split="train"
    )
    assert [message["role"] for message in rows[0]["messages"]] == ["user", "assistant"]


def test_the_served_model_is_evaluated(capsys: pytest.CaptureFixture[str]) -> None:
    with a_server() as address:
        student = f"students.mistral.model=openai:mistral-7b@{address}"
        changes = ["--set", student, "--set", SMALLER["evaluate-served"][0]]
        assert main(["run", "examples/evaluate-served.yaml", *changes]) == 0

    assert main(["texts", "evaluate-served"]) == 0
    assert "The kite fell like a stone." in capsys.readouterr().out
    assert Path("runs/evaluate-served/report/index.html").is_file()


@contextmanager
def a_server() -> Iterator[str]:
    """Serve one reply to every prompt, in a thread."""
    loop = asyncio.new_event_loop()
    started: list[str] = []
    ready, end = threading.Event(), asyncio.Event()

    async def serve() -> None:
        reply = "Answer: The kite fell like a stone."
        async with serving(lambda _: chat(reply), models=["mistral-7b"], models_status=200) as stub:
            started.append(stub.address)
            ready.set()
            await end.wait()

    thread = threading.Thread(target=loop.run_until_complete, args=(serve(),))
    thread.start()
    try:
        assert ready.wait(10)
        yield started[0]
    finally:
        loop.call_soon_threadsafe(end.set)
        thread.join()
        loop.close()
