"""The command line. Each module has the commands of one noun, with their parsers.

`skillmix --help` loads every module of this folder, so they import what takes time inside their functions.

Standard output is for data, standard error for everything else. Exit status 0: done; 1: finished with missing or
unreadable items; 2: the user must change something; 128 + n: ended by signal n (130: Ctrl-C).
"""

import os
import sys
from collections.abc import Sequence
from functools import cache
from signal import SIGINT

from skillmix import __version__
from skillmix.catalog.own_code import trusting_code
from skillmix.commands import catalog, dataset, imports, models, one_text, report, results, run, start, train
from skillmix.commands.exchange import sharing
from skillmix.commands.graders import annotate, calibrate
from skillmix.commands.shared_options import Command, CommandParser
from skillmix.commands.signals import ending_like_ctrl_c
from skillmix.errors import UserError, visible
from skillmix.render import wrapped

MODULES = (
    start,
    run,
    dataset,
    train,
    results,
    sharing,
    calibrate,
    imports,
    report,
    annotate,
    catalog,
    one_text,
    models,
)
"""The modules of commands, in the order of `skillmix --help`."""


@cache
def parser_of_all() -> CommandParser:
    """The parser of the command line, with every command; nobody may change it."""
    parser = CommandParser(
        prog="skillmix",
        description="Measure whether a chat model can combine language skills, and teach it to.",
    )
    parser.add_argument("--version", action="version", version=f"skillmix {__version__}")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND")
    for module in MODULES:
        module.add_parsers(commands)
    parser.set_defaults(whole=parser)
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command, print its errors and return its exit status."""
    _prepare_streams()
    parser = parser_of_all()
    options, unknown = parser.parse_known_args(arguments)
    if unknown:
        getattr(options, "parser", parser).refuse(unknown)
    if not hasattr(options, "command"):
        parser.ask_for_command()
    command: Command = options.command
    try:
        with ending_like_ctrl_c(), trusting_code(getattr(options, "trust_code", False)):
            status = command(options)
            sys.stdout.flush()
            return status
    except UserError as error:
        # In a file or a pipe each stays one line, so that programs can read it.
        layout = wrapped if sys.stderr.isatty() else _as_it_is
        print(layout(f"error: {visible(error.message)}", indent=4), file=sys.stderr)
        if error.hint:
            print(layout(f"hint: {visible(error.hint)}", indent=2), file=sys.stderr)
        return 2
    except BrokenPipeError:
        # The reader of our output is gone, as with `| head`, so no message could reach it.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except OSError as error:
        path = f": {error.filename}" if error.filename else ""
        print(f"error: {error.strerror or error}{path}", file=sys.stderr)
        print("hint: Check the path, its permissions and the space on the disk.", file=sys.stderr)
        return 2
    except KeyboardInterrupt as stop:
        print("interrupted; run the same command again to go on", file=sys.stderr)
        return 128 + getattr(stop, "number", SIGINT)


def _as_it_is(text: str, *, indent: int) -> str:
    return text


def _prepare_streams() -> None:
    if sys.stderr is None:  # closed by the caller; print(file=None) would write to standard output
        sys.stderr = open(os.devnull, "w", encoding="utf-8")  # noqa: PTH123, SIM115, it stays open
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(encoding="utf-8", errors="backslashreplace")
