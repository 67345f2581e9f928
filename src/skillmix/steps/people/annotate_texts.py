"""Annotate steps: who reads which texts. The step waits for nobody; it says what people have not answered yet."""

from collections.abc import Mapping
from typing import Any

from skillmix.catalog.catalog import Catalog
from skillmix.errors import UserError
from skillmix.experiment.experiment import Experiment
from skillmix.experiment.steps import AnnotateStep
from skillmix.render import plural
from skillmix.runs.calling import StepContext
from skillmix.runs.finished.reading_state import reading_state
from skillmix.runs.finished.step_records import journal_state
from skillmix.runs.graders.rater_journal import rater_file, require_same_rater
from skillmix.runs.graders.run_grader import PERSON
from skillmix.runs.progress.time_left import Work
from skillmix.runs.run import Run
from skillmix.steps.dependencies import Dependencies, StepInputs, of_settings
from skillmix.steps.step_kind import RunResult, StepKind


class AnnotateKind(StepKind[AnnotateStep]):
    """Choose texts for people, count their answers, and let simulated raters answer."""

    needs_closed_journal = True
    share_of_bar = 0.01

    def check(self, step: AnnotateStep, experiment: Experiment, catalog: Catalog, run: Run) -> None:
        """Refuse a name that means another rater in the run, and a file in place of the step's folder."""
        for rater in step.raters:
            require_same_rater(run.journal, rater, step.simulated.get(rater, PERSON))
        folder = run.step(step.name)
        if folder.exists() and not folder.is_dir():
            raise UserError(f"{folder} is a file.", hint="The step writes a folder there. Move the file.")

    def work(self, step: AnnotateStep, experiment: Experiment, catalog: Catalog, run: Run) -> Work:
        """One unit: the step waits for nobody."""
        return Work(step.name, "annotate", total=1)

    def dependencies(self, step: AnnotateStep, inputs: StepInputs) -> Dependencies | None:
        """The step's settings, and the run without the answers of people."""
        state = reading_state(inputs.run, with_people=False)
        return None if state is None else of_settings(step) | {"the texts of the run": state}

    def made(self, step: AnnotateStep, run: Run, result: RunResult) -> dict[str, Any]:
        """The state of the raters' answers."""
        return {"answers": _answers_state(step, run)}

    def take(self, step: AnnotateStep, made: Mapping[str, Any], run: Run, result: RunResult) -> str | None:
        """All texts are answered, if no answer changed."""
        if made["answers"] != _answers_state(step, run):
            return None
        return f"{plural(len(step.raters), 'rater')} answered all texts"

    def run(self, step: AnnotateStep, context: StepContext, result: RunResult) -> bool:
        """Count the answers, store those of simulated raters, and write spreadsheets for people with texts left."""
        from skillmix.steps.people.open_answers import missing_answers

        context.progress.go_on(step.name)
        if result.stopped is None:
            missing = missing_answers(step, context.run)
        else:  # a sample of fewer texts would be another sample
            missing = ["people read when all texts are written"]
        if missing:
            result.waiting[step.name] = missing
        context.progress.end(step.name)
        return True


def _answers_state(step: AnnotateStep, run: Run) -> list[Any]:
    files = {rater_file(rater) for rater in step.raters}
    return [file for file in journal_state(run.journal) if str(file[0]).removesuffix("-wal") in files]
