"""Each step says where its time went, and its run keeps the figures."""

import asyncio
import json
import time
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest
import yaml
from aiohttp import web

from skillmix.calls import Outcome, Request
from skillmix.commands import main
from skillmix.datasets.writing.decided_texts import DecidedTexts
from skillmix.models import specs
from skillmix.models.scripted import ScriptedModel
from skillmix.runs.run import new_run
from skillmix.runs.seconds import step_meter
from skillmix.runs.seconds.device_meter import DeviceMeter
from skillmix.runs.seconds.kept_seconds import KeptSeconds, StepSeconds
from skillmix.runs.seconds.step_clock import StepClock
from skillmix.runs.seconds.step_meter import StepMeter, metered_step, seconds_line
from skillmix.steps.run import run_experiment, train_steps
from skillmix.steps.step_kind import RunResult
from tests.datasets.writing.ledgers import KeysDecided
from tests.hostile.replies import ANSWER, grades
from tests.models.stub import chat, serving

DATASET = {"name": "d", "stage": "dataset", "writer": "one", "graders": ["judge"], "k": [1], "target": 5}
JOINED = {"name": "all", "stage": "dataset", "of": ["d"]}
EVALUATE: dict[str, Any] = {
    "name": "eval",
    "stage": "evaluate",
    "students": ["one", "two"],
    "graders": ["judge"],
    "settings": ["train"],
    "k": [1],
    "combinations": 4,
    "generations": 2,
}
REPORT = {"name": "report", "stage": "report"}


def run(folder: Path, *steps: dict[str, Any], **more: Any) -> RunResult:
    student = {"model": "scripted:student?skill=0.9"}
    document = {
        "name": "timed",
        "catalog": "verifiable",
        "students": {"one": student, "two": student},
        "graders": {"judge": {"model": "scripted:grader", "rounds": 1}},
        "steps": list(steps or (DATASET, JOINED, EVALUATE)),
    } | more
    path = folder / "timed.yaml"
    path.write_text(yaml.safe_dump(document), encoding="utf-8")
    return run_experiment(path)


def kept(folder: Path) -> dict[str, StepSeconds]:
    return KeptSeconds(folder / "runs" / "timed").by_step()


def entries(folder: Path, step: str) -> int:
    document = json.loads((folder / "runs/timed/seconds.json").read_text(encoding="utf-8"))
    return len(document["steps"][step])


