"""Change the experiment that a run stores, as tests do that give runs another history."""

import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import yaml


def change_experiment(run: Path, change: Callable[[dict[str, Any]], object]) -> None:
    """Change the present experiment of a run, and its copy for people."""
    with closing(sqlite3.connect(run / "run.sqlite")) as connection, connection:
        query = "SELECT version, yaml FROM experiment ORDER BY version DESC LIMIT 1"
        version, text = connection.execute(query).fetchone()
        document = yaml.safe_load(text)
        change(document)
        text = yaml.safe_dump(document, sort_keys=False)
        connection.execute("UPDATE experiment SET yaml = ? WHERE version = ?", (text, version))
    (run / "experiment.yaml").write_text(text, encoding="utf-8")
