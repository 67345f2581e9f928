"""The work of a graders step: write the cards, and show a short table."""

import json
from collections.abc import Sequence
from pathlib import Path

from skillmix.calls import PEOPLE, is_human
from skillmix.errors import UserError
from skillmix.experiment.steps import GradersStep
from skillmix.render import wrapped
from skillmix.runs.folder_replacement import write_whole
from skillmix.runs.progress.terminal import say
from skillmix.runs.run import Run
from skillmix.scores.cards import (
    CORRECTED_NOTE,
    NOTE,
    card_text,
    card_title,
    cards_as_json,
    run_cards,
    short_table,
)
from skillmix.scores.grader_card import GraderCard


def write_cards(step: GradersStep, run: Run, *, json_file: str, text_file: str) -> str | None:
    """Write the cards of a run to the folder of the step; what is missing, in words, if there are none."""
    try:
        cards = run_cards([run], truth=step.truth, rules=step.rules)
    except UserError as error:  # the truth has not decided about a text yet
        return _unanswered(step.truth) or error.message
    if not cards:
        return "there are no graded texts"
    folder = run.step(step.name)
    _write(cards, folder, json_file, text_file)
    for card in cards:
        say(f"{step.name}: {card_title(card)}")
    say(short_table(cards))
    say(f"{step.name}: {folder / text_file} has the cards")
    return None


def _unanswered(truth: str | None) -> str | None:
    """What a card against people waits for; None for any other card."""
    if truth == PEOPLE:
        return "nobody has answered a question about a text yet"
    return f"{truth} has not answered a question about a text yet" if truth and is_human(truth) else None


def _write(cards: Sequence[GraderCard], folder: Path, json_file: str, text_file: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    parts = [*(card_text(card, wide=True) for card in cards), wrapped(NOTE), wrapped(CORRECTED_NOTE)]
    write_whole(folder / text_file, "\n\n".join(parts) + "\n")
    write_whole(folder / json_file, json.dumps(cards_as_json(cards), ensure_ascii=False, indent=1) + "\n")
