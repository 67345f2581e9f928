"""Train steps from file to checkpoint, with the real loop on a small model."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

from skillmix.commands import main
from skillmix.datasets.row_files import content_hash
from skillmix.errors import UserError
from skillmix.models.checkpoints import checkpoint_of, weights_hash
from skillmix.models.local.loading import read_checkpoint
from skillmix.models.specs import parse_spec
from skillmix.scores.scoring import run_scores
from skillmix.steps.run import train_steps
from skillmix.steps.step_kind import Trained
from skillmix.tracking import TRACKERS
from tests.tracking.test_tracking import Remembering

WORDS = ["bread", "rope", "tide", "lamp", "chess", "snow"]
ROLES = ["user", "assistant"]
STEP = {"stage": "train", "base": "base", "data": ["./data"], "steps": 3, "batch": 4}


@pytest.fixture
def place(in_folder: Path, small_model: Path) -> Path:
    """A folder with conversations and something to replay."""
    rows = [
        [f"Write about {word}.", f"Answer: The {word} waits.", "Better?", f"Answer: The {word} waits for nobody."]
        for word in WORDS
    ]
    lines = [
        json.dumps(
            {"messages": [{"role": r, "content": c} for r, c in zip(("user", "assistant") * 2, row, strict=True)]}
        )
        for row in rows
    ]
    (in_folder / "data").mkdir()
    (in_folder / "data" / "train.jsonl").write_text("\n".join(lines), encoding="utf-8")
    found = content_hash([in_folder / "data" / "train.jsonl", in_folder / "data" / "validation.jsonl"])
    about = {"kind": "dataset", "hash": found, "k": [1, 2], "combinations": ["aa", "bb"]}
    (in_folder / "data" / "skillmix.json").write_text(json.dumps(about), encoding="utf-8")
    (in_folder / "replay.txt").write_text("The harbour is quiet in winter. " * 50, encoding="utf-8")
    return in_folder


def experiment(place: Path, small_model: Path, *steps: dict[str, Any]) -> Path:
    document = {
        "name": "tune",
        "catalog": "verifiable",
        "students": {"base": {"model": f"local:{small_model}"}, "far": {"model": "openai:gpt-4o"}},
        "steps": [
            {"stage": "train", "base": "base", "data": ["./data"], "steps": 3, "batch": 4, **step} for step in steps
        ],
    }
    path = place / "tune.yaml"
    path.write_text(yaml.safe_dump(document), encoding="utf-8")
    return path


def lineage(trained: Trained) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((trained.folder / "skillmix.json").read_text(encoding="utf-8"))
    return found


def test_all_weights_become_a_plain_checkpoint_with_its_lineage(place: Path, small_model: Path) -> None:
    path = experiment(place, small_model, {"name": "m1", "learning_rate": 1e-3, "warmup_steps": 0})

    [trained] = train_steps(path)

    from transformers import AutoModelForCausalLM, AutoTokenizer

    tuned, base = (AutoModelForCausalLM.from_pretrained(folder) for folder in (trained.folder, small_model))
    assert AutoTokenizer.from_pretrained(trained.folder).chat_template
    assert tuned.config.use_cache is True
    assert not torch.equal(tuned.model.norm.weight, base.model.norm.weight)
    about = lineage(trained)
    assert about["base"] == {"spec": f"local:{small_model}", "hash": weights_hash(small_model)}
    told = json.loads((place / "data" / "skillmix.json").read_text(encoding="utf-8"))
    assert about["dataset"] == [{"path": "data", "hash": told["hash"]}]
    assert (about["k"], about["combinations"], about["parent"], about["adapter"]) == ([1, 2], ["aa", "bb"], None, False)
    assert about["recipe"]["learning_rate"] == 1e-3 and about["recipe"]["steps_taken"] == 3


def test_losses_are_logged_drawn_and_told(place: Path, small_model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    replay = {"sources": ["replay.txt"], "ratio": 0.5, "gamma": 0.3, "max_tokens": 32}
    path = experiment(place, small_model, {"name": "m1", "replay": replay, "validation_share": 0.4})

    train_steps(path)

    folder = place / "runs" / "tune" / "m1"
    rows = [json.loads(line) for line in (folder / "training.jsonl").read_text(encoding="utf-8").splitlines()]
    steps = [row for row in rows if "answers" in row]
    assert [row["step"] for row in steps] == [0, 1, 2]
    assert all(row["answers"] > 0 and row["replay"] > 0 for row in steps)
    assert "replay" in (folder / "training.svg").read_text(encoding="utf-8")
    said = capsys.readouterr().err
    assert re.search(r"m1: step 3 of 3, loss \d+\.\d+, replay \d+\.\d+.* tokens/s", said)


def test_a_step_that_is_done_is_found_and_one_that_changed_is_refused(place: Path, small_model: Path) -> None:
    path = experiment(place, small_model, {"name": "m1"})
    train_steps(path)

    [again] = train_steps(path)
    [other_speed] = train_steps(path, changes=["steps.m1.token_budget=64"])

    assert again.was_there and other_speed.was_there
    with pytest.raises(UserError, match="other settings or data"):
        train_steps(path, changes=["steps.m1.learning_rate=1e-3"])


def test_data_that_changed_are_noticed_whatever_their_own_file_says(
    place: Path, small_model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = experiment(place, small_model, {"name": "m1"})
    train_steps(path)
    assert "differ from those" not in capsys.readouterr().err
    lines = (place / "data" / "train.jsonl").read_text(encoding="utf-8").split("\n")
    (place / "data" / "train.jsonl").write_text("\n".join(lines[1:]), encoding="utf-8")

    with pytest.raises(UserError, match="other settings or data"):
        train_steps(path)

    assert "differ from those described in its skillmix.json" in capsys.readouterr().err


def test_an_adapter_trains_loads_and_is_trained_on(place: Path, small_model: Path) -> None:
    lora = {"rank": 2, "alpha": 4}
    first = {"name": "m1", "lora": lora, "learning_rate": 1e-2, "warmup_steps": 0}
    path = experiment(place, small_model, first, {**first, "name": "m2", "base": "step:m1"})

    one, two = train_steps(path)

    assert (one.folder / "adapter_model.safetensors").is_file() and not list(one.folder.glob("model*"))
    stacked = checkpoint_of(parse_spec(f"local:{two.folder}"))
    assert (stacked.base, len(stacked.adapters)) == (small_model, 2)
    models = [read_checkpoint(c, dtype=torch.float32, device="cpu")[0] for c in (small_model, stacked)]
    weights = [model.model.layers[0].mlp.up_proj.weight for model in models]
    assert not torch.equal(weights[0], weights[1])
    assert lineage(two)["parent"] == lineage(two)["base"]["hash"] != lineage(one)["base"]["hash"]
    assert lineage(two)["base"]["spec"] == f"local:{small_model}+{one.folder}"


def test_an_adapter_is_merged_on_request(place: Path, small_model: Path) -> None:
    path = experiment(place, small_model, {"name": "m1", "lora": {"rank": 2, "merge": True}})

    [trained] = train_steps(path)

    assert (trained.folder / "model.safetensors").is_file() and not (trained.folder / "adapter_config.json").exists()
    assert lineage(trained)["adapter"] is False


def test_a_run_trains_and_then_asks_what_it_trained(
    place: Path, small_model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = experiment(place, small_model, {"name": "m1", "lora": {"rank": 2}})
    document = yaml.safe_load(path.read_text(encoding="utf-8"))
    document["students"]["base"]["max_tokens"] = 4
    document["graders"] = {"rules": {"model": "rules:"}}
    evaluate = {"stage": "evaluate", "students": ["base", "step:m1"], "graders": ["rules"], "settings": ["all"]}
    document["steps"].append({"name": "eval", **evaluate, "k": [1], "combinations": 1, "generations": 1})
    path.write_text(yaml.safe_dump(document), encoding="utf-8")

    assert main(["run", str(path)]) == 0

    scores = run_scores("tune")
    assert {score.student for score in scores} == {"base", "m1"}
    assert all(score.complete == 1 for score in scores)
    said = capsys.readouterr()
    assert "With one skill: m1 .00, base .00 on 1 combination, difference" in said.out
    assert "within noise" in said.out
    assert [line for line in said.err.splitlines() if "begins" in line] == [
        "m1: begins, 3 steps",
        "eval: begins, 4 calls",
    ]
    assert re.search(r"m1: step 3 of 3, loss .*; the run: \d+%", said.err)


@pytest.mark.parametrize(
    ("step", "complaint"),
    [
        ({"base": "far"}, "cannot be trained"),
        ({"data": ["./nothing"]}, "There is no data set ./nothing"),
        ({"max_tokens": 20}, "nothing to train on"),
        ({"max_tokens": 60, "too_long": "refuse"}, "would truncate an answer"),
        ({"patience": 2}, "no conversations to validate with"),
        ({"replay": {"sources": ["none.txt"]}}, "There is no none.txt to replay"),
    ],
)
def test_what_cannot_work_is_said_before_training(
    step: dict[str, Any], complaint: str, place: Path, small_model: Path
) -> None:
    with pytest.raises(UserError, match=complaint):
        train_steps(experiment(place, small_model, {"name": "m1", **step}))


@pytest.mark.parametrize(
    ("too_long", "line"),
    [
        ("drop", r"m1: 6 conversations, \d+ tokens; 1 excluded as too long\n"),
        ("cut", r"m1: 7 conversations, \d+ tokens; 0 excluded as too long, 1 cut at 90 tokens\n"),
    ],
)
def test_long_conversations_are_counted(
    too_long: str, line: str, place: Path, small_model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    row = {"messages": [{"role": "user", "content": "Go on."}, {"role": "assistant", "content": "and on " * 100}]}
    with (place / "data" / "train.jsonl").open("a", encoding="utf-8") as lines:
        lines.write("\n" + json.dumps(row))

    [trained] = train_steps(
        experiment(place, small_model, {"name": "m1", "steps": 2, "max_tokens": 90, "too_long": too_long})
    )

    assert re.search(line, capsys.readouterr().err)
    assert lineage(trained)["recipe"]["too_long"] == too_long


def test_a_full_disk_is_found_before_the_first_step(
    place: Path, small_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shutil.disk_usage", lambda _: type("Usage", (), {"free": 1000})())

    with pytest.raises(UserError, match=r"0\.0 GB free, and training writes up to"):
        train_steps(experiment(place, small_model, {"name": "m1"}))


def test_other_files_to_replay_are_no_resume(place: Path, small_model: Path) -> None:
    path = experiment(place, small_model, {"name": "m1", "replay": {"sources": ["replay.txt"]}, "max_tokens": 20})
    with pytest.raises(UserError, match="nothing to train on"):
        train_steps(path)
    (place / "replay.txt").write_text("Another text.", encoding="utf-8")

    with pytest.raises(UserError, match="other replay files"):
        train_steps(path)


def test_the_mask_is_shown_token_by_token(place: Path, small_model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = experiment(place, small_model, {"name": "m1"})

    assert main(["train", str(path), "--show-mask", "--n", "2"]) == 0

    pages = capsys.readouterr().out.split("\n\n")
    lines = pages[0].splitlines()
    learned = "".join(line.split("█ ", 1)[1][1:-1] for line in lines[1:] if "█" in line)
    assert len(pages) == 2
    assert re.fullmatch(r"m1: \./data:1: \d+ tokens, \d+ of them trained \(█\)", lines[0])
    assert learned == "Answer: The bread waits.<|im_end|>Answer: The bread waits for nobody.<|im_end|>"


def test_a_tracker_gets_every_step_of_a_training(
    place: Path, small_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(TRACKERS, "tensorboard", Remembering)
    monkeypatch.setattr("skillmix.tracking.find_spec", lambda name: name)
    Remembering.made.clear()
    path = experiment(place, small_model, {"name": "m1", "validation_share": 0.4})
    document = yaml.safe_load(path.read_text(encoding="utf-8"))
    path.write_text(yaml.safe_dump({**document, "track": ["tensorboard"]}), encoding="utf-8")

    train_steps(path)

    (tracker,) = Remembering.made
    log = place / "runs/tune/m1/training.jsonl"
    rows = [json.loads(line) for line in log.read_text(encoding="utf-8").splitlines()]
    assert (tracker.part.name, tracker.facts["data"], tracker.has_ended) == ("m1", "./data", True)
    assert [(step, values["answers"]) for step, values in tracker.points] == [
        (r["step"] + 1, r["answers"]) for r in rows
    ]
    assert "validation" in tracker.points[-1][1]
