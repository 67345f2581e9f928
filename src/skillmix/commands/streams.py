"""What the commands share: standard input, JSON out, the catalogue that is named."""

import argparse
import json
import sys
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path
from shlex import quote
from shutil import which
from typing import TYPE_CHECKING

from skillmix.errors import UserError

if TYPE_CHECKING:
    from skillmix.scores.cells import Score


def catalog_name(options: argparse.Namespace) -> str:
    """The one catalogue that was named, or the default."""
    if options.name and options.catalog and options.name != options.catalog:
        raise UserError("Two catalogues were named.", hint="Give NAME or --catalog, not both.")
    return str(options.name or options.catalog or "paper")


def program() -> str:
    """How this command is called from here: by its name where the shell finds it, else by its path."""
    called = Path(sys.argv[0])
    if called.name != "skillmix":
        return f"{quote(_from_here(Path(sys.executable)))} -m skillmix"
    on_path = which("skillmix")
    return "skillmix" if on_path and called.exists() and called.samefile(on_path) else quote(_from_here(called))


def _from_here(path: Path) -> str:
    absolute = Path.cwd() / path
    return str(absolute.relative_to(Path.cwd())) if absolute.is_relative_to(Path.cwd()) else str(absolute)


def standard_input() -> str:
    """All of it, as text."""
    try:
        if sys.stdin.isatty():
            print("reading standard input; end it with Ctrl-D", file=sys.stderr)
        raw = sys.stdin.buffer.read()
    except (AttributeError, ValueError):
        raise UserError("Standard input is closed.", hint="Give the grader's reply there.") from None
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise UserError(
            f"Standard input is not UTF-8 text (byte {error.start}).", hint="Give the grader's reply as text."
        ) from None


def score_rows(scores: "Iterable[Score]", *, by_sets: bool = False) -> list[dict[str, object]]:
    """Scores in their documented form; which skill sets, and what was trained on, only where that was asked for."""
    hidden = {"written"} if by_sets else {"written", "sets", "trained_on"}
    return [{name: value for name, value in asdict(score).items() if name not in hidden} for score in scores]


def print_json(value: object) -> int:
    """Print a value; the exit status of having done so."""
    print(json.dumps(value, ensure_ascii=False, indent=1, allow_nan=False))
    return 0