def test_each_step_ends_with_a_line_and_its_parts_add_up_to_its_wall_time(
    in_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    started = time.monotonic()
    result = run(in_folder)
    wall = time.monotonic() - started

    steps = kept(in_folder)
    assert list(steps) == ["d", "all", "eval"]
    assert {"writing", "grading", "saving", "reading"} <= steps["d"].parts.keys()
    assert steps["all"].parts.keys() == {"saving", "reading"}
    assert {"writing", "grading"} <= steps["eval"].parts.keys()
    assert sum(step.total for step in steps.values()) < wall
    lines = capsys.readouterr().err.splitlines()
    ends = [
        lines.index(next(line for line in lines if line.startswith(f"{name}: ") and " s" in line)) for name in steps
    ]
    assert ends == sorted(ends)
    assert any(line == seconds_line("d", steps["d"]) for line in lines)
    assert result.is_complete


def test_scripted_and_served_students_have_no_device_share(in_folder: Path) -> None:
    def handler(body: dict[str, Any]) -> web.Response:
        return chat(grades(body["messages"][-1]["content"]) if body["model"] == "grader" else ANSWER)

    async def served() -> None:
        async with serving(handler) as stub:
            students = {name: {"model": f"openai:{name}@{stub.address}"} for name in ("one", "two")}
            graders = {"judge": {"model": f"openai:grader@{stub.address}", "rounds": 1}}
            await asyncio.to_thread(run, in_folder, EVALUATE, students=students, graders=graders)

    asyncio.run(served())

    assert kept(in_folder)["eval"].device is None
    assert kept(in_folder)["eval"].parts["writing"] > 0
    assert main(["report", "timed", "--no-figures"]) == 0
    [row] = json.loads((in_folder / "runs/timed/report/tables/where-the-time-went.json").read_text(encoding="utf-8"))
    assert (row["step"], row["device"], row["share"]) == ("eval", "–", None)


def test_a_step_that_stopped_and_was_resumed_adds_its_parts(in_folder: Path) -> None:
    assert run(in_folder, EVALUATE, budget={"max_calls": 9}).stopped
    first = kept(in_folder)["eval"]
    assert run(in_folder, EVALUATE).is_complete

    both = kept(in_folder)["eval"]
    assert entries(in_folder, "eval") == 2
    assert all(both.parts[part] >= seconds for part, seconds in first.parts.items())
    assert both.total > first.total


def test_a_step_that_fails_keeps_what_it_took(in_folder: Path) -> None:
    folder = in_folder / "runs/timed"
    folder.mkdir(parents=True)
    (folder / "experiment.yaml").touch()
    with pytest.raises(RuntimeError), metered_step(new_run("timed"), "d", is_here=False) as clock:
        clock.begin("writing")
        time.sleep(0.01)
        raise RuntimeError

    assert kept(in_folder)["d"].parts["writing"] > 0


def test_a_killed_step_has_kept_what_it_took_until_shortly_before(
    in_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(step_meter, "_KEEP_EVERY_S", 0.01)
    (in_folder / "runs/timed").mkdir(parents=True)
    (in_folder / "runs/timed/experiment.yaml").touch()
    meter = StepMeter(new_run("timed"), "d", StepClock(), None)
    meter.start()
    try:
        deadline = time.monotonic() + 10
        while not kept(in_folder) and time.monotonic() < deadline:
            time.sleep(0.01)

        assert kept(in_folder)["d"].total > 0
    finally:
        meter.stop()


def test_a_finished_step_keeps_its_figures_and_its_bytes(
    in_folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("skillmix.report.contents.FIGURES", ())
    run(in_folder, DATASET, EVALUATE, REPORT)
    folder = in_folder / "runs/timed"
    before = {file: file.read_bytes() for file in folder.rglob("*") if file.is_file() and file.name != "manifest.json"}
    capsys.readouterr()
    result = run(in_folder, DATASET, EVALUATE, REPORT)

    assert result.taken == {"d", "eval", "report"}
    assert " s writing" not in capsys.readouterr().err
    assert {file: file.read_bytes() for file in before} == before
    assert main(["report", "timed"]) == 0
    pages = {file: content for file, content in before.items() if "report" in file.parts}
    assert {file: file.read_bytes() for file in pages} == pages


def test_seconds_change_nothing_but_the_table_of_seconds(
    in_folder: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    run(in_folder, DATASET, JOINED)
    first = {file.name: file.read_bytes() for file in (in_folder / "runs/timed/d/dataset").iterdir()}
    monkeypatch.chdir(tmp_path_factory.mktemp("other"))
    monkeypatch.setattr(KeptSeconds, "keep", lambda *_: None)
    run(Path.cwd(), DATASET, JOINED)

    assert {file.name: file.read_bytes() for file in Path("runs/timed/d/dataset").iterdir()} == first


def test_grading_ends_even_if_conversations_are_left_undecided() -> None:
    now = [0.0]
    clock = StepClock(lambda: now[0])
    nothing: Any = None
    with DecidedTexts(nothing, "writer", nothing, ledger=KeysDecided(), clock=clock) as decided:
        decided.add(("combination", 0))
        now[0] += 2
    now[0] += 5

    assert clock.seconds() == {"grading": 2.0, "reading": 5.0}


def test_a_report_over_a_run_without_figures_has_no_table_of_seconds(in_folder: Path) -> None:
    run(in_folder, EVALUATE)
    (in_folder / "runs/timed/seconds.json").unlink()
    assert main(["report", "timed", "--no-figures"]) == 0

    assert not list((in_folder / "runs/timed/report/tables").glob("where-the-time-went.*"))
    page = (in_folder / "runs/timed/report/index.html").read_text(encoding="utf-8")
    assert "#time" not in page and "Where the time went" not in page


def test_status_prints_where_the_time_went(in_folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run(in_folder, EVALUATE)
    capsys.readouterr()
    assert main(["status", "timed"]) == 0

    assert capsys.readouterr().out.splitlines()[-1].startswith("eval: ")


class SlowStart(ScriptedModel):
    """A scripted student that takes a moment before its first reply, as a local model does."""

    startup = SimpleNamespace(importing=0.05, loading=0.1, compiling=0.2)

    async def serve(self, requests: AsyncIterator[Request]) -> AsyncIterator[tuple[Request, Outcome]]:
        """Answer after a while."""
        is_first = True
        async for request, outcome in super().serve(requests):
            if is_first:
                await asyncio.sleep(0.4)
                is_first = False
            yield request, outcome


def test_the_start_of_a_local_model_counts_as_loading_and_compiling(in_folder: Path) -> None:
    def opened(spec: Any, options: Any) -> Any:
        return SlowStart(spec) if "student" in str(spec) else specs.open_model(spec, options)

    with mock.patch("skillmix.runs.calling.open_model", opened):
        run(in_folder, {**EVALUATE, "students": ["one"]})

    parts = kept(in_folder)["eval"].parts
    assert parts["loading"] == pytest.approx(0.15)
    assert parts["compiling"] == pytest.approx(0.2)
    assert parts["writing"] > 0


def test_a_training_says_what_it_read_trained_validated_and_saved(
    in_folder: Path, small_model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    turns = [{"role": "user", "content": "Write."}, {"role": "assistant", "content": "Answer: a text of some words."}]
    rows = [{"messages": [{**turns[0], "content": f"Write {n}."}, turns[1]]} for n in range(12)]
    (in_folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    step = {"name": "m", "stage": "train", "base": "base", "data": ["./rows.jsonl"], "steps": 4, "batch": 2}
    document = {
        "name": "timed",
        "students": {"base": {"model": f"local:{small_model}"}},
        "steps": [{**step, "validation_share": 0.3, "validate_every": 2, "checkpoint_every": 2}],
    }
    (in_folder / "timed.yaml").write_text(yaml.safe_dump(document), encoding="utf-8")
    train_steps(in_folder / "timed.yaml")

    seconds = kept(in_folder)["m"]
    assert seconds.parts.keys() == {"saving", "validating", "training", "loading", "reading"}
    assert seconds.device is not None and seconds.device.device == "CPU"
    assert 0 < seconds.device.share <= 1
    [line] = [line for line in capsys.readouterr().err.splitlines() if "worked in" in line]
    assert line.startswith("m: ") and "the CPU worked in" in line


def test_the_first_steps_beyond_the_pace_of_later_ones_compile() -> None:
    pytest.importorskip("torch", reason="the extra `local` is not installed")
    from skillmix.training.loop import CompileSeconds

    seconds = CompileSeconds()
    for number in range(5):
        seconds.add(tokens=100, seconds=9.0 if number == 0 else 1.0)
    assert seconds.estimate() == 0.0  # nothing to compare with
    for _ in range(9):
        seconds.add(tokens=200, seconds=2.0)

    assert seconds.estimate() == pytest.approx(8.0)


def test_a_meter_samples_the_device_while_a_step_runs(in_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(step_meter, "_SAMPLE_EVERY_S", 0.01)
    (in_folder / "runs/timed").mkdir(parents=True)
    (in_folder / "runs/timed/experiment.yaml").touch()
    samples: list[int] = []
    monkeypatch.setattr(DeviceMeter, "sample", lambda self: samples.append(1))
    with metered_step(new_run("timed"), "d", is_here=True):
        deadline = time.monotonic() + 10
        while len(samples) < 2 and time.monotonic() < deadline:
            time.sleep(0.01)

    assert len(samples) >= 2
