"""What the parsers of the commands share: how a command joins the parser, and options that several commands take."""

import argparse
import re
import sys
from collections.abc import Callable, Sequence
from inspect import getdoc
from itertools import takewhile
from math import isfinite
from typing import Any, Final, NoReturn, TypeAlias

from skillmix.errors import UserError, visible
from skillmix.render import did_you_mean, name_hint

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
