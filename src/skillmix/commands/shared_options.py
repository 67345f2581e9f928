"""What the parsers of the commands share: how a command joins the parser, and options that several commands take."""

import argparse
from collections.abc import Callable
from inspect import getdoc
from math import isfinite
from typing import TypeAlias

from skillmix.errors import UserError

Command = Callable[[argparse.Namespace], int]
"""A function that does a command with its options and returns the exit status."""
Commands: TypeAlias = "argparse._SubParsersAction[argparse.ArgumentParser]"
"""Where the parser of a command is added."""


def add_command(commands: Commands, name: str, run: Command, *, has_json: bool = True) -> argparse.ArgumentParser:
    """Add a command; the docstring of its function is its help text."""
    about = getdoc(run) or ""
    parser: argparse.ArgumentParser = commands.add_parser(name, help=about.partition("\n")[0], description=about)
    parser.set_defaults(command=run)
    if has_json:
        parser.add_argument("--json", action="store_true", help="print JSON")
    return parser


def add_catalog_options(parser: argparse.ArgumentParser) -> None:
    """Add the two ways to name a catalog; `catalog_name` reads them."""
    parser.add_argument("name", nargs="?", metavar="NAME", help="a shipped catalogue or a folder (default: paper)")
    parser.add_argument("--catalog", metavar="DIR", help="the same as NAME")


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
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text} is not a number of 1 or more")
    return number


def above_zero(text: str) -> float:
    """Read a finite number above 0."""
    number = float(text)
    if not (isfinite(number) and number > 0):
        raise argparse.ArgumentTypeError(f"{text} is not a number above 0")
    return number
