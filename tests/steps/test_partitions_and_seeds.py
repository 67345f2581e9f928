"""`partitions` × `seeds` from end to end: a null world stays null, a true effect is found, one report pools them.

The models are trained, for a step each; they then write as scripted students, whose rates make the world.
"""

import csv
from pathlib import Path
from statistics import stdev
from typing import Any
from unittest import mock

import pytest
import yaml

from skillmix.models import specs
from skillmix.models.scripted import ScriptedModel
from skillmix.runs.run import open_run
from skillmix.scores.findings import Finding, findings
from skillmix.scores.lineages import run_datasets, student_lineages
from skillmix.scores.scoring import comparable_students, scored_cells
from skillmix.steps.run import run_experiment

pytest.importorskip("torch", reason="the extra `train` is not installed")
PARTITIONS = [1, 2, 3]
SEEDS = [0, 1]
WRITER = "scripted:student?skill=0.95"


def study(folder: Path, model: Path) -> Path:
    data = {"stage": "dataset", "writer": "writer", "graders": ["judge"], "near_duplicates": None, "validation": 0}
    train = {"stage": "train", "base": "base", "steps": 1, "batch": 2}
    document = {
        "name": folder.name,
        "partitions": [f"random-skills:{number}" for number in PARTITIONS],
        "seeds": SEEDS,
        "students": {"writer": {"model": WRITER}, "base": {"model": f"local:{model}"}},
        "graders": {"judge": {"model": "scripted:grader", "rounds": 1}},
        "steps": [
            data | {"name": "single", "k": [1], "target": 8},
            data | {"name": "rich", "k": [1, 2], "target": 4},
            train | {"name": "m1", "data": ["single"]},
            train | {"name": "m12", "data": ["rich"]},
            {
                "name": "eval",
                "stage": "evaluate",
                "students": ["step:m1", "step:m12"],
                "graders": ["judge"],
                "settings": ["held-out"],
                "k": [2],
                "combinations": 60,
                "generations": 1,
            },
            {"name": "report", "stage": "report"},
        ],
    }
    path = folder / "study.yaml"
    path.write_text(yaml.safe_dump(document, sort_keys=False), encoding="utf-8")
    return path


def composition_in_world(folder: Path, model: Path, rates: dict[str, float]) -> Finding:
    """The finding about composition where the students of a step show each skill with a rate."""

    def opened(spec: Any, options: Any) -> Any:
        if spec.provider != "local":
            return specs.open_model(spec, options)
        step = Path(spec.name).parent.name.partition("-")[0]
        return ScriptedModel(specs.parse_spec(f"scripted:student?skill={rates[step]}&topic=1&sense=1&length=1"))

    folder.mkdir()
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        with mock.patch("skillmix.runs.calling.open_model", opened):
            assert run_experiment(study(folder, model)).is_complete
        run = open_run(folder.name)
        datasets = {facts.hash: facts for facts in run_datasets(run)}
        cells = scored_cells(run)
        names = list(dict.fromkeys(key.student for key in cells))
        lineages = student_lineages(run, run.experiment, names, datasets)
        found = findings(comparable_students(run, run.experiment, names, lineages), cells)
        (finding,) = [f for f in found if f.claim == "composition"]
        return finding


@pytest.fixture(scope="module")
def effect(tmp_path_factory: pytest.TempPathFactory, small_model: Path) -> tuple[Path, Finding]:
    folder = tmp_path_factory.mktemp("worlds") / "effect"
    return folder, composition_in_world(folder, small_model, {"m1": 0.6, "m12": 0.95})


def test_a_true_effect_is_found_over_partitions_and_seeds(effect: tuple[Path, Finding]) -> None:
    finding = effect[1]

    (compared,) = finding.compared
    assert finding.verdict == "supported" and finding.pair.is_matched
    assert (finding.first, finding.second, finding.setting) == ("m1", "m12", "held-out")
    assert finding.runs == ("effect",)
    assert (compared.gain.partitions, compared.gain.unit, compared.gain.seeds) == (3, "partitions", 6)
    assert compared.gain.low is not None and compared.gain.low < 0.95**2 - 0.6**2 < (compared.gain.high or 0)


def test_the_report_has_a_table_by_partition_with_its_spread(effect: tuple[Path, Finding]) -> None:
    folder, finding = effect
    with (folder / "runs/effect/report/tables/by-partition.csv").open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))

    by_name = {row["partition"]: row for row in rows}
    assert list(by_name) == [*(f"random-skills:{n}" for n in PARTITIONS), "mean", "sd", "lowest", "highest"]
    differences = [float(by_name[f"random-skills:{n}"]["difference"]) for n in PARTITIONS]
    assert float(by_name["mean"]["difference"]) == pytest.approx(finding.compared[0].gain.mean, abs=0.02)
    assert float(by_name["lowest"]["difference"]) == min(differences)
    assert float(by_name["highest"]["difference"]) == max(differences)
    assert float(by_name["sd"]["difference"]) == pytest.approx(stdev(differences), abs=0.01)


def test_a_null_world_stays_null(tmp_path: Path, small_model: Path) -> None:
    finding = composition_in_world(tmp_path / "null", small_model, {"m1": 0.8, "m12": 0.8})

    (compared,) = finding.compared
    assert finding.verdict != "supported"
    assert compared.gain.low is not None and compared.gain.low < 0 < (compared.gain.high or 0)
