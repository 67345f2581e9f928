"""A small loop of dataset, train, dataset, train, evaluate: scripted texts, and real training of a tiny model.

Tuned models write as scripted students, because a model of two layers with random weights never earns full marks.
"""

import os
import signal
from pathlib import Path
from typing import Any
from unittest import mock

import yaml

from skillmix.models import specs
from skillmix.models.scripted import ScriptedModel
from skillmix.steps.run import run_experiment
from skillmix.steps.step_kind import RunResult

WRITER = "scripted:student?skill=0.9"


def catalog(folder: Path) -> str:
    """Ten skills and ten topics, so that an evaluation soon needs more than its fifth of the combinations."""
    path = folder / "small"
    path.mkdir(exist_ok=True)
    letters = "abcdefghij"
    skills = [
        {"name": f"skill {x}", "category": "left" if x < "f" else "right", "definition": "D.", "example": "E."}
        for x in letters
    ]
    topics = [f"topic {x}" for x in letters]
    sides = {"train": {"categories": ["left"]}, "held-out": {"categories": ["right"]}}
    partitions = {
        "default": "half",
        "partitions": {"half": sides},
        "topics": {"train": topics[:5], "held-out": topics[5:]},
    }
    for name, content in {"skills": skills, "topics": topics, "partitions": partitions}.items():
        (path / f"{name}.yaml").write_text(yaml.safe_dump(content), encoding="utf-8")
    return str(path)


def loop(folder: Path, model: Path, *, combinations: int = 5, **more: Any) -> Path:
    """The experiment file; `combinations` is the size of the evaluation at its end."""
    dataset = {"stage": "dataset", "graders": ["judge"], "near_duplicates": None, "validation": 0.2}
    train = {"stage": "train", "base": "base", "steps": 6, "batch": 2, "learning_rate": 1e-2, "checkpoint_every": 2}
    document = {
        "name": "loop",
        "catalog": catalog(folder.parent),
        "leakage": {"reserved": 0.0, "shown": "count"},
        "students": {"writer": {"model": WRITER}, "base": {"model": f"local:{model}"}},
        "graders": {"judge": {"model": "scripted:grader?noise=0.05", "rounds": 3}},
        "steps": [
            dataset | {"name": "d1", "writer": "writer", "k": [1], "target": 12},
            train | {"name": "m1", "data": ["d1"]},
            dataset | {"name": "d2", "writer": "step:m1", "k": [1, 2], "target": {1: 14, 2: 20}},
            train | {"name": "m2", "data": ["d1", "d2"]},
            {
                "name": "eval",
                "stage": "evaluate",
                "students": ["base", "step:m1", "step:m2"],
                "graders": ["judge"],
                "settings": ["train", "held-out"],
                "k": [1, 2],
                "combinations": combinations,
                "generations": 2,
            },
        ],
    } | more
    path = folder / "loop.yaml"
    path.write_text(yaml.safe_dump(document, sort_keys=False), encoding="utf-8")
    return path


def _opened(spec: Any, options: Any) -> Any:
    is_local = spec.provider == "local"
    return ScriptedModel(specs.parse_spec(WRITER)) if is_local else specs.open_model(spec, options)


def run_loop(path: Path) -> RunResult:
    """Run the experiment in this process; every local model is opened as a scripted student."""
    with mock.patch("skillmix.runs.calling.open_model", _opened):
        return run_experiment(path)


def in_child(path: Path, *, killed_after: float | None = None) -> bool:
    """Run the experiment in a child process, and return whether the kernel killed it.

    Only children train, so that no thread of torch runs in a process that forks.
    """
    child = os.fork()
    if child == 0:
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        if killed_after is not None:
            signal.setitimer(signal.ITIMER_REAL, killed_after)
        status = 1
        try:
            os.chdir(path.parent)
            os.dup2(os.open("child.txt", os.O_WRONLY | os.O_CREAT | os.O_TRUNC), 2)
            status = 0 if run_loop(path).is_complete else 1
        finally:
            os._exit(status)
    _, status = os.waitpid(child, 0)
    assert os.WIFSIGNALED(status) or os.WEXITSTATUS(status) == 0, path.with_name("child.txt").read_text(
        encoding="utf-8"
    )
    return os.WIFSIGNALED(status)
