"""Synthetic corpora: passages that show known skills to the scripted grader."""

import gzip
import json
import random
from collections.abc import Mapping, Sequence
from pathlib import Path

from skillmix.models.scripted import code

FILLER = ("plain", "words", "without", "meaning", "follow", "one", "another", "until", "the", "passage", "is", "long")


def passage(number: int, shown: Sequence[str] = ()) -> str:
    """Return a unique passage of about 25 words with the code words of the skills it shows."""
    filler = random.Random(number).choices(FILLER, k=12)
    return (
        f"Text number {number} begins {' '.join(filler)} end. It has {' '.join(map(code, shown))} inside and is over."
    )


def made_texts(shares: Mapping[str, float], *, size: int) -> tuple[list[str], dict[str, float]]:
    """Return texts that show skills independently with about these shares, and the actual shares."""
    chance = random.Random(7)
    shown = [[skill for skill, share in shares.items() if chance.random() < share] for _ in range(size)]
    truth = {skill: sum(skill in one for one in shown) / size for skill in shares}
    return [passage(number, skills) for number, skills in enumerate(shown)], truth


def write_jsonl(file: Path, texts: Sequence[str], *, field: str = "text") -> Path:
    """Write a file of JSON Lines, compressed if its name ends in .gz."""
    content = "".join(json.dumps({field: text}) + "\n" for text in texts).encode()
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(gzip.compress(content) if file.suffix == ".gz" else content)
    return file


def write_catalog(folder: Path, skills: Sequence[str]) -> Path:
    """Write a catalog of these skills."""
    folder.mkdir(parents=True, exist_ok=True)
    rows = [{"name": s, "category": "all", "definition": f"What {s} is.", "example": f"See {s}."} for s in skills]
    sides = {"train": {"skills": list(skills[:-1])}, "held-out": {"skills": [skills[-1]]}}
    partitions = {
        "default": "one",
        "partitions": {"one": sides},
        "topics": {"train": ["Sewing"], "held-out": ["Golf"]},
    }
    for name, content in (("skills", rows), ("topics", ["Sewing", "Golf"]), ("partitions", partitions)):
        (folder / f"{name}.yaml").write_text(json.dumps(content), encoding="utf-8")
    return folder
