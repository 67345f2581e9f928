"""The command line of skillmix.

A command is a function decorated with its options; each module groups related commands. `skillmix --help` imports all
modules of this folder, so slow imports are inside functions. Standard output carries data, and standard error
everything else. Exit status 0: success; 1: finished with missing or unparseable items; 2: the user must change
something; 3: batches are unfinished; 128 + n: ended by signal n (130: Ctrl-C).
"""

import gc
import logging
import os
import signal
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from typing import TYPE_CHECKING, Any, Final

# numpy's products are so small here that threads only wait for each other: a fifth of a report's CPU time.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

from skillmix import __version__
from skillmix.catalog.own_code import trusting_code
from skillmix.commands import catalog, dataset, exchange, graders, one_text, results, run, start
from skillmix.commands.shared import COMMANDS, Command, CommandParser
from skillmix.errors import LOG, Interrupted, UserError, visible
from skillmix.render import wrapped

if TYPE_CHECKING:
    from sys import UnraisableHookArgs

MODULES: Final = (catalog, dataset, exchange, graders, one_text, results, run, start)
"""The modules that register commands when they are imported."""
ORDER: Final = (
    *("init", "schema", "completion", "run", "generate", "grade", "evaluate", "dataset", "train", "merge", "status"),
    *("scores", "compare", "texts", "graders", "export", "share", "calibrate", "import-texts", "import-reference"),
    *("import-inspect", "report", "annotate", "catalog", "combinations", "novelty", "frequency", "prompts"),
    *("parse-reply", "grade-text", "models", "prices"),
)
"""The order of the commands in `skillmix --help`."""
_TO_BEGIN: Final = (
    "Start with `skillmix run smoke` (a demo with simulated models), `skillmix run quickstart` (trains a small model "
    "here) or `skillmix init evaluate` (writes a file for your own model). `skillmix --help` lists all commands."
)


@cache
def parser_of_all() -> CommandParser:
    """Return the shared parser of all commands, which callers must not change."""
    parser = CommandParser(
        prog="skillmix",
        description="Measure whether a language model can combine skills in one text, and train it to do so.",
    )
    parser.add_argument("--version", action="version", version=f"skillmix {__version__}")
    commands: Any = parser.add_subparsers(title="commands", metavar="COMMAND")
    for name in ORDER:
        COMMANDS[name](commands)
    parser.set_defaults(whole=parser)
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command, print its errors, and return its exit status."""
    if sys.stderr is None:  # closed by the caller; print(file=None) would print to standard output
        sys.stderr = open(os.devnull, "w", encoding="utf-8")  # noqa: PTH123, SIM115, it stays open
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(encoding="utf-8", errors="backslashreplace")
    if arguments is None:
        gc.set_threshold(20_000)  # there are hardly any cycles to collect, and searching took a tenth of `scores`
    parser = parser_of_all()
    options, unknown = parser.parse_known_args(arguments)
    if unknown:
        getattr(options, "parser", parser).refuse(unknown)
    if not hasattr(options, "command"):
        parser.exit_with("skillmix needs a command.", _TO_BEGIN)
    LOG.setLevel(logging.WARNING if options.quiet else logging.INFO)
    command: Command = options.command
    try:
        with ending_like_ctrl_c(), trusting_code(getattr(options, "trust_code", False)):
            status = command(options)
            sys.stdout.flush()
            if arguments is None:
                gc.freeze()  # skip the collection at exit, which takes a tenth of a report's time
            return status
    except UserError as error:
        # Keep each message on one line in files and pipes, so that programs can parse it.
        layout = wrapped if sys.stderr.isatty() else lambda text, indent: text
        print(layout(f"error: {visible(error.message)}", indent=4), file=sys.stderr)
        if error.hint:
            print(layout(f"hint: {visible(error.hint)}", indent=2), file=sys.stderr)
        return 2
    except BrokenPipeError:
        # The reader of the output has exited, as with `| head`, so a message would be lost too.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except OSError as error:
        path = f": {error.filename}" if error.filename else ""
        print(f"error: {error.strerror or error}{path}", file=sys.stderr)
        print("hint: Check the path, its permissions and the free disk space.", file=sys.stderr)
        return 2
    except KeyboardInterrupt as stop:
        print("interrupted; run the same command again to continue", file=sys.stderr)
        return 128 + getattr(stop, "number", signal.SIGINT)


_SOON_S: Final = 0.01


@contextmanager
def ending_like_ctrl_c() -> Iterator[None]:
    """Raise `Interrupted` on SIGTERM and SIGHUP, unless the signal is ignored (as under nohup) or already handled."""

    def end(number: int, _: object) -> None:
        raise Interrupted(number)

    def send_again(problem: "UnraisableHookArgs") -> None:
        # An exception in a finalizer cannot propagate, so resend a signal that arrived there.
        if not isinstance(problem.exc_value, KeyboardInterrupt):
            hook(problem)
            return
        number = getattr(problem.exc_value, "number", signal.SIGINT)
        again = threading.Timer(_SOON_S, os.kill, (os.getpid(), number))
        again.daemon = True
        again.start()

    # The ranks of a distributed training run cannot agree on a step to stop at, so the signal must end them.
    is_alone = int(os.environ.get("WORLD_SIZE") or 1) == 1
    before = {}
    if is_alone and threading.current_thread() is threading.main_thread():
        for name in ("SIGTERM", "SIGHUP"):
            number = getattr(signal, name, None)  # Windows has no SIGHUP
            if number is not None and signal.getsignal(number) == signal.SIG_DFL:
                before[number] = signal.signal(number, end)
    hook = sys.unraisablehook
    if before:
        sys.unraisablehook = send_again
    try:
        yield
    finally:
        sys.unraisablehook = hook
        for number, handler in before.items():
            signal.signal(number, handler)
