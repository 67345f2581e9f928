"""Whole runs with a system text and extra fields: what is sent, what is stored, and what counts as another model."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from skillmix.commands import main as command
from skillmix.runs.run import open_run
from tests.hostile.replies import ANSWER, grades
from tests.models.stub import Stub, chat, serving

HELPFUL = "You are a helpful assistant."


def handler(body: dict[str, Any]) -> Any:
    return chat(grades(body["messages"][-1]["content"]) if body["model"] == "grader" else ANSWER)


def ran(folder: Path, *, student: dict[str, Any], grader: dict[str, Any]) -> tuple[int, Stub]:
    async def main() -> tuple[int, Stub]:
        async with serving(handler) as stub:
            step = {"name": "e", "stage": "evaluate", "students": ["s"], "graders": ["g"], "settings": ["all"]}
            document = {
                "name": "served",
                "students": {"s": {"model": f"openai:student@{stub.address}", **student}},
                "graders": {"g": {"model": f"openai:grader@{stub.address}", "rounds": 1, **grader}},
                "steps": [step | {"k": [1], "combinations": 2, "generations": 1}],
            }
            path = folder / "served.yaml"
            path.write_text(yaml.safe_dump(document), encoding="utf-8")
            return await asyncio.to_thread(command, ["run", str(path), "--json"]), stub

    return asyncio.run(main())


def test_every_call_carries_the_system_text_and_the_extra_fields(in_folder: Path) -> None:
    extra = {"reasoning_effort": "low", "seed": False}
    status, stub = ran(in_folder, student={"system": HELPFUL}, grader={"system": "Be strict.", "extra": extra})

    assert status == 0
    students = [body for body in stub.bodies if body["model"] == "student"]
    graders = [body for body in stub.bodies if body["model"] == "grader"]
    assert {body["messages"][0]["content"] for body in students} == {HELPFUL}
    assert {body["messages"][0]["content"] for body in graders} == {"Be strict."}
    assert [m["role"] for m in students[-1]["messages"]].count("system") == 1
    assert all("seed" in body and "reasoning_effort" not in body for body in students)
    assert all("seed" not in body and body["reasoning_effort"] == "low" for body in graders)
    command(["export", "served", "--what", "calls", "--format", "jsonl"])
    with open_run("served").read() as journal:
        calls = [*journal.calls("generate"), *journal.calls("grade")]
        assert {journal.message(call.messages[0]).role for call in calls} == {"system"}
    assert {call.decoding.extra for call in calls} == {None, '{"reasoning_effort":"low"}'}
    assert ran(in_folder, student={"system": HELPFUL}, grader={"system": "Be strict.", "extra": extra})[1].bodies == []


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"student": {"system": HELPFUL}}, "another system text"),
        ({"grader": {"system": HELPFUL}}, "another system text"),
        ({"student": {"extra": {"reasoning_effort": "low"}}}, "another extra"),
        ({"grader": {"extra": {"seed": False}}}, "another seed"),
        ({"student": {"temperature": 0.2, "top_p": 0.5}}, "temperature (0.7 → 0.2) and another top_p (not set → 0.5)"),
    ],
)
def test_another_system_text_or_extra_field_is_another_model(
    in_folder: Path, capsys: pytest.CaptureFixture[str], changes: dict[str, Any], expected: str
) -> None:
    plain: dict[str, Any] = {"student": {}, "grader": {}}
    assert ran(in_folder, **plain)[0] == 0
    capsys.readouterr()

    status, stub = ran(in_folder, **plain | changes)

    assert (status, stub.bodies) == (2, [])
    assert expected in capsys.readouterr().err
    assert ran(in_folder, **plain)[1].bodies == []


def test_a_scripted_rehearsal_keeps_the_additions_and_its_variety(in_folder: Path) -> None:
    step = {"name": "e", "stage": "evaluate", "students": ["s"], "graders": ["g"], "settings": ["all"], "k": [2]}
    document = {
        "name": "rehearsal",
        "students": {"s": {"model": "scripted:student?skill=0.5", "system": HELPFUL, "extra": {"seed": False}}},
        "graders": {"g": {"model": "scripted:grader", "extra": {"reasoning_effort": "low"}}},
        "steps": [step | {"combinations": 20, "generations": 1}],
    }
    path = in_folder / "r.yaml"
    path.write_text(yaml.safe_dump(document), encoding="utf-8")

    assert command(["run", str(path), "--json"]) == 0

    with open_run("rehearsal").read() as journal:
        replies = [call.outcome for call in journal.calls("generate")]
    lengths = {len(str(getattr(reply, "text", "")).split()) for reply in replies}
    assert len(lengths) > 1
    stored = yaml.safe_load(Path("runs/rehearsal/experiment.yaml").read_text(encoding="utf-8"))
    assert stored["students"]["s"]["system"] == HELPFUL
    assert json.dumps(stored["graders"]["g"]["extra"]) == '{"reasoning_effort": "low"}'


def test_training_data_hold_no_system_text_and_their_card_names_it(in_folder: Path) -> None:
    document = {
        "name": "data",
        "students": {"s": {"model": "scripted:student?skill=1&topic=1&sense=1&length=1", "system": HELPFUL}},
        "graders": {"g": {"model": "scripted:grader", "rounds": 1}},
        "steps": [{"name": "d", "stage": "dataset", "writer": "s", "graders": ["g"], "k": [1], "target": 3}],
    }
    path = in_folder / "d.yaml"
    path.write_text(yaml.safe_dump(document), encoding="utf-8")

    assert command(["run", str(path), "--json"]) == 0

    folder = Path("runs/data/d/dataset")
    rows = [json.loads(line) for line in (folder / "train.jsonl").read_text(encoding="utf-8").splitlines()]
    assert rows
    assert all([m["role"] for m in row["messages"]] == ["user", "assistant"] * 2 for row in rows)
    assert f'system "{HELPFUL}"' in (folder / "README.md").read_text(encoding="utf-8")
