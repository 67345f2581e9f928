"""The line above the texts of a report says how many of them count in no score."""

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from skillmix.commands import main
from skillmix.scores.text_rows import run_texts
from skillmix.steps.run import run_experiment

FILES = Path(main.__code__.co_filename).parents[1] / "report" / "files"
EVALUATE: dict[str, Any] = {
    "name": "eval",
    "stage": "evaluate",
    "students": ["base"],
    "graders": ["judge"],
    "settings": ["all"],
    "k": [1, 2],
    "combinations": 3,
    "generations": 2,
}
DATASET = {"name": "d1", "stage": "dataset", "writer": "base", "graders": ["judge"], "k": [1], "target": 4}
SCRIPT = """
const answer = async () => {
  const wanted = {a: null, b: null, grader: null, k: null, skillNumbers: null, topicNumbers: null, request: "",
    needle: "", pairs: null, generation: null, outcome: "", sort: "", combination: null, ranges: RANGES};
  const view = {wanted, hits: [], shown: 1e9, seen: 0, texts: 0, unscored: 0, isOver: true};
  for await (const {hits, seen} of scan(wanted)) count(view, hits, seen);
  console.log(statusLine(view, 0));
};
answer();
"""


def status_line(folder: Path) -> str:
    """What texts.html says of all texts, by its own code."""
    node = shutil.which("node")
    if node is None:
        pytest.skip("node is not here")

    def read(name: str) -> str:
        return (FILES / f"{name}.js").read_text(encoding="utf-8").replace('"use strict";', "")

    texts = read("texts")
    chunks = {file.name: file.read_text(encoding="utf-8") for file in sorted((folder / "data").glob("*.js"))}
    marks = [
        json.loads(text.split(",", 2)[2].removesuffix(");\n")) for name, text in chunks.items() if "marks-" in name
    ]
    index = next(text for name, text in chunks.items() if name.startswith("index"))
    document = json.loads(index[index.index("{") : index.rindex("}") + 1])
    total = sum(map(len, marks))
    code = "\n".join(
        [
            f"const index = {json.dumps(document)}; const marks = {json.dumps(marks)};",
            "const load = async (kind, number) => marks[number];",
            "const fileOf = () => 0;",
            "const many = (count, word) => `${count} ${word}${count === 1 ? '' : 's'}`;",
            read("search"),
            texts[texts.index("function count(") : texts.index("async function nextPage")],
            texts[texts.index("function statusLine") : texts.index("/* Explains the marked points")],
            SCRIPT.replace("RANGES", json.dumps([[0, total - 1]])),
        ]
    )
    ran = subprocess.run([node, "-e", code], capture_output=True, text=True, check=False, timeout=60)
    assert ran.returncode == 0, ran.stderr
    return ran.stdout.strip()


@pytest.mark.parametrize("steps", [[EVALUATE], [EVALUATE, DATASET]], ids=["scores", "scores and data"])
def test_texts_of_data_sets_are_told_from_those_that_scores_count(in_folder: Path, steps: list[dict[str, Any]]) -> None:
    document = {
        "name": "r",
        "catalog": "paper",
        "students": {"base": {"model": "scripted:student?skill=1"}},
        "graders": {"judge": {"model": "scripted:grader", "rounds": 1}},
        "steps": steps,
    }
    (in_folder / "r.yaml").write_text(yaml.safe_dump(document), encoding="utf-8")
    assert run_experiment(in_folder / "r.yaml").is_complete
    assert main(["report", "r"]) == 0
    rows = run_texts("r")
    combinations = len({row.combination for row in rows})

    line = status_line(Path("runs/r/report"))

    in_data = len(rows) - 12
    assert (in_data == 0) == (len(steps) == 1)
    words = f" ({in_data} of them in no score, such as texts for data sets)" if in_data else ""
    assert line == f"{len(rows)} texts{words} of {combinations} combinations."
