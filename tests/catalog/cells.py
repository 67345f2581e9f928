"""A small catalog whose skills are made of figures and words, in memory and as a folder."""

from pathlib import Path

import yaml

from skillmix.catalog.catalog import Catalog
from skillmix.catalog.files import load_catalog


def cells_folder(folder: Path, *, figures: int = 6, words: int = 4, kinds: int = 2, topics: int = 8) -> str:
    """Write the catalog; figures of the same kind share their words."""
    folder.mkdir(parents=True, exist_ok=True)
    skills = [
        {
            "name": f"figure {f} with {f % kinds}{'abcdefgh'[w]}",
            "category": f"kind {f % kinds}",
            "definition": "D.",
            "example": "E.",
            "figure": f"figure {f}",
            "word": f"{f % kinds}{'abcdefgh'[w]}",
        }
        for f in range(figures)
        for w in range(words)
    ]
    names = [f"topic {n}" for n in range(topics)]
    sides = {"train": {"categories": ["kind 0"]}, "held-out": {"categories": ["kind 1"]}}
    partitions = {
        "default": "kinds",
        "partitions": {"kinds": sides},
        "topics": {"train": names[::2], "held-out": names[1::2]},
    }
    for name, content in {"skills": skills, "topics": names, "partitions": partitions}.items():
        (folder / f"{name}.yaml").write_text(yaml.safe_dump(content), encoding="utf-8")
    return str(folder)


def cells_catalog(folder: Path, **sizes: int) -> Catalog:
    return load_catalog(cells_folder(folder / "cells", **sizes))
