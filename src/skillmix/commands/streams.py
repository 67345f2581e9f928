"""What the commands read and print alike: standard input, JSON, scores, evidence and the name of the program."""

import json
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from shlex import quote
from shutil import which
from typing import TYPE_CHECKING, Final

from skillmix.errors import UserError

if TYPE_CHECKING:
    from skillmix.runs.run import Run
    from skillmix.scores.cells import CellScore
    from skillmix.scores.outcomes import OutcomeScore
    from skillmix.scores.scoring import ScoredRun

METRIC_NAMES = ("full_marks", "all_skills", "skill_fraction")
"""The metrics, as `--metric` names them."""


def program() -> str:
    """How a user in this folder calls skillmix: by its name if the shell finds it, otherwise by its path."""
    called = Path(sys.argv[0])
    if called.name != "skillmix":
        return f"{quote(_from_here(Path(sys.executable)))} -m skillmix"
    on_path = which("skillmix")
    return "skillmix" if on_path and called.exists() and called.samefile(on_path) else quote(_from_here(called))


def _from_here(path: Path) -> str:
    absolute = Path.cwd() / path
    return str(absolute.relative_to(Path.cwd())) if absolute.is_relative_to(Path.cwd()) else str(absolute)


_LONGEST_INPUT: Final = 64 << 20


def standard_input() -> str:
    """Read standard input to its end, as text."""
    try:
        if sys.stdin.isatty():
            print("reading standard input; end it with Ctrl-D", file=sys.stderr)
        raw = sys.stdin.buffer.read(_LONGEST_INPUT + 1)
    except (AttributeError, ValueError):
        raise UserError("Standard input is closed.", hint="Give the text to read on standard input.") from None
    if len(raw) > _LONGEST_INPUT:
        raise UserError(f"Standard input has more than {_LONGEST_INPUT >> 20} MiB.", hint="Give one text.")
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise UserError(
            f"Standard input is not UTF-8 text (byte {error.start}).", hint="Give the text in UTF-8."
        ) from None


def score_rows(scores: "Iterable[CellScore]", *, by_sets: bool = False) -> list[dict[str, object]]:
    """The documented form of scores; `by_sets` adds the skill sets, and how many combinations were trained on."""
    hidden = set() if by_sets else {"sets", "trained_on", "seen_pairs"}
    return [{name: value for name, value in score.json_row().items() if name not in hidden} for score in scores]


def print_first(scored: "ScoredRun") -> None:
    """Print before any score which students miss the format."""
    from skillmix.render import wrapped

    for line in scored.format_first:
        print(f"{wrapped(line, indent=2)}\n")


def print_scores(scores: "Sequence[CellScore]", *, run: str, metric: str = "full_marks", wide: bool = False) -> None:
    """Print the scores of a run: one metric by k and how to see more, or everything that is known."""
    from skillmix.render import wrapped
    from skillmix.scores.table import NOTE, WIDE_NOTE, score_table, score_title, wide_table

    if wide:
        print(f"{wide_table(scores)}\n\n{wrapped(WIDE_NOTE)}")
        return
    print(f"{score_title(scores, metric)}:\n\n{score_table(scores, metric)}\n\n{wrapped(NOTE)}")
    others = " or ".join(name for name in METRIC_NAMES if name != metric)
    more = f"skillmix scores {quote(run)} --wide"
    print(wrapped(f"More: {more} for every metric and count; --metric {others}; --json"))


def print_result(scored: "ScoredRun", *, run: str) -> None:
    """Print the main result, and every tuned student against its base."""
    from skillmix.commands.closing import shown_lines
    from skillmix.render import wrapped

    lines = [*scored.result, *shown_lines(scored.changes, run=run)]
    if lines:
        print("\n" + "\n".join(wrapped(line, indent=2) for line in lines))


def print_outcomes(run: "Run", *, name: str, as_json: bool) -> "list[OutcomeScore]":
    """Print and return the outcomes of a run whose graders name them, and the differences between its students."""
    from skillmix.render import wrapped
    from skillmix.scores.outcomes import run_outcome_changes, run_outcomes
    from skillmix.scores.table import OUTCOME_NOTE, outcome_change_note, outcome_table, outcome_title

    scores = run_outcomes(run)
    if as_json:
        print_json([score.json_row() for score in scores])
    elif scores:
        print(f"{outcome_title(scores)}:\n\n{outcome_table(scores)}\n\n{wrapped(OUTCOME_NOTE)}")
        note = outcome_change_note(run_outcome_changes(run))
        if note:
            print("\n" + "\n".join(wrapped(line, indent=2) for line in note.splitlines()))
        print(wrapped(f"More: skillmix texts {quote(name)}; --json"))
    return scores


def print_notes(notes: Iterable[str]) -> None:
    """Print notes on a result to standard error."""
    for note in notes:
        print(f"note: {note}", file=sys.stderr)


def print_json(value: object) -> int:
    """Print a value as JSON and return the exit status 0."""
    print(json.dumps(value, ensure_ascii=False, indent=1, allow_nan=False))
    return 0
