"""Simulated worlds in which the terminal, the report, the page of two students, JSON and Python state one verdict."""

import html
import json
import re
from pathlib import Path
from statistics import mean
from typing import Any

import pandas as pd
import pytest

import skillmix
from skillmix.commands import main
from skillmix.experiment.experiment import experiment_of
from skillmix.report.records import ReportOptions
from skillmix.report.write import report
from skillmix.runs.run import open_run
from skillmix.scores.findings import findings
from skillmix.scores.scoring import comparable_in, scored_cells
from skillmix.steps.run import run_checked
from tests.report.test_compared_students import index_of, items
from tests.report.worlds import make_world, write_model
from tests.stored_experiments import change_experiment

EXACT = "&topic=1&sense=1&length=1"
WORLDS: dict[str, tuple[dict[str, str], dict[str, Any]]] = {
    "null": ({"base": "skill=0.5", "m1": "skill=0.5", "m123": "skill=0.5"}, {"k": [1, 2, 3], "combinations": 30}),
    "clear gain": ({"base": "skill=0.3", "m1": "skill=0.4", "m123": "skill=0.95"}, {"k": [1, 2], "combinations": 40}),
    "clear loss": ({"base": "skill=0.95", "m1": "skill=0.9", "m123": "skill=0.3"}, {"k": [2, 3], "combinations": 40}),
    # The seed gives a difference whose p is below .05 before the correction alone.
    "borderline": (
        {"base": "skill=0.4", "m1": "skill=0.5", "m123": "skill=0.65"},
        {"k": [1, 2], "combinations": 30, "seed": 2},
    ),
    "small n": ({"base": "skill=0.2", "m1": "skill=0.9", "m123": "skill=0.9"}, {"k": [2], "combinations": 5}),
    "one row": ({"base": "skill=0.3", "m1": "skill=0.5"}, {"k": [1], "combinations": 16, "settings": ["all"]}),
    "no lineage": ({"base": "skill=0.3", "other": "skill=0.8"}, {"k": [1, 2], "combinations": 20}),
}
VERDICT = re.compile(r"(a gain|a loss|within noise|too few [a-z]+), p (= |< )(\.\d+|1\.000)")


def flat(text: str) -> str:
    return re.sub(r"\s+", " ", html.unescape(re.sub(r"<[^>]+>", " ", text))).replace("\xa0", " ").replace(" ;", ";")


def headline_of(page: Path) -> str:
    """The sentence on top of a report, as a terminal prints it."""
    headline = page.read_text(encoding="utf-8").partition("<h1>")[2].partition("</h1>")[0]
    return flat(headline.replace('<span class="detail">', ": ")).strip()


def made(folder: Path, world: str) -> None:
    rates, step = WORLDS[world]
    exact = {name: rate + EXACT for name, rate in rates.items()}
    make_world(folder, "world", exact, generations=1, **({"settings": ["train", "held-out"]} | step))


