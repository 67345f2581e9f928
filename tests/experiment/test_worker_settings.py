"""Settings of workers: all faults at once, and no trace of them in what a run stores or hashes."""

from typing import Any

import pytest

from skillmix.errors import UserError
from skillmix.experiment.experiment import Experiment, experiment_of


def experiment(workers: Any = None) -> Experiment:
    document: dict[str, Any] = {
        "name": "e",
        "students": {"s": {"model": "scripted:student"}},
        "graders": {"g": {"model": "scripted:grader"}},
        "steps": [{"name": "eval", "stage": "evaluate", "students": ["s"], "graders": ["g"]}],
    }
    return experiment_of(document | ({} if workers is None else {"workers": workers}), source="test.yaml")


def test_every_setting_of_workers_is_optional() -> None:
    settings = experiment({"cpus": 2}).workers

    assert (settings.gpus, settings.cpus) == (None, 2)


def test_all_faults_of_workers_come_at_once() -> None:
    with pytest.raises(UserError) as error:
        experiment({"gpus": 1.5, "cpus": 0, "leases": 0, "writers": 0, "nodes": 2})

    message = str(error.value)
    for key in ("gpus", "cpus", "leases", "writers", "nodes"):
        assert f"workers.{key}" in message
    assert "integer" in message


def test_an_experiment_is_stored_without_its_workers() -> None:
    with_workers = experiment({"gpus": 0.5, "leases": 3, "writers": 4})

    assert with_workers.model_dump(mode="json") == experiment().model_dump(mode="json")
