"""Report steps: tables, figures and pages on all earlier steps."""

from skillmix.catalog.catalog import Catalog
from skillmix.experiment.experiment import Experiment
from skillmix.experiment.steps import ReportStep
from skillmix.runs.calling import StepContext
from skillmix.runs.folder_replacement import REPORT, require_replaceable
from skillmix.runs.progress.time_left import Work
from skillmix.runs.run import Run, open_run
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

    def work(self, step: ReportStep, experiment: Experiment, run: Run) -> Work:
        """One unit, as no part of a report is measured."""
        return Work(step.name, "report", total=1)

    def run(self, step: ReportStep, context: StepContext, result: RunResult) -> bool:
        """Read the journal and write the report."""
        from skillmix.report.write import report_step

        context.progress.go_on(step.name)
        result.reports.append(report_step(context.experiment, step, context.run).page)
        context.progress.end(step.name)
        return True
