"""Helpers of the commands: the table of commands, common options, the parser, input and JSON output."""

import argparse
import json
import re
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from inspect import getdoc
from itertools import takewhile
from math import inf, isfinite
from pathlib import Path
from shlex import quote
from shutil import which
from typing import TYPE_CHECKING, Any, Final, NoReturn

from skillmix.errors import LOG, UserError, visible
from skillmix.render import did_you_mean, listed, name_hint, plural

if TYPE_CHECKING:
    from skillmix.calls import CallProblem
    from skillmix.runs.scheduler import StopReason

Command = Callable[[argparse.Namespace], int]
"""A function that runs a command with its parsed options and returns the exit status."""
Option = Callable[["argparse._ActionsContainer"], object]
"""A function that adds an option or a group of options to a parser."""
COMMANDS: Final[dict[str, Callable[["argparse._SubParsersAction[argparse.ArgumentParser]"], None]]] = {}
"""Maps each command to a function that adds its parser; filled when the modules of this folder are imported."""


def option(name: str, about: str, **settings: Any) -> Option:
    """Define an option or a positional argument with a help text and settings for `add_argument`."""
    return lambda parser: parser.add_argument(name, help=about, **settings)


def flag(name: str, about: str) -> Option:
    """Define an option without a value."""
    return option(name, about, action="store_true")


def group(title: str, *options: Option) -> Option:
    """Group options under a title in the help text."""
    return lambda parser: _added(parser.add_argument_group(title), options)


def either(*options: Option) -> Option:
    """Define mutually exclusive options."""
    return lambda parser: _added(parser.add_mutually_exclusive_group(), options)


def _added(parser: "argparse._ActionsContainer", options: Iterable[Option]) -> None:
    for add in options:
        add(parser)


_QUIET: Final = flag("--quiet", "print only warnings and errors on standard error")
_JSON: Final = flag("--json", "print JSON")


