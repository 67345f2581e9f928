"""Join runs of single partitions into one run: `python -m tools.join_runs EXPERIMENT RUN [RUN …]`.

An experiment file with `partitions:` can be run one partition at a time, on several machines:
`skillmix run FILE --set 'partitions=["nested:201"]' --set name=FILE-201`. These runs use the names and seeds of the
whole experiment, so their journals and folders can be joined into its run.
"""

import argparse
import shutil
import sqlite3
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Final

from skillmix.catalog.files import load_catalog
from skillmix.experiment.experiment import load_experiment
from skillmix.files import experiment_file
from skillmix.runs.run import Run, new_run, open_run

TABLES: Final = ("combination", "message", "call", "attempt", "excluded", "step")


def join(file: str, names: Sequence[str]) -> Run:
    """Write the run of an experiment file from runs of its partitions."""
    experiment = load_experiment(experiment_file(Path(file)))
    joined = new_run(experiment.name)
    with joined.write():
        joined.continue_with(experiment, load_catalog(experiment.catalog))
    for name in names:
        part = open_run(name)
        with closing(sqlite3.connect(joined.file)) as connection:
            connection.execute("ATTACH ? AS part", (str(part.file),))
            for table in TABLES:
                columns = [row[1] for row in connection.execute(f"PRAGMA table_info({table})") if row[1] != "id"]
                columns += ["id"] if table == "combination" else []
                listed = ", ".join(columns)
                connection.execute(f"INSERT OR IGNORE INTO {table} ({listed}) SELECT {listed} FROM part.{table}")
            connection.commit()
        for folder in part.path.iterdir():
            if folder.is_dir() and folder.name != "report":
                shutil.copytree(folder, joined.path / folder.name, dirs_exist_ok=True)
    return joined


def main() -> None:
    """Join the runs listed on the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("experiment", metavar="EXPERIMENT", help="the experiment file with all partitions")
    parser.add_argument("runs", metavar="RUN", nargs="+", help="finished runs of single partitions")
    options = parser.parse_args()
    join(options.experiment, options.runs)


if __name__ == "__main__":
    main()
