"""Prompt sets of one turn, and data sets whose requests name one skill: `prompts: brief` and `requests: one`."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from skillmix.calls import GenerateKey
from skillmix.catalog.combinations import combination_of
from skillmix.catalog.files import load_catalog
from skillmix.errors import UserError
from skillmix.models.lineage import lineage_on
from skillmix.models.lineage_files import read_dataset_file
from skillmix.prompts.prompt_set import load_prompts
from skillmix.report.records import ReportOptions
from skillmix.report.write import write_report
from skillmix.runs.run import open_run
from skillmix.scores.scoring import run_scores
from skillmix.scores.status import run_status
from skillmix.steps.run import run_experiment
from tests.steps.estimating import dry_run

STUDENT = "scripted:student?skill=0.9&marker=0"


def run_file(folder: Path, steps: list[dict[str, Any]], **changes: Any) -> Path:
    document = {
        "name": "short",
        "prompts": "brief",
        "students": {"base": {"model": STUDENT}},
        "graders": {"judge": {"model": "scripted:grader", "rounds": 1}},
        "steps": steps,
    }
    path = folder / "short.yaml"
    path.write_text(yaml.safe_dump(document | changes), encoding="utf-8")
    return path


EVALUATE: dict[str, Any] = {
    "name": "eval",
    "stage": "evaluate",
    "students": ["base"],
    "graders": ["judge"],
    "settings": ["all"],
    "k": [2],
    "combinations": 10,
    "generations": 2,
}
DATASET: dict[str, Any] = {
    "name": "rich",
    "stage": "dataset",
    "writer": "base",
    "graders": ["judge"],
    "k": [1, 2, 3],
    "target": 12,
    "near_duplicates": None,
}


def test_a_short_request_has_the_items_and_nothing_else() -> None:
    catalog, prompts = load_catalog("paper"), load_prompts("brief")
    places = set()
    for topic in ("Sewing", "Gardening", "Urbanism", "Survivalism", "Dueling", "Beatboxing"):
        combination = combination_of(["metaphor", "red herring"], topic)
        (request,) = prompts.student_prompts(catalog, combination)
        items = request.split("; ")
        assert [item for item in items if not item.startswith("topic: ")] == list(combination.skills)
        places.add(items.index(f"topic: {topic}"))
        (control,) = prompts.student_prompts(catalog, combination, named="metaphor")
        assert control == request.replace("red herring", "any skill")
    assert len(places) > 1


def test_a_conversation_of_one_turn_is_one_call_and_needs_no_marker(in_folder: Path) -> None:
    path = run_file(in_folder, [EVALUATE], answer={"missing_marker": "zero"})
    planned = {estimate.role: estimate.calls for estimate in dry_run(path, prices=None)}

    result = run_experiment(path)

    run = open_run("short")
    with run.read() as journal:
        turns = [call for call in journal.calls("generate") if isinstance(call.key, GenerateKey)]
    assert planned["student"] == len(turns) == 20
    assert all(len(call.messages) == 1 for call in turns)
    (score,) = [s for s in run_scores(run) if s.metric == "full_marks"]
    assert score.format_failures == 0 and (score.value or 0) > 0.5
    assert run_status(run).missing == 0 and result.is_complete
    assert run_experiment(path).counts["eval"].called == 0
    report = write_report([run], output=in_folder / "report", options=ReportOptions())
    assert report.page.is_file()


def test_a_set_of_ones_own_without_the_second_file_is_of_one_turn(in_folder: Path) -> None:
    folder = in_folder / "own"
    folder.mkdir()
    (folder / "generate-1.txt").write_text("Write about {topic}, with {skills}.", encoding="utf-8")

    assert load_prompts(str(folder)).turns == 1

    (folder / "generate-2.txt").write_text("Again, {limit}.", encoding="utf-8")
    with pytest.raises(UserError, match="missing slot: definitions"):
        load_prompts(str(folder))


def rows_of(run: str, step: str) -> list[dict[str, Any]]:
    from pyarrow import parquet

    rows: list[dict[str, Any]] = parquet.read_table(Path("runs", run, step, "dataset/rows.parquet")).to_pylist()
    return rows


def test_requests_for_one_skill_have_the_texts_of_requests_for_all(in_folder: Path) -> None:
    control = {"name": "any", "stage": "dataset", "of": ["rich"], "requests": "one", "near_duplicates": None}
    half = {"size": 18, "shares": {1: 1, 2: 1, 3: 1}}
    run_experiment(
        run_file(
            in_folder,
            [
                DATASET,
                control,
                control | {"name": "rich-half", "requests": "all"} | half,
                control | {"name": "any-half"} | half,
            ],
        )
    )

    for rich, one in (("rich", "any"), ("rich-half", "any-half")):
        texts, controls = rows_of("short", rich), rows_of("short", one)
        assert [row["text"] for row in texts] == [row["text"] for row in controls]
        for row, other in zip(texts, controls, strict=True):
            request, answer = (m["content"] for m in row["messages"])
            asked, same = (m["content"] for m in other["messages"])
            assert answer == same == row["text"]
            named = [item for item in asked.split("; ") if item != "any skill" and not item.startswith("topic: ")]
            assert len(named) == 1 and named[0] in row["skills"]
            assert asked.count("any skill") == row["k"] - 1 and asked.count(";") == request.count(";")
    folder = Path("runs/short/any/dataset")
    about = read_dataset_file(folder)
    assert about is not None and about.requests == "one" and about.k == [1, 2, 3]
    assert "requests: one" in (folder / "README.md").read_text(encoding="utf-8")
    assert "requests" not in json.loads(Path("runs/short/rich/dataset/skillmix.json").read_text(encoding="utf-8"))
    assert lineage_on([str(folder)], base="x").requests == "one"
    assert lineage_on([str(folder), "runs/short/rich/dataset"], base="x").requests is None


def test_prompts_of_two_turns_leave_out_the_definitions_of_skills_they_do_not_name(in_folder: Path) -> None:
    steps = [DATASET | {"requests": "one", "k": [2]}]
    run_experiment(run_file(in_folder, steps, prompts="standard", students={"base": {"model": "scripted:student"}}))

    for row in rows_of("short", "rich"):
        first = row["messages"][0]["content"]
        assert len(row["messages"]) == 4 and "any skill" in first and first.count("Example: ") == 1


def test_texts_of_one_turn_fill_no_prompts_of_two(in_folder: Path) -> None:
    with pytest.raises(UserError, match="one turn, but the prompt set 'standard' has two"):
        run_experiment(run_file(in_folder, [DATASET | {"prompts": "standard"}]))