def outputs(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    capsys.readouterr()
    assert main([*words]) == 0
    return capsys.readouterr().out


def place_of(row: dict[Any, Any]) -> tuple[str, str, int]:
    return row["grader"], row["setting"], row["k"]


@pytest.mark.parametrize("world", WORLDS)
def test_five_outputs_state_one_verdict(in_folder: Path, world: str, capsys: pytest.CaptureFixture[str]) -> None:
    made(in_folder, world)
    students = list(WORLDS[world][0])
    first, second = students[0], students[-1]

    document = json.loads(outputs(capsys, "compare", "world", first, second, "--json"))
    terminal = flat(outputs(capsys, "scores", "world"))
    page = report(["world"], options=ReportOptions(figures=False)).page
    view = skillmix.open_run("world")

    compared = view.compare(first, second).rows
    stated = {(r.grader, r.setting, r.k): (r.verdict, pytest.approx(r.p_corrected)) for r in compared}
    words = {(r.grader, r.setting, r.k): r.words for r in compared}
    if world == "borderline":
        assert any(r.p < 0.05 <= r.p_corrected and r.difference > 0 for r in compared)
    assert {place_of(row): (row["verdict"], row["p_corrected"]) for row in document["rows"]} == stated
    (pair,) = [pair for pair in index_of(page.parent)["pairs"] if pair[1:3] == [first, second]]
    shown = items(page.parent, "pairs")
    assert {place_of(shown[number]): shown[number]["verdict"] for number in pair[4]} == words
    for file in page.parent.glob("tables/*.csv"):
        if file.stem in ("students-compared", "findings", "before-and-after"):
            table = pd.read_csv(file).rename(columns={"remark": "verdict"})
            names = table["student"] + " − " + table["base"] if "base" in table else table["students"]
            found = table[names == f"{second} − {first}"].to_dict("records")
            assert {place_of(row): (row["verdict"], row["p, corrected"]) for row in found}.items() <= stated.items()
            assert file.stem == "findings" or len(found) == len(stated)
    if world != "no lineage":
        for row, said in words.items():
            k = {1: "one skill", 2: "two skills", 3: "three skills"}[row[2]]
            place = f"With {k} ({row[1]}): {second} " if len({key[1] for key in words}) > 1 else f"With {k}: {second} "
            assert said in terminal.partition(place)[2].partition(" With ")[0], (place, terminal)

    sentence = view.result
    assert VERDICT.search(sentence)
    assert sentence.startswith(headline_of(page))
    assert flat(sentence) in terminal and sentence in str(view)


def test_a_student_that_gains_no_more_than_practice_is_said_to_in_all_outputs(
    in_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rates = {"base": "skill=0.3", "m1": "skill=0.9", "m123": "skill=0.9"}
    exact = {name: rate + EXACT for name, rate in rates.items()}
    world = make_world(
        in_folder, "world", exact, k=[2, 3], combinations=60, generations=1, settings=["train", "held-out"]
    )
    data = json.loads((world.run / "d1" / "dataset" / "skillmix.json").read_text(encoding="utf-8"))
    data["counts"]["train"] = 1000  # as many texts as m123 had
    (world.run / "d1" / "dataset" / "skillmix.json").write_text(json.dumps(data), encoding="utf-8")
    said = "m1, trained on single skills with as many texts and steps, also gains, and m123 is not found to be better"

    terminal = flat(outputs(capsys, "scores", "world"))
    comparison = flat(outputs(capsys, "compare", "world", "base", "m123"))
    document = json.loads(outputs(capsys, "compare", "world", "base", "m123", "--json"))
    page = report(["world"], options=ReportOptions(figures=False)).page
    view = skillmix.open_run("world")

    (pair,) = [pair for pair in index_of(page.parent)["pairs"] if pair[1:3] == ["base", "m123"]]
    texts = [terminal, comparison, " ".join(document["notes"]), flat(page.read_text(encoding="utf-8")), *pair[3]]
    assert all(said in text for text in [*texts, view.result, str(view)])
    assert {row["explained_by"] for row in document["rows"] if row["verdict"] == "a gain"} == {"m1"}
    assert "never combined in training" not in view.result
    found = findings(comparable_in(open_run("world"), scored_cells("world")), scored_cells("world"))
    beyond = [f for f in found if f.claim in ("held-out", "larger k", "composition")]
    assert {f.first for f in beyond} == {"m1"} and "supported" not in {f.verdict for f in beyond}


def test_several_seeds_are_one_sentence_in_terminal_report_and_python(
    in_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rates = {"base": 0.3, "m123": 0.6, "s1": 0.65, "s2": 0.62}
    exact = {name: f"skill={rate}{EXACT}" for name, rate in rates.items()}
    world = make_world(in_folder, "world", exact, k=[1], combinations=40, generations=1, settings=["all"])
    models = {}
    for seed, name in ((1, "s1"), (2, "s2")):
        model = world.run / name / "model"
        write_model(
            model, "m123", base=f"scripted:student?{exact['base']}", seed=seed, partition="category", run=world.run
        )
        models[name] = {"model": f"local:{model}"}
    change_experiment(world.run, lambda stored: stored["students"].update(models))

    terminal = flat(outputs(capsys, "scores", "world"))
    page = report(["world"], options=ReportOptions(figures=False)).page
    view = skillmix.open_run("world")

    assert "m123 earns full marks more often than base" in view.result and "3 trainings" in view.result.lower()
    assert view.result in terminal
    assert view.result.startswith(headline_of(page))


def test_the_format_comes_before_any_score(in_folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rates = {"base": f"skill=0.5&marker=0.2{EXACT}", "m1": f"skill=0.9&marker=0.9{EXACT}"}
    make_world(in_folder, "world", rates, k=[1], combinations=20, generations=1, settings=["all"])

    first = "Format before skill: base misses the format in 1"
    scores = outputs(capsys, "scores", "world")
    page = flat(report(["world"], options=ReportOptions(figures=False)).page.read_text(encoding="utf-8"))

    view = skillmix.open_run("world")
    assert scores.startswith(first) and str(view).startswith(first) and view._repr_html_().startswith(f"<p>{first}")
    assert "prompts: worked" in scores and "max_tokens" in scores and "marker" in scores
    assert page.index(first) < page.index("points")
    assert "m1 misses the format" not in scores + page


def test_several_partitions_are_one_sentence_about_the_setting_all(
    in_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rates = {"base": "skill=0.3", "other": "skill=0.6"}
    document = {
        "name": "world",
        "catalog": "paper",
        "partitions": ["category", "random-skills:1", "random-skills:2"],
        "students": {name: {"model": f"scripted:student?{rate}{EXACT}"} for name, rate in rates.items()},
        "graders": {"judge": {"model": "scripted:grader", "rounds": 1}},
        "steps": [
            {"name": "eval", "stage": "evaluate", "students": list(rates), "graders": ["judge"], "k": [2],
             "settings": ["train", "all"], "combinations": 20, "generations": 1},
        ],
    }  # fmt: skip
    run_checked(experiment_of(document, source="world"))

    terminal = flat(outputs(capsys, "scores", "world"))
    page = report(["world"], options=ReportOptions(figures=False)).page
    view = skillmix.open_run("world")
    cells = {key: cell.best("full_marks") for key, cell in scored_cells("world").items()}

    means = [
        mean(after[c] - cells[key._replace(student="base")][c] for c in after)
        for key, after in cells.items()
        if key.student == "other" and key.setting.startswith("all under")
    ]
    difference = f"a difference of {round(100 * mean(means))} points"
    assert len(means) == 3 and difference in view.result
    assert "3 partitions, setting all, grader judge, 20 combinations" in view.result and "training" not in view.result
    assert flat(view.result) in terminal
    assert view.result.startswith(headline_of(page))
