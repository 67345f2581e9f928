"""MLflow: the server of MLFLOW_TRACKING_URI, or a database in the folder of the run."""

import os
import time
from collections.abc import Mapping

from skillmix.tracking.tracker import TrackedPart

_LONGEST = 250


class MlflowRun:
    """A run of MLflow, in the experiment `skillmix`."""

    def __init__(self, part: TrackedPart) -> None:
        from mlflow.tracking import MlflowClient

        self._part = part
        part.folder.mkdir(parents=True, exist_ok=True)
        self._server = os.environ.get("MLFLOW_TRACKING_URI")
        self._client = MlflowClient(self._server or f"sqlite:///{part.folder.resolve() / 'mlflow.db'}")
        self._run = ""

    def begin(self, facts: Mapping[str, str]) -> None:
        """Create the run, or go on with the one of an interrupted training."""
        name = os.environ.get("MLFLOW_EXPERIMENT_NAME", "skillmix")
        found = self._client.get_experiment_by_name(name)
        experiment = found.experiment_id if found else self._client.create_experiment(name, self._artifacts)
        key = self._part.key("mlflow")
        earlier = self._client.search_runs([experiment], f"tags.skillmix_part = '{key}'", max_results=1)
        tags = {"skillmix_part": key, **{fact: value[:_LONGEST] for fact, value in facts.items()}}
        if earlier:
            self._run = earlier[0].info.run_id
            return
        created = self._client.create_run(experiment, tags=tags, run_name=f"{self._part.run}/{self._part.name}")
        self._run = created.info.run_id

    @property
    def _artifacts(self) -> str | None:
        """Where MLflow would keep files: beside the database, or where the server says."""
        return None if self._server else (self._part.folder.resolve() / "mlflow-artifacts").as_uri()

    def log(self, values: Mapping[str, float], *, step: int) -> None:
        """Log the values in one call."""
        from mlflow.entities import Metric

        now = int(time.time() * 1000)
        self._client.log_batch(self._run, metrics=[Metric(name, value, now, step) for name, value in values.items()])

    def end(self) -> None:
        """End the run."""
        self._client.set_terminated(self._run)