def command(
    name: str, *options: Option, about: str | None = None, has_json: bool = True, **defaults: Any
) -> Callable[[Command], Command]:
    """Register a function as a command; the help text is `about`, or the docstring of the function."""

    def add(run: Command) -> Command:
        def add_parser(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
            words = about or getdoc(run) or ""
            parser = commands.add_parser(name, help=words.partition("\n")[0], description=words)
            parser.set_defaults(command=run, parser=parser, **defaults)
            _added(parser, (_QUIET, *((_JSON,) if has_json else ()), *options))

        COMMANDS[name] = add_parser
        return run

    return add


def number(
    kind: type[int] | type[float], words: str, is_valid: Callable[[float], bool] = isfinite
) -> Callable[[str], Any]:
    """Make an `argparse` type that parses a number; errors describe the valid numbers with `words`."""

    def parse(text: str) -> float:
        with suppress(ValueError, OverflowError):
            value = kind(text)
            if is_valid(value):
                return value
        raise argparse.ArgumentTypeError(f"{text!r} is not {words}")

    return parse


integer: Final = number(int, "an integer")
positive: Final = number(int, "an integer of 1 or more", lambda value: value >= 1)
not_negative: Final = number(int, "an integer of 0 or more", lambda value: value >= 0)
real: Final = number(float, "a number")
above_zero: Final = number(float, "a number above 0", lambda value: 0 < value < inf)
fraction: Final = number(float, "a number from 0 to 1", lambda value: 0 <= value <= 1)

RUN: Final = option("run", "name of a run, or path of its folder", metavar="RUN")
NEW_RUN: Final = option("--run", "name of the run, or path of its folder", metavar="NAME", required=True)
RULES: Final = option("--rules", "scoring rules (default: the run's own)", choices=("default", "paper"))
SEED: Final = option("--seed", "seed (default: 0)", type=integer, default=0, metavar="N")
STUDENT: Final = option("--student", "only texts by this student", metavar="NAME")
PARTITION: Final = option(
    "--partition", "a partition's name, or random-skills:SEED, random-categories:SEED, nested:SEED", metavar="NAME"
)
EXCLUDE: Final = option("--exclude", "skills or exclude lists to omit", default="", metavar='"A; file:PATH"')
CATALOG: Final = (
    option("name", "a shipped catalog, or a folder (default: paper)", nargs="?", metavar="NAME"),
    option("--catalog", "the same as NAME", metavar="DIR"),
)
"""The two ways to choose a catalog, which `catalog_name` reads."""
CATALOG_OPTION: Final = option(
    "--catalog", "a shipped catalog, or a folder (default: paper)", default="paper", metavar="DIR"
)
PROMPTS: Final = option(
    "--prompts", "a shipped prompt set, or a folder (default: standard)", default="standard", metavar="DIR"
)
GRADER_PROMPT: Final = (
    option("--variant", "grader prompt: grade-NAME.txt of the prompt set (default: gpt)", metavar="NAME"),
    option("--system", "system prompt for the grader (default: none)", metavar="TEXT"),
)
CALLS: Final = (
    option("--temperature", "sampling temperature (default: 0.7)", type=real, metavar="T"),
    option("--max-tokens", "maximum tokens per reply (default: 1,024)", type=positive, metavar="N"),
    option("--concurrency", "simultaneous calls", type=positive, metavar="N"),
    option("--key", "environment variable with the API key for the model's URL", metavar="VARIABLE"),
    option("--max-usd", "budget for all calls of the run, in US dollars", type=above_zero, metavar="X"),
)
"""The options for calls, for commands without an experiment file."""
TRUST: Final = flag("--trust-code", "run checkers.py from the catalog's folder; read the file first")
"""The option that makes `main` trust the code of catalogs while a command runs."""
DRY_RUN: Final = flag("--dry-run", "print the expected calls, tokens and cost; call no model")
WIDE_DRY_RUN: Final = flag("--wide", "with --dry-run: print all columns")
PRICES: Final = option("--prices", "price file (default: the shipped one)", type=Path, metavar="FILE")


class CommandParser(argparse.ArgumentParser):
    """A parser whose errors suggest the nearest valid name."""

    _words: Sequence[str] = ()
    """The command-line arguments of this parser."""

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Parse arguments, and keep them for error messages."""
        self._words = sys.argv[1:] if args is None else list(args)
        return super().parse_known_args(args, namespace)

    def error(self, message: str) -> NoReturn:
        """Print an argparse error with all unknown options, such as a misspelled required one; exit with status 2."""
        unknown = []
        for word in takewhile(lambda word: word != "--", self._words):
            name = word.partition("=")[0]
            is_option = _OPTION.fullmatch(name) is not None  # other arguments, such as -.5 and "- a list", are values
            if is_option and not any(own.startswith(name) for own in self._option_string_actions):
                unknown.append(name)
        message = message.replace("the following arguments are required:", "missing").removeprefix("argument ")
        rejected = f"unknown option {' '.join(unknown)}; " if unknown else ""
        self.exit_with(f"{self.prog}: {rejected}{message}.", self._option_hint(unknown))

    def refuse(self, unknown: Sequence[str]) -> NoReturn:
        """Print an error about unknown arguments, and exit with status 2."""
        # The value of an unknown option may be a secret key.
        words = [word.partition("=")[0] if word.startswith("-") else word for word in unknown]
        kind = "option" if words[0].startswith("-") else "argument"
        self.exit_with(f"{self.prog}: unknown {kind} {' '.join(words)}.", self._option_hint(words))

    def exit_with(self, message: str, hint: str) -> NoReturn:
        """Print an error and a hint, and exit with status 2."""
        self.exit(2, f"error: {visible(message)}\nhint: {visible(hint)}\n")

    def _option_hint(self, unknown: Sequence[str]) -> str:
        options = [option for option in self._option_string_actions if option.startswith("--")]
        hints = [did_you_mean(word.partition("=")[0], options) for word in unknown if word.startswith("-")]
        return " ".join([*filter(None, hints), f"`{self.prog} --help` lists all options."])

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        """Reject a value that is not one of the choices."""
        if action.choices is None or value in action.choices:
            return
        choices = list(map(str, action.choices))
        if isinstance(action, argparse._SubParsersAction):
            error, listed = f"There is no command {value!r}.", f"Commands: {', '.join(choices)}."
        else:
            named = "/".join(action.option_strings) or action.dest
            error, listed = f"{value!r} is not a valid value of {named}.", f"Choose one of {', '.join(choices)}."
        self.exit_with(error, name_hint(str(value), choices, otherwise=listed))


_OPTION: Final = re.compile(r"--?[^-\s\d.]\S*")


def catalog_name(options: argparse.Namespace) -> str:
    """Return the name or folder of the chosen catalog, or else the default."""
    if options.name and options.catalog and options.name != options.catalog:
        both = f"{options.name!r} and --catalog {options.catalog!r}"
        raise UserError(f"Two catalogs were given: {both}.", hint="Remove one of them.")
    return str(options.name or options.catalog or "paper")


def listed_names(text: str) -> tuple[str, ...]:
    """Split names at semicolons."""
    return tuple(name.strip() for name in text.split(";") if name.strip())


def taken(options: argparse.Namespace, *names: str) -> dict[str, Any]:
    """Return the values of the named options, by name."""
    return {name: getattr(options, name) for name in names}


def given(options: argparse.Namespace, *names: str) -> dict[str, Any]:
    """Return the values of the named options, without those that are None."""
    return {name: value for name, value in taken(options, *names).items() if value is not None}


def reject(options: argparse.Namespace, names: Sequence[str], why: str, *, hint: str) -> None:
    """Raise an error if the user gave any of the named options; `why` completes "--X cannot be used ..."."""
    is_given = {name: getattr(options, name) != options.parser.get_default(name) for name in names}
    rejected = [f"--{name.replace('_', '-')}" for name in names if is_given[name]]
    if rejected:
        raise UserError(f"{listed(rejected)} cannot be used {why}.", hint=hint)


def program() -> str:
    """Return the command that starts skillmix from the current folder: `skillmix` if on the PATH, or else its path."""
    called = Path(sys.argv[0])
    is_script = called.name == "skillmix"
    on_path = which("skillmix") if is_script else None
    if on_path and called.exists() and called.samefile(on_path):
        return "skillmix"
    path = Path.cwd() / (called if is_script else sys.executable)
    shown = quote(str(path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path))
    return shown if is_script else f"{shown} -m skillmix"


_LONGEST_INPUT: Final = 64 << 20


def standard_input() -> str:
    """Read all of standard input as text."""
    try:
        if sys.stdin.isatty():
            LOG.info("reading standard input; end it with Ctrl-D")
        raw = sys.stdin.buffer.read(_LONGEST_INPUT + 1)
    except (AttributeError, ValueError):
        raise UserError("Standard input is closed.", hint="Pipe the text in: skillmix … < FILE") from None
    if len(raw) > _LONGEST_INPUT:
        raise UserError(f"Standard input exceeds {_LONGEST_INPUT >> 20} MiB.", hint="Pipe in a single text.")
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise UserError(f"Standard input is not UTF-8 at byte {error.start}.", hint="Convert it to UTF-8.") from None


def say_why_stopped(
    stopped: "StopReason | None", folder: Path, failed: "Mapping[Any, CallProblem] | None" = None
) -> int | None:
    """Print how many calls failed and why the calls stopped; return the exit status if a signal stopped them."""
    from skillmix.runs.scheduler import signal_of

    for key, problem in list((failed or {}).items())[:1]:
        LOG.warning(f"failed: {plural(len(failed or {}), 'call')}, such as {key}: {problem.reason}")
    signal = signal_of(stopped)
    if signal is not None:
        LOG.warning(f"interrupted; all replies are saved in {folder}; rerun the same command to continue")
        return 128 + signal
    if stopped is not None:
        remedy = "raise it" if stopped.name == "BUDGET" else "correct its settings"
        LOG.warning(f"stopped: {stopped.value}; {remedy} and rerun the command to continue")
    return None


def print_notes(notes: Iterable[str]) -> None:
    """Print remarks about a result to standard error."""
    for note in notes:
        LOG.warning(f"note: {note}")


def print_json(value: object) -> int:
    """Print a value as JSON and return the exit status 0."""
    print(json.dumps(value, ensure_ascii=False, indent=1, allow_nan=False))
    return 0
