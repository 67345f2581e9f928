"""What the commands share: their parsers and options, what they read, and what they print alike."""

import argparse
import json
import re
import sys
from collections.abc import Callable, Iterable, Sequence
from inspect import getdoc
from itertools import takewhile
from math import isfinite
from pathlib import Path
from shlex import quote
from shutil import which
from typing import TYPE_CHECKING, Any, Final, NoReturn, TypeAlias

from skillmix.errors import LOG, UserError, visible
from skillmix.render import did_you_mean, name_hint

if TYPE_CHECKING:
    from skillmix.runs.run import Run
    from skillmix.scores.cells import CellScore
    from skillmix.scores.outcomes import OutcomeScore
    from skillmix.scores.scoring import ScoredRun


Command = Callable[[argparse.Namespace], int]
"""A function that does a command with its options and returns the exit status."""
Commands: TypeAlias = "argparse._SubParsersAction[argparse.ArgumentParser]"
"""Where the parser of a command is added."""


_TO_BEGIN: Final = (
    "To begin: `{0} run smoke` tries it with simulated models, `{0} run quickstart` with a small model on this "
    "machine, and `{0} init evaluate` writes a file for your own model. `{0} --help` lists all commands."
)


_OPTION: Final = re.compile(r"--?[^-\s\d.]\S*")


class CommandParser(argparse.ArgumentParser):
    """A parser whose errors suggest the nearest name."""

    _words: Sequence[str] = ()
    """The words of the command line that this parser reads."""

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Parse words, and keep them for an error about them."""
        self._words = sys.argv[1:] if args is None else list(args)
        return super().parse_known_args(args, namespace)

    def error(self, message: str) -> NoReturn:
        """Print the error with a hint, and exit with 2; an unknown option may be why another one is missing."""
        options = takewhile(lambda word: word != "--", self._words)
        unknown = [word.partition("=")[0] for word in options if self._is_unknown_option(word)]
        if unknown:
            message = f"{self.prog} does not take {' '.join(unknown)}; {message}"
        self._exit_with(message, self._option_hint(unknown))

    def refuse(self, unknown: Sequence[str]) -> NoReturn:
        """Print an error about arguments that the command does not take, and exit with 2."""
        # The value of an unknown option may be a key.
        words = [word.partition("=")[0] if word.startswith("-") else word for word in unknown]
        self._exit_with(f"{self.prog} does not take {' '.join(words)}.", self._option_hint(words))

    def ask_for_command(self) -> NoReturn:
        """Print how to begin, and exit with 2."""
        self._exit_with(f"{self.prog} needs a command.", _TO_BEGIN.format(self.prog))

    def _exit_with(self, message: str, hint: str) -> NoReturn:
        self.exit(2, f"error: {visible(message)}\nhint: {visible(hint)}\n")

    def _is_unknown_option(self, word: str) -> bool:
        """Whether a word looks like an option and is none, nor the beginning of one."""
        name = word.partition("=")[0]
        is_option = _OPTION.fullmatch(name) is not None  # other words, such as -.5 and "- a list", are values
        return is_option and not any(own.startswith(name) for own in self._option_string_actions)

    def _option_hint(self, unknown: Sequence[str]) -> str:
        options = [option for option in self._option_string_actions if option.startswith("--")]
        hints = [did_you_mean(word.partition("=")[0], options) for word in unknown if word.startswith("-")]
        return " ".join([*filter(None, hints), f"{self.prog} --help lists the options."])

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        """Refuse a value that is not one of the choices."""
        if action.choices is None or value in action.choices:
            return
        choices = list(map(str, action.choices))
        named = "/".join(action.option_strings) or action.dest
        kind = "command" if isinstance(action, argparse._SubParsersAction) else named
        error = f"There is no command {value!r}." if kind == "command" else f"{kind} cannot be {value!r}."
        listed = f"Commands: {', '.join(choices)}." if kind == "command" else f"Choose {', '.join(choices)}."
        hint = name_hint(str(value), choices, otherwise=listed)
        self._exit_with(error, hint)


def add_command(commands: Commands, name: str, run: Command, *, has_json: bool = True) -> argparse.ArgumentParser:
    """Add a command; the docstring of its function is its help text."""
    about = getdoc(run) or ""
    parser: argparse.ArgumentParser = commands.add_parser(name, help=about.partition("\n")[0], description=about)
    parser.set_defaults(command=run, parser=parser)
    parser.add_argument("--quiet", action="store_true", help="print only warnings and errors on standard error")
    if has_json:
        parser.add_argument("--json", action="store_true", help="print JSON")
    return parser


def add_catalog_options(parser: argparse.ArgumentParser) -> None:
    """Add the two ways to name a catalog; `catalog_name` reads them."""
    parser.add_argument("name", nargs="?", metavar="NAME", help="a shipped catalogue or a folder (default: paper)")
    parser.add_argument("--catalog", metavar="DIR", help="the same as NAME")


def add_trust_option(parser: "argparse._ActionsContainer") -> None:
    """Add the option that lets a command run the code of a catalog; `main` reads it."""
    parser.add_argument(
        "--trust-code", action="store_true", help="run the checkers.py in the catalogue's folder; read it first"
    )


def catalog_name(options: argparse.Namespace) -> str:
    """The catalog that the user named, or the default one."""
    if options.name and options.catalog and options.name != options.catalog:
        raise UserError(
            f"Two catalogues are named: {options.name!r} and {options.catalog!r}.",
            hint="Give NAME or --catalog, not both.",
        )
    return str(options.name or options.catalog or "paper")


def listed_names(text: str) -> tuple[str, ...]:
    """Names separated by semicolons."""
    return tuple(name.strip() for name in text.split(";") if name.strip())


def positive(text: str) -> int:
    """Read a whole number of 1 or more."""
    number = _number(text, int)
    if number is None or number < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of 1 or more")
    return int(number)


def not_negative(text: str) -> int:
    """Read a whole number of 0 or more."""
    number = _number(text, int)
    if number is None or number < 0:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of 0 or more")
    return int(number)


def above_zero(text: str) -> float:
    """Read a finite number above 0."""
    number = _number(text, float)
    if number is None or not (isfinite(number) and number > 0):
        raise argparse.ArgumentTypeError(f"{text!r} is not a number above 0")
    return number


def _number(text: str, kind: type[int] | type[float]) -> float | None:
    """The number that a text stands for; None if it is no number."""
    try:
        return kind(text)
    except ValueError:
        return None


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
            LOG.info("reading standard input; end it with Ctrl-D")
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
        LOG.warning(f"note: {note}")


def print_json(value: object) -> int:
    """Print a value as JSON and return the exit status 0."""
    print(json.dumps(value, ensure_ascii=False, indent=1, allow_nan=False))
    return 0
