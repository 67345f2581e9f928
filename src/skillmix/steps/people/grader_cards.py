"""Graders steps: a card for each grader, as JSON and as text, in the folder of the step."""

from collections.abc import Mapping
from typing import Any, Final

from skillmix.catalog.catalog import Catalog
from skillmix.experiment.experiment import Experiment
from skillmix.experiment.steps import GradersStep
from skillmix.hashing import short_id
from skillmix.runs.calling import StepContext
from skillmix.runs.finished.reading_state import reading_state
from skillmix.runs.finished.step_records import file_state
from skillmix.runs.folder_replacement import Kind, require_replaceable
from skillmix.runs.progress.time_left import Work
from skillmix.runs.run import Run
from skillmix.steps.dependencies import Dependencies, StepInputs, of_settings
from skillmix.steps.step_kind import RunResult, StepKind

JSON_FILE: Final = "cards.json"
TEXT_FILE: Final = "cards.txt"
_CARDS: Final = Kind(
    "a folder of grader cards", lambda folder: (folder / JSON_FILE).is_file(), (JSON_FILE, TEXT_FILE, "*.partial")
)


class GradersKind(StepKind[GradersStep]):
    """Write the cards of all graders."""

    needs_closed_journal = True
    share_of_bar = 0.01

    def check(self, step: GradersStep, experiment: Experiment, catalog: Catalog, run: Run) -> None:
        """Refuse to write into a folder that holds anything else."""
        require_replaceable(run.step(step.name), _CARDS)

    def work(self, step: GradersStep, experiment: Experiment, catalog: Catalog, run: Run) -> Work:
        """One unit."""
        return Work(step.name, "graders", total=1)

    def dependencies(self, step: GradersStep, inputs: StepInputs) -> Dependencies | None:
        """The step's settings, and all files of the run that cards are read from."""
        state = reading_state(inputs.run)
        return None if state is None else of_settings(step) | {"the run": state}

    def made(self, step: GradersStep, run: Run, result: RunResult) -> dict[str, Any]:
        """The files."""
        return {"files": _files(step, run)}

    def take(self, step: GradersStep, made: Mapping[str, Any], run: Run, result: RunResult) -> str | None:
        """The cards, if no file changed."""
        is_same = made["files"] == _files(step, run)
        return f"the cards in {run.step(step.name)} show this state of the run" if is_same else None

    def run(self, step: GradersStep, context: StepContext, result: RunResult) -> bool:
        """Read the journal and write the cards; without a truth, say what is missing."""
        from skillmix.steps.people.card_files import write_cards

        context.progress.go_on(step.name)
        with context.clock.measuring("saving"):
            missing = write_cards(step, context.run, json_file=JSON_FILE, text_file=TEXT_FILE)
        if missing is not None:
            result.waiting[step.name] = [missing]
        context.progress.end(step.name)
        return True


def _files(step: GradersStep, run: Run) -> str:
    return short_id("cards", file_state(run.step(step.name).rglob("*")))
