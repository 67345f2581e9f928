"""Average tokens of past calls, from which `--dry-run` derives expected costs."""

import json
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Final, Literal, NamedTuple

from skillmix.calls import extra_json
from skillmix.errors import UserError
from skillmix.runs.database import RUN_FILE
from skillmix.runs.journal import JournalReader
from skillmix.runs.run import Run

Stage = Literal["generate", "grade"]
_MOST_JOURNALS: Final = 20
"""The most journals of other runs that are read, latest first; an estimate must not take minutes."""
_AVERAGES: Final = (
    "SELECT stage, coalesce(grader, student), model, decoding, json_array_length(skills), count(*), sum(input_tokens), "
    "sum(output_tokens), sum(coalesce(attempt, 0) = 0) FROM call JOIN combination ON combination.id = call.combination "
    "WHERE status = 'done' AND origin = 'call' AND input_tokens > 0 AND output_tokens >= 0 GROUP BY 1, 2, 3, 4, 5"
)


@dataclass(frozen=True, slots=True)
class CallAverages:
    """Average tokens of past calls of one model about combinations of one k."""

    calls: int
    """All past calls of the model, for any k."""
    input_tokens: float
    output_tokens: float
    calls_per_vote: float
    """Above 1 if unparseable grades were retried; 1 for students."""
    source: Literal["this run", "other runs"]

    @property
    def basis(self) -> str:
        """Describe the source and its size."""
        return f"{self.source} ({self.calls} {'call' if self.calls == 1 else 'calls'})"


class AskedOf(NamedTuple):
    """The called model, as a journal stores it."""

    stage: Stage
    name: str
    """The student or the grader of the experiment."""
    model: str | None
    """None for the model of a train step, which has its own name in each run."""
    extra: str | None


class _Group(NamedTuple):
    """Past calls of one name, model, sampling and k."""

    asked_of: AskedOf
    k: int
    calls: int
    input_tokens: int
    output_tokens: int
    first_attempts: int


class PastCalls:
    """The calls of a run, and those of other runs in the same folder; unreadable journals are omitted."""

    def __init__(self, run: Run) -> None:
        self._run = run

    def averages(self, asked_of: AskedOf, k: int, *, other_runs: bool) -> CallAverages | None:
        """Average over calls with the same name, model and extra fields, or else with the same model and fields.

        Prompts and replies grow with k, so the nearest k with calls counts. None if there is no such call. Other runs
        count only if this run has no such call, and if `other_runs` is true.
        """
        source: Literal["this run", "other runs"] = "this run"
        alike = [g for g in self._own if _is_same_model(g.asked_of, asked_of) and g.asked_of.name == asked_of.name]
        if asked_of.model is not None:
            alike = alike or [group for group in self._own if _is_same_model(group.asked_of, asked_of)]
            if other_runs and not alike:
                source = "other runs"
                alike = [group for group in self._elsewhere if _is_same_model(group.asked_of, asked_of)]
        if not alike:
            return None
        nearest = min({group.k for group in alike}, key=lambda other: (abs(other - k), -other))
        groups = [group for group in alike if group.k == nearest]
        calls = sum(group.calls for group in groups)
        return CallAverages(
            calls=sum(group.calls for group in alike),
            input_tokens=sum(group.input_tokens for group in groups) / calls,
            output_tokens=sum(group.output_tokens for group in groups) / calls,
            calls_per_vote=calls / max(1, sum(group.first_attempts for group in groups)),
            source=source,
        )

    @cached_property
    def _own(self) -> list[_Group]:
        return list(_groups([self._run.file]))

    @cached_property
    def _elsewhere(self) -> list[_Group]:
        """Read calls of other runs on first use: most dry runs do not need them."""
        own = self._run.path
        files = [file for file in own.parent.glob(f"*/{RUN_FILE}") if file.parent != own]
        latest = sorted(files, key=lambda file: file.stat().st_mtime, reverse=True)
        return list(_groups(latest[:_MOST_JOURNALS]))


def _is_same_model(stored: AskedOf, asked_of: AskedOf) -> bool:
    """Whether calls of the same stage went to the same model with the same fields; a model of None is any."""
    is_same = stored.stage == asked_of.stage and stored.extra == asked_of.extra
    return is_same and asked_of.model in (None, stored.model)


def _groups(files: Iterable[Path]) -> Iterator[_Group]:
    for file in files:
        # A run reports faults in its journal itself; an estimate ignores them.
        with suppress(UserError, OSError, ValueError, TypeError, AttributeError), JournalReader(file) as journal:
            for stage, name, model, decoding, *numbers in journal.rows(_AVERAGES):
                extra = extra_json(json.loads(decoding).get("extra", {}))
                yield _Group(AskedOf(stage, name, model, extra), *map(int, numbers))
