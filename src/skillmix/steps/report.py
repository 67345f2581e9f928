"""Report steps: tables, figures and pages on all earlier steps."""

from collections.abc import Mapping
from typing import Any

from skillmix.catalog.catalog import Catalog
from skillmix.experiment.experiment import Experiment
from skillmix.experiment.steps import ReportStep
from skillmix.hashing import short_id
from skillmix.runs.calling import StepContext
from skillmix.runs.finished.reading_state import reading_state
from skillmix.runs.finished.step_records import file_state
from skillmix.runs.folder_replacement import REPORT, require_replaceable
from skillmix.runs.progress.time_left import Work
from skillmix.runs.run import Run, open_run
from skillmix.steps.dependencies import Dependencies, StepInputs, of_settings
from skillmix.steps.step_kind import RunResult, StepKind


class ReportKind(StepKind[ReportStep]):
    """Write a report."""

    needs_closed_journal = True
    share_of_bar = 0.02

    def check(self, step: ReportStep, experiment: Experiment, catalog: Catalog, run: Run) -> None:
        """Refuse to replace a folder that is not a report, and find runs that do not exist."""
        require_replaceable(run.path / "report", REPORT)
        for name in step.runs:
            open_run(name)

    def work(self, step: ReportStep, experiment: Experiment, catalog: Catalog, run: Run) -> Work:
        """One unit, as no part of a report is measured."""
        return Work(step.name, "report", total=1)

    def dependencies(self, step: ReportStep, inputs: StepInputs) -> Dependencies | None:
        """The step's settings, and all files of the runs that the report shows."""
        states = {run.name: reading_state(run) for run in (inputs.run, *map(open_run, step.runs))}
        if None in states.values():
            return None
        return of_settings(step) | {f"the run {name}": state for name, state in states.items()}

    def made(self, step: ReportStep, run: Run, result: RunResult) -> dict[str, Any]:
        """The files of the report."""
        return {"files": _files(run)}

    def take(self, step: ReportStep, made: Mapping[str, Any], run: Run, result: RunResult) -> str | None:
        """The page, if no file of the report changed."""
        if made["files"] != _files(run):
            return None
        result.reports.append(run.path / "report" / "index.html")
        return f"the report in {run.path / 'report'} shows this state of the run"

    def run(self, step: ReportStep, context: StepContext, result: RunResult) -> bool:
        """Read the journal and write the report."""
        from skillmix.report.write import report_step

        context.progress.go_on(step.name)
        with context.clock.measuring("saving"):
            result.reports.append(report_step(context.experiment, step, context.run).page)
        context.progress.end(step.name)
        return True


def _files(run: Run) -> str:
    """A hash of the names, sizes and times of a report's files."""
    return short_id("report", file_state((run.path / "report").rglob("*")))
