"""Take finished steps from their records, and record the steps that end."""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress

from skillmix.errors import UserError
from skillmix.experiment.step_base import Step
from skillmix.render import listed
from skillmix.runs.calling import StepContext
from skillmix.runs.finished.step_records import FinishedSteps, StepRecord, journal_state
from skillmix.runs.progress import RunProgress, say
from skillmix.runs.run import Run
from skillmix.runs.students import with_trained
from skillmix.steps.kinds import kind_of
from skillmix.steps.step_kind import Dependencies, RunResult, StepInputs

Rows = Mapping[str, int]
"""The number of rows in the journal by student."""


def take_finished(step: Step, context: StepContext, result: RunResult, rows: Rows) -> bool:
    """Take a step from its record, if an earlier run finished it and nothing of it changed since.

    A step that must run again although it was finished says why.
    """
    inputs = inputs_of(context)
    record = inputs.run.finished.record(step.name)
    changes = _changes(step, record, inputs)
    if record is None or changes is None:
        return False
    if not changes and _lacks_rows(record, rows):
        changes = ["the journal"]
    line = None if changes else _taken(step, record, inputs.run, result)
    if line is None:
        say(f"{step.name} runs again: {listed(changes or ['what it made'])} changed")
        return False
    _end_taken(step, line, context.progress, result)
    return True


def take_all_finished(steps: Sequence[Step], inputs: StepInputs, result: RunResult, progress: RunProgress) -> bool:
    """Take all steps from their records, if all are finished and the journal is as the last run left it."""
    run = inputs.run
    if journal_state(run.journal) != run.finished.journal:
        return False
    lines = []
    for step in steps:
        record = run.finished.record(step.name)
        is_same = record is not None and _changes(step, record, inputs) == []
        line = _taken(step, record, run, result) if record and is_same else None
        if line is None:
            return False
        lines.append(line)
    for step, line in zip(steps, lines, strict=True):
        _end_taken(step, line, progress, result)
    return True


def _changes(step: Step, record: StepRecord | None, inputs: StepInputs) -> list[str] | None:
    """What the step depends on that changed since it was finished; None if it was not, or if nobody can tell."""
    depends_on = kind_of(step).dependencies(step, inputs) if record is not None else None
    return None if record is None or depends_on is None else record.changes(json.loads(json.dumps(depends_on)))


def _taken(step: Step, record: StepRecord, run: Run, result: RunResult) -> str | None:
    """What the step made, in words; None if it is gone, or if the record is not one that this version writes."""
    try:
        return kind_of(step).take(step, record.made, run, result)
    except (LookupError, TypeError, ValueError, AttributeError):
        return None


def _end_taken(step: Step, line: str, progress: RunProgress, result: RunResult) -> None:
    result.taken.add(step.name)
    progress.end(step.name, f"{step.name}: finished in an earlier run; {line}")


def _lacks_rows(record: StepRecord, rows: Rows) -> bool:
    """Whether the journal has fewer rows than the step left in it; rows are never removed, unless by hand."""
    return any(rows.get(student, 0) < count for student, count in record.made.get("rows", {}).items())


def dependencies_of(step: Step, context: StepContext) -> Dependencies | None:
    """What a step depends on now; None for a step that is never taken from its record."""
    return kind_of(step).dependencies(step, inputs_of(context))


def record_step(
    step: Step, context: StepContext, result: RunResult, depends_on: Dependencies | None, seconds: float
) -> None:
    """Record a step that just ended, unless something of it is missing or its dependencies changed while it ran.

    The caller holds the run's lock.
    """
    if depends_on is None or not _is_whole(step, result) or dependencies_of(step, context) != depends_on:
        return
    rows = context.journal.rows_by_student() if step.makes_calls else {}
    students = {cell.student for cell in step.undrawn_cells(context.experiment.steps)} | set(step.student_names)
    made = kind_of(step).made(step, context.run, result)
    made["rows"] = {student: count for student, count in rows.items() if student in students}
    earlier = context.run.finished.record(step.name)
    seconds += earlier.seconds if earlier else 0.0
    context.run.finished.keep(step.name, StepRecord(depends_on, made, round(seconds, 3)))


@contextmanager
def recorded_last_step(step: Step, context: StepContext, result: RunResult) -> Iterator[None]:
    """Record a step that runs without the run's lock, unless its run changed meanwhile."""
    before = dependencies_of(step, context)
    yield
    depends_on = dependencies_of(step, context)
    if depends_on is not None and depends_on == before and _is_whole(step, result):
        record = StepRecord(depends_on, kind_of(step).made(step, context.run, result))
        _write_under_lock(context.run, lambda finished: finished.keep(step.name, record))


def note_closed_journal(run: Run) -> None:
    """Note the state in which the journal was closed, so that the next run can tell that nothing changed."""
    _write_under_lock(run, lambda finished: finished.note_journal(journal_state(run.journal)))


def _write_under_lock(run: Run, write: Callable[[FinishedSteps], None]) -> None:
    """Change the records of a run; if another process has the run's lock by now, nothing is written."""
    with suppress(UserError), run.locked():
        write(run.finished)


def _is_whole(step: Step, result: RunResult) -> bool:
    """Whether a step that ended has all its calls, a data set all its texts, and people have answered."""
    counts, dataset = result.counts.get(step.name), result.datasets.get(step.name)
    has_calls = counts is None or not (counts.failed or counts.left_out or counts.stopped)
    return has_calls and not (dataset and dataset.short) and step.name not in result.waiting


def inputs_of(context: StepContext) -> StepInputs:
    """What dependencies are read from, with the models that train steps have made by now."""
    return StepInputs(with_trained(context.experiment, context.run), context.catalog, context.run)
