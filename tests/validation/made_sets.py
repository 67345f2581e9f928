"""Synthetic calibration sets for scripted graders: a text shows the skills whose code words it contains."""

from collections.abc import Sequence
from pathlib import Path

import yaml

from skillmix.catalog.files import load_catalog
from skillmix.models.scripted import code

CATALOG = load_catalog("paper")
SKILLS = 13
"""The number of skills in the texts."""
NONSENSE = "zzz"
"""The word by which a scripted grader recognizes nonsense."""


def entry(number: int, *, shows: bool = True, off: str | None = None, **more: object) -> dict[str, object]:
    """Return a text with a known label, different for every number."""
    skill, topic = CATALOG.skills[number % SKILLS].name, CATALOG.topics[number // SKILLS % 100]
    words = [f"Number {number}"]
    words += [code(skill)] if shows else []
    words += [code(topic)] if off != "topic" else []
    words += [NONSENSE] if off == "sense" else []
    known: dict[str, object] = {"skill": skill, "topic": topic, "text": f"{' '.join(words)}."}
    return known | {"label": "shows" if shows else "near"} | ({"off": off} if off else {}) | more


def entries(size: int) -> list[dict[str, object]]:
    """Return texts: half show their skill, a quarter is off topic, and another quarter makes no sense."""
    offs = (None, "topic", "sense", None)
    return [entry(number, shows=number // SKILLS % 2 == 0, off=offs[number % 4]) for number in range(size)]


def write_set(file: Path, texts: Sequence[object]) -> Path:
    """Write a set, and return its path."""
    file.write_text(yaml.safe_dump(list(texts), allow_unicode=True, sort_keys=False), encoding="utf-8")
    return file
