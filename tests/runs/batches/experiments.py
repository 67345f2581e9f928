"""Tiny experiments whose student and grader are on a stub provider."""

from pathlib import Path
from typing import Any

import yaml

from skillmix.runs import scheduler
from skillmix.runs.batches import batched
from skillmix.runs.batches.batched import BatchPace

FAST = BatchPace(
    first_look=0.01,
    longest_wait=0.02,
    tick=0.005,
    settled=0.15,
    late=0.15,
    pause=0.01,
    longest_pause=0.02,
)


def hurry() -> None:
    """Wait for nothing longer than a test can; for processes of their own."""
    batched.PACE = FAST
    scheduler.FIRST_WAIT = 0.001  # type: ignore[misc]
    scheduler.LONGEST_WAIT = 0.01  # type: ignore[misc]


def written(folder: Path, address: str, *, name: str = "run", shape: str = "openai", **changes: Any) -> Path:
    """An experiment file: every conversation has two turns, a grading, and another one if it cannot be read."""
    model: dict[str, Any] = {"batch": changes.pop("batch", True), "timeout": 20}
    if "key" in changes:
        model["key"] = changes.pop("key")
    if shape == "azure":
        model["batch"] = model["batch"] and "azure"
    provider = "anthropic" if shape == "anthropic" else "openai"
    document = {
        "name": name,
        "students": {"s": {"model": f"{provider}:student@{address}"} | model},
        "graders": {"g": {"model": f"{provider}:grader@{address}", "rounds": 1, "attempts": 2} | model},
        "steps": [
            {"name": "e", "stage": "evaluate", "students": ["s"], "graders": ["g"], "settings": ["all"], "k": [1, 2]}
            | {"combinations": changes.pop("combinations", 4), "generations": 1}
        ],
    } | changes
    path = folder / f"{name}.yaml"
    path.write_text(yaml.safe_dump(document), encoding="utf-8")
    return path
