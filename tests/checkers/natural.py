"""Recall and precision of full marks by code, on texts of a writer who saw the definitions and not the code.

`python -m tests.checkers.natural FILE…` prints them; each entry of a file has `skills`, `topic`, `text` and `kind`.
With `--wrong` it lists the texts on which code and writer disagree.
"""

import sys
from collections import Counter
from functools import cache
from pathlib import Path
from typing import NamedTuple

import yaml

from skillmix.catalog.files import load_catalog
from skillmix.runs.verdicts import RulesGrader

KINDS = ("natural", "nonsense", "letter-only", "pasted-topic")


class Judged(NamedTuple):
    """One text, and what code says about it."""

    kind: str
    text: str
    denied: tuple[str, ...]
    """The criteria that it misses, with the reason; length is not judged."""
    is_woven: bool


class Rates(NamedTuple):
    """How far full marks tell natural texts from the others."""

    recall: float
    precision: float
    full: Counter[str]
    texts: Counter[str]


@cache
def judged(file: Path) -> tuple[Judged, ...]:
    """Judge every text of a file."""
    grader = RulesGrader(load_catalog("verifiable"))
    found = []
    for entry in yaml.safe_load(file.read_text(encoding="utf-8")):
        assert entry["kind"] in KINDS, entry
        verdict = grader.verdict(entry["text"], skills=entry["skills"], topic=entry["topic"])
        assert len(verdict.evidence) == len(entry["skills"]), entry
        denied = tuple(f"{name}: {reason}" for name, reason in verdict.reasons.items())
        found.append(Judged(entry["kind"], entry["text"], denied, verdict.is_woven(entry["skills"]) is True))
    return tuple(found)


def rates(*files: Path) -> Rates:
    """Recall: natural texts with full marks. Precision: natural texts among all with full marks."""
    every = [one for file in files for one in judged(file)]
    texts = Counter(one.kind for one in every)
    full = Counter(one.kind for one in every if not one.denied)
    return Rates(full["natural"] / texts["natural"], full["natural"] / max(1, full.total()), full, texts)


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")


def main() -> None:
    """Print the rates of the files named on the command line."""
    files = [Path(name) for name in sys.argv[1:] if name != "--wrong"]
    found = rates(*files)
    for kind in KINDS:
        woven = sum(one.kind == kind and not one.denied and one.is_woven for file in files for one in judged(file))
        _say(f"{kind}: {found.full[kind]} of {found.texts[kind]} have full marks, {woven} of these woven")
    _say(f"recall {found.recall:.3f}, precision {found.precision:.3f}")
    if "--wrong" in sys.argv:
        for one in (one for file in files for one in judged(file)):
            if (one.kind == "natural") == bool(one.denied):
                _say(f"- {one.kind}: {one.text}\n  {'; '.join(one.denied) or 'full marks'}")


if __name__ == "__main__":
    main()
