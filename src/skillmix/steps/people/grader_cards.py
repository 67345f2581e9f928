"""Graders steps: a card for each grader, as JSON and as text, in the folder of the step."""

import json
from collections.abc import Mapping
from typing import Any, Final

from skillmix.calls import PEOPLE, is_human
from skillmix.catalog.catalog import Catalog
from skillmix.errors import UserError
from skillmix.experiment.experiment import Experiment
from skillmix.experiment.people_steps import GradersStep
from skillmix.hashing import short_id
from skillmix.render.layout import wrapped
from skillmix.runs.calling import StepContext
from skillmix.runs.finished.reading_state import reading_state
from skillmix.runs.finished.step_records import file_state
from skillmix.runs.folder_replacement import Kind, require_replaceable, write_whole
from skillmix.runs.progress.terminal import say
from skillmix.runs.progress.time_left import Work
from skillmix.runs.run import Run
from skillmix.scores.grader_card.card import GraderCard
from skillmix.scores.grader_card.card_text import (
    CORRECTED_NOTE,
    NOTE,
    card_text,
    card_title,
    cards_as_json,
    short_table,
)
from skillmix.scores.grader_card.graded_runs import run_cards
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

    def work(self, step: GradersStep, experiment: Experiment, run: Run) -> Work:
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
        context.progress.go_on(step.name)
        try:
            cards = run_cards([context.run], truth=step.truth, rules=step.rules)
        except UserError as error:  # the truth has not decided about a text yet
            cards = []
            result.waiting[step.name] = [_unanswered(step.truth) or error.message]
        if cards:
            with context.clock.measuring("saving"):
                _write(cards, step, context.run)
            for line in _lines(cards, step, context.run):
                say(line)
        elif step.name not in result.waiting:
            result.waiting[step.name] = ["there are no graded texts"]
        context.progress.end(step.name)
        return True


def _unanswered(truth: str | None) -> str | None:
    """What a card against people waits for; None for any other card."""
    if truth == PEOPLE:
        return "nobody has answered a question about a text yet"
    return f"{truth} has not answered a question about a text yet" if truth and is_human(truth) else None


def _write(cards: list[GraderCard], step: GradersStep, run: Run) -> None:
    folder = run.step(step.name)
    folder.mkdir(parents=True, exist_ok=True)
    parts = [*(card_text(card, wide=True) for card in cards), wrapped(NOTE), wrapped(CORRECTED_NOTE)]
    write_whole(folder / TEXT_FILE, "\n\n".join(parts) + "\n")
    write_whole(folder / JSON_FILE, json.dumps(cards_as_json(cards), ensure_ascii=False, indent=1) + "\n")


def _lines(cards: list[GraderCard], step: GradersStep, run: Run) -> list[str]:
    titles = [f"{step.name}: {card_title(card)}" for card in cards]
    return [*titles, short_table(cards), f"{step.name}: {run.step(step.name) / TEXT_FILE} has the cards"]


def _files(step: GradersStep, run: Run) -> str:
    return short_id("cards", file_state(run.step(step.name).rglob("*")))
