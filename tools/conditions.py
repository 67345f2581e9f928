"""Write the catalogs and the data for the experiments `pretraining-conditions` and `pretraining-requests`.

Usage: `python -m tools.conditions PARTITION FOLDER [--data FILE]`.

`FOLDER/nonce` replaces the names of a partition's new figures with nonce words, and `FOLDER/few-frames` leaves the
teacher only one frame of each kind. Everything else is as in the catalog `figures`. `FOLDER/padded.jsonl` contains the
conversations of `--data`, the train.jsonl of m123, but each request for one skill has zero, one or two additional items
"any skill", so that new figures occur in requests of every length.
"""

import argparse
import json
import shutil
from functools import partial
from pathlib import Path
from typing import Any, Final

import yaml

from skillmix.catalog.files import load_catalog
from skillmix.files import SHIPPED
from skillmix.hashing import digest

NONCE: Final = ("dax", "blick", "wug", "toma", "fep", "zorp", "gazzer", "kiki", "tupa")
"""Nonce words that replace the names of figures of speech; some are from studies of word learning."""


def write_catalogs(partition: str, folder: Path) -> None:
    """Write the catalogs `nonce` and `few-frames`."""
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


def write_padded(data: Path, file: Path) -> None:
    """Write conversations whose requests for one skill have one to three items."""
    file.parent.mkdir(parents=True, exist_ok=True)
    with data.open(encoding="utf-8") as lines, file.open("w", encoding="utf-8") as written:
        for line in lines:
            row = json.loads(line)
            start, items = row["messages"][0]["content"].removesuffix(".").split(": ", 1)
            parts = items.split("; ")
            if len(parts) == 2:  # a topic and one skill
                parts += ["any skill"] * (digest("padded", line)[0] % 3)
                order = sorted(enumerate(parts), key=partial(digest, "padded", line))
                row["messages"][0]["content"] = f"{start}: {'; '.join(part for _, part in order)}."
            written.write(json.dumps(row, ensure_ascii=False) + "\n")


def _read(file: Path) -> Any:
    return yaml.safe_load(file.read_text(encoding="utf-8"))


def _write(file: Path, document: Any) -> None:
    file.write_text(yaml.safe_dump(document, sort_keys=False, allow_unicode=True), encoding="utf-8")


def main() -> None:
    """Write the catalogs and, with `--data`, the conversations."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("partition", help="the partition whose new figures get nonce names, such as nested:201")
    parser.add_argument("folder", type=Path, help="where to write the catalogs and the data")
    parser.add_argument("--data", type=Path, metavar="FILE", help="the train.jsonl of m123's data set")
    options = parser.parse_args()
    write_catalogs(options.partition, options.folder)
    if options.data:
        write_padded(options.data, options.folder / "padded.jsonl")


if __name__ == "__main__":
    main()
