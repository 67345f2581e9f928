"""Scripted runs with a made-up history: who was trained on what, and how well each does, is set by hand."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from skillmix.experiment.experiment import experiment_of
from skillmix.steps.run import run_checked
from tests.stored_experiments import change_experiment

TRAINED = {"m1": [1], "m12": [1, 2], "m123": [1, 2, 3]}
ROWS = {"d1": 400, "d2": 600, "d123": 1000}
DATA = {"m1": ["d1"], "m12": ["d1", "d2"], "m123": ["d123"]}


@dataclass(frozen=True)
class World:
    """A run and the experiment that made it."""

    run: Path
    experiment: dict[str, Any]


def make_world(
    folder: Path,
    name: str,
    rates: Mapping[str, str],
    *,
    graders: Mapping[str, dict[str, Any]] | None = None,
    seed: int = 0,
    training_seed: int | None = None,
    partition: str = "category",
    **step: Any,
) -> World:
    """Run scripted students under the names base, m1, m12 and m123, and leave lineage beside them as training would."""
    judges = dict(graders or {"judge": {"model": "scripted:grader", "rounds": 1}})
    document = {
        "name": name,
        "seed": seed,
        "catalog": "paper",
        "partition": partition,
        "students": {student: {"model": f"scripted:student?{rate}"} for student, rate in rates.items()},
        "graders": judges,
        "steps": [
            {"name": "eval", "stage": "evaluate", "students": list(rates), "graders": list(judges), **step},
        ],
    }
    run_checked(experiment_of(document, source="world"))
    run = folder / "runs" / name
    base = f"scripted:student?{rates['base']}"
    for data, rows in ROWS.items():
        write_dataset(run / data / "dataset", data, rows)
    for student in rates:
        if student in TRAINED:
            trained_with = seed if training_seed is None else training_seed
            write_model(run / student / "model", student, base=base, seed=trained_with, partition=partition, run=run)

    def tune(stored: dict[str, Any]) -> None:
        for student in rates.keys() & TRAINED:
            stored["students"][student]["model"] = f"local:{run / student / 'model'}"

    change_experiment(run, tune)
    return World(run, document)


def write_dataset(folder: Path, name: str, rows: int, skill_sets: Sequence[Sequence[str]] = ()) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    ks = {"d1": [1], "d2": [2], "d123": [1, 2, 3]}[name]
    document = {
        "kind": "dataset",
        "hash": f"hash-of-{name}",
        "catalog": "paper",
        "partition": "category",
        "k": ks,
        "combinations": [],
        "skill_sets": [list(s) for s in skill_sets],
        "writers": ["writer"],
        "written_by": [{"run": "r", "student": "writer", "model": "scripted:student", "texts": rows}],
        "counts": {
            "train": rows,
            "validation": 0,
            "k": {str(k): rows // len(ks) for k in ks},
            "generated": {str(k): 1000 * k for k in ks},
            "full_marks": {str(k): 700 - 150 * k for k in ks},
            "kept": {str(k): 100 for k in ks},
        },
    }
    (folder / "skillmix.json").write_text(json.dumps(document), encoding="utf-8")


def write_model(folder: Path, student: str, *, base: str, seed: int, partition: str, run: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    document = {
        "kind": "model",
        "base": {"spec": base, "hash": "b"},
        "dataset": [{"path": str(run / d / "dataset"), "hash": f"hash-of-{d}"} for d in DATA[student]],
        "k": TRAINED[student],
        "catalog": "paper",
        "partition": partition,
        "combinations": [],
        "recipe": {"steps": 250, "learning_rate": 2e-5},
        "seed": seed,
        "parent": None,
        "adapter": False,
    }
    (folder / "skillmix.json").write_text(json.dumps(document), encoding="utf-8")
    lines = [
        json.dumps({"step": s, "answers": 3.0 / (1 + s / 20), "replay": 2.5, "tokens": 900}) for s in range(0, 250, 5)
    ]
    lines += [json.dumps({"step": s, "validation": 3.2 / (1 + s / 25)}) for s in range(0, 250, 50)]
    (folder.parent / "training.jsonl").write_text("\n".join(lines) + "\n{broken", encoding="utf-8")
