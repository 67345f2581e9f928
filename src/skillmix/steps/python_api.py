"""The same from Python: `skillmix.evaluate(...)` returns records and a table, in a notebook too."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, TypeVar

from skillmix.catalog.catalog import SETTINGS, Setting
from skillmix.experiment.experiment import experiment_of
from skillmix.runs.run import Run
from skillmix.scores.cells import CellScore
from skillmix.scores.scoring import run_scores
from skillmix.scores.table import score_table
from skillmix.steps.run import run_checked

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class Evaluation:
    """What came of an evaluation; printing it shows the table."""

    run: Run
    scores: list[CellScore]
    is_complete: bool

    def __str__(self) -> str:
        return score_table(self.scores)


def evaluate(
    *,
    name: str,
    student: str | Mapping[str, object],
    grader: str | Mapping[str, object],
    k: Sequence[int] = (1, 2, 3, 4, 5),
    settings: Sequence[Setting] = SETTINGS,
    **more: Any,
) -> Evaluation:
    """Evaluate one student with one grader; running it again goes on where it stopped.

    Each is given as a spec, or as a mapping of what an experiment file says of it, such as `model` and `key`.
    `combinations`, `generations`, `rounds`, `seed`, `catalog`, `partition` and `prompts` may be given too.
    """
    step_keys = ("combinations", "generations", "ladder")
    step = {key: more.pop(key) for key in step_keys if key in more}
    judge = _settings(grader) | ({"rounds": more.pop("rounds")} if "rounds" in more else {})
    document = {
        "name": name,
        "students": {"student": _settings(student)},
        "graders": {"grader": judge},
        "steps": [
            {
                "name": "evaluate",
                "stage": "evaluate",
                "students": ["student"],
                "graders": ["grader"],
                "k": list(k),
                "settings": list(settings),
            }
            | step
        ],
        **more,
    }
    experiment = experiment_of(document, source="skillmix.evaluate")
    result = _beside_any_loop(lambda: run_checked(experiment))
    scores = run_scores(result.run)
    return Evaluation(result.run, scores, result.is_complete and not result.ungraded(scores))


def _settings(model: str | Mapping[str, object]) -> dict[str, object]:
    return {"model": model} if isinstance(model, str) else dict(model)


def _beside_any_loop(work: Callable[[], _T]) -> _T:
    """Work that starts an event loop of its own: in a thread where one is running already, as in a notebook."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return work()
    with ThreadPoolExecutor(max_workers=1) as thread:
        return thread.submit(work).result()
