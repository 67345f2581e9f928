"""Findings over the partitions of one run: each partition is taken for a run, because students of runs are pooled."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from skillmix.experiment.step_base import label_parts
from skillmix.scores.compare import Cells, ComparableStudent

_Finding = TypeVar("_Finding", bound=Any)
_UNDER = " under "
"""Between the name of a run, which has no blanks, and a partition."""


def apart(students: Sequence[ComparableStudent], cells: Cells) -> tuple[list[ComparableStudent], Cells]:
    """Students and cells with a run for each partition that steps of a run name, and settings without partitions."""
    places: dict[tuple[str, str], dict[str | None, None]] = {}
    own = {}
    for key, cell in cells.items():
        partition = label_parts(key.setting).partition
        places.setdefault((key.run, key.student), {})[partition] = None
        setting = key.setting.removesuffix(f"{_UNDER}{partition}")
        own[key._replace(run=_joined(key.run, partition), setting=setting)] = cell
    split = [
        replace(student, run=_joined(student.run, partition), partition=partition or student.partition)
        for student in students
        for partition in places.get((student.run, student.student), {None: None})
    ]
    return split, own


def _joined(run: str, partition: str | None) -> str:
    return f"{run}{_UNDER}{partition}" if partition else run


def together(finding: _Finding, students: Sequence[ComparableStudent]) -> _Finding:
    """A finding with the runs that there are; over several partitions, its students have their names in the file."""
    partitions = {run.partition(_UNDER)[2] for run in finding.runs}
    runs, repeated = (
        tuple(dict.fromkeys(run.partition(_UNDER)[0] for run in names)) for names in (finding.runs, finding.repeated)
    )
    if len(partitions) == 1:
        setting = _joined(finding.setting, partitions.pop())
        return replace(finding, runs=runs, repeated=repeated, setting=setting)
    names: Mapping[tuple[str, str], str] = {(s.run, s.student): s.family or s.student for s in students}
    first, second = (names[finding.runs[0], student] for student in (finding.first, finding.second))
    return replace(finding, runs=runs, repeated=repeated, first=first, second=second)
