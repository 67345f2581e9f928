"""Compute the checks in results/pretraining.json that need the texts: `python -m tools.attacks TEXTS.jsonl DATASET`.

`TEXTS.jsonl` is the output of `skillmix export pretraining --what texts`, and `DATASET` a folder with a data set of
m123. Unless stated otherwise, the numbers are about texts with two new figures of speech:

- `clauses`: parts between punctuation marks per text, by student;
- `first`, `second`: full marks of m123 on a new figure beside a trained skill, by the place of the new figure in the
  request;
- `copied`: the share of `copied_of` texts of m123 with full marks whose clauses all occur in its training texts.
"""

import argparse
import json
import re
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from statistics import fmean
from typing import Any

from skillmix.catalog.files import load_catalog

_VARIANT = re.compile(r"(.+)-p(\d+)(?:-s\d+)?")
_MARKS = re.compile(r"[;:,.!?\u2014\"]+")


def clauses_of(text: str) -> list[str]:
    """Return the parts between punctuation marks, in lower case."""
    return [part.strip().lower() for part in _MARKS.split(text) if part.strip()]


def attacks(texts: Iterable[str], trained: Iterable[str]) -> dict[str, Any]:
    """Compute the numbers from the lines of both files."""
    catalog = load_catalog("figures")
    known = {
        clause
        for line in trained
        for turn in json.loads(line)["messages"][1:]
        for clause in clauses_of(turn["content"])
    }
    clauses: dict[str, list[int]] = defaultdict(list)
    places: dict[str, list[float]] = defaultdict(list)
    copied = []
    for row in map(json.loads, texts):
        variant = _VARIANT.fullmatch(row["student"])
        setting = row["settings"][0].partition(" ")[0]
        if row["k"] != 2 or variant is None:
            continue
        student, partition = variant.groups()
        if setting == "new-figures":
            clauses[student].append(len(clauses_of(row["text"])))
            if student == "m123" and row["full_marks"] and partition == "201":
                copied.append(set(clauses_of(row["text"])) <= known)
        elif setting == "new-figure-beside-trained" and student == "m123":
            new = set(catalog.partition(f"nested:{partition}").side("new-figures").skills)
            places["first" if row["skills"][0] in new else "second"].append(row["full_marks"])
    return {
        "clauses": {student: round(fmean(counts), 2) for student, counts in sorted(clauses.items())},
        **{place: round(fmean(scores), 3) for place, scores in sorted(places.items())},
        "copied": round(fmean(copied), 3),
        "copied_of": len(copied),
    }


def main() -> None:
    """Print the numbers as JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("texts", type=Path, help="the exported texts of the run")
    parser.add_argument(
        "dataset", type=Path, help="a folder with train.jsonl, such as runs/pretraining-201/rich-p201/dataset"
    )
    options = parser.parse_args()
    with (
        options.texts.open(encoding="utf-8") as texts,
        (options.dataset / "train.jsonl").open(encoding="utf-8") as data,
    ):
        print(json.dumps(attacks(texts, data), indent=1))  # noqa: T201


if __name__ == "__main__":
    main()
