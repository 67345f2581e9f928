"""Write the catalogs that `experiments/pretraining-conditions.yaml` needs.

Usage: `python -m tools.condition_catalogs PARTITION FOLDER`.

`FOLDER/nonce` replaces the names of a partition's new figures with nonce words, and `FOLDER/few-frames` leaves the
teacher only one frame of each kind. Everything else is as in the catalog `figures`.
"""

import argparse
import shutil
from pathlib import Path
from typing import Any, Final

import yaml

from skillmix.catalog.files import load_catalog
from skillmix.files import SHIPPED

NONCE: Final = ("dax", "blick", "wug", "toma", "fep", "zorp", "gazzer", "kiki", "tupa")
"""Nonce words for figures, some of which are from studies of word learning."""


def write_catalogs(partition: str, folder: Path) -> None:
    """Write both catalogs."""
    catalog = load_catalog("figures")
    figures = {catalog.figure_of[skill] for skill in catalog.partition(partition).side("new-figures").skills}
    for name in ("nonce", "few-frames"):
        shutil.copytree(SHIPPED / "figures", folder / name, dirs_exist_ok=True)
    document = _read(folder / "nonce" / "figures.yaml")
    for nonce, figure in zip(NONCE, sorted(figures), strict=False):
        document["figures"][figure]["name"] = f"{nonce} {{word}}"
    _write(folder / "nonce" / "figures.yaml", document)
    grammar = _read(folder / "few-frames" / "grammar.yaml")
    for frames in grammar["figures"].values():
        for kind in ("events", "clauses", "closed", "before", "after"):
            if kind in frames:
                frames[kind] = frames[kind][:1]
    grammar["plain"] = grammar["plain"][:1]
    _write(folder / "few-frames" / "grammar.yaml", grammar)


def _read(file: Path) -> Any:
    return yaml.safe_load(file.read_text(encoding="utf-8"))


def _write(file: Path, document: Any) -> None:
    file.write_text(yaml.safe_dump(document, sort_keys=False, allow_unicode=True), encoding="utf-8")


def main() -> None:
    """Write the catalogs for the arguments of the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("partition", help="the partition whose new figures get nonce names, such as nested:201")
    parser.add_argument("folder", type=Path, help="where to write the catalogs")
    options = parser.parse_args()
    write_catalogs(options.partition, options.folder)


if __name__ == "__main__":
    main()
