"""The files of the pretraining study: a rehearsal of every step, with a tiny model in place of the bundled one."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from tools.conditions import write_catalogs, write_padded

from skillmix.catalog.files import load_catalog
from skillmix.commands import main
from skillmix.runs.run import open_run

EXPERIMENTS = Path(__file__).parents[2] / "experiments"
FILES = sorted(EXPERIMENTS.glob("pretraining*.yaml"))


def in_small(file: Path, model: Path) -> dict[str, Any]:
    """The experiment of a file with another base, one partition, one seed and small numbers."""
    document: dict[str, Any] = yaml.safe_load(file.read_text(encoding="utf-8"))
    for name, student in document["students"].items():
        if name != "teacher":
            student |= {"model": f"new:local:{model}" if name == "random" else f"local:{model}", "max_tokens": 4}
    for several in ("partitions", "seeds"):
        if several in document:
            document[several] = document[several][:1]
    for key, values in document.get("matrix", {}).items():
        document["matrix"][key] = [12 if key == "dose" else values[0]]
    for step in document["steps"]:
        if step["stage"] == "train":
            step |= {"steps": 2, "batch": 2, "warmup_steps": 1}
        elif step["stage"] == "evaluate":
            step |= {"combinations": 2, "generations": 1}
        elif isinstance(step.get("target"), dict):
            step["target"] = dict.fromkeys(step["target"], 20)
        if "size" in step:
            step["size"] = 20
    return document


def conversations(folder: Path) -> Path:
    """The conversations of a data set, with one and two skills in a text."""
    file = folder / "train.jsonl"
    requests = ("topic: Music; address to a mouse", "counting by nine; topic: Mail; tag question to Peter")
    answer = {"role": "assistant", "content": "Hm."}
    rows = [[{"role": "user", "content": f"Write a short text: {request}."}, answer] for request in requests * 20]
    file.write_text("".join(f"{json.dumps({'messages': row})}\n" for row in rows), encoding="utf-8")
    return file


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_a_rehearsal_goes_through_every_step(file: Path, in_folder: Path, small_model: Path) -> None:
    document = in_small(file, small_model)
    write_padded(conversations(in_folder), in_folder / "build/conditions/padded.jsonl")
    Path("small.yaml").write_text(yaml.safe_dump(document, sort_keys=False), encoding="utf-8")

    assert main(["run", "small.yaml"]) == 0

    run = open_run(file.stem)
    evaluated = {(cell.setting, cell.k) for cell in run.cells}
    planned = [step for step in document["steps"] if step["stage"] == "evaluate"]
    assert evaluated == {(setting, k) for step in planned for setting in step["settings"] for k in step["k"]}
    assert (run.path / "report" / "index.html").is_file()


def test_the_conditions_rename_new_figures_and_leave_one_frame_of_each_kind(tmp_path: Path) -> None:
    write_catalogs("nested:201", tmp_path)

    plain, nonce, few = (load_catalog(str(f)) for f in ("figures", tmp_path / "nonce", tmp_path / "few-frames"))
    new = set(plain.partition("nested:201").side("new-figures").skills)
    renamed = set(nonce.partition("nested:201").side("new-figures").skills)
    assert len(new) == len(renamed) and not new & renamed
    assert len({nonce.figure_of[skill] for skill in renamed}) == len({plain.figure_of[skill] for skill in new})
    assert few.skills == plain.skills


def test_padding_adds_items_to_requests_for_one_skill_only(tmp_path: Path) -> None:
    file = conversations(tmp_path)

    write_padded(file, tmp_path / "padded.jsonl")

    before, after = (
        [json.loads(line)["messages"][0]["content"] for line in f.read_text(encoding="utf-8").splitlines()]
        for f in (file, tmp_path / "padded.jsonl")
    )
    items = [set(text.removeprefix("Write a short text: ").removesuffix(".").split("; ")) for text in after[::2]]
    assert after[1::2] == before[1::2]
    assert all(own - {"any skill"} == {"topic: Music", "address to a mouse"} for own in items)
    assert any("any skill" in own for own in items)
