"""Log messages, and errors that commands show without a traceback."""

import logging
import sys
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from typing import Final

_MOST_FAULTS: Final = 20
"""The maximum number of faults that an error lists; the others are only counted."""


class _StandardError(logging.Handler):
    """Prints messages on standard error; if it is closed, drops them."""

    def emit(self, record: logging.LogRecord) -> None:
        with suppress(AttributeError, OSError, ValueError):
            sys.stderr.write(f"{self.format(record)}\n")
            sys.stderr.flush()


LOG: Final = logging.getLogger("skillmix")
"""The logger of all messages: progress and hints at level INFO, remarks about results and missing data at WARNING."""
LOG.setLevel(logging.INFO)
LOG.addHandler(_StandardError())
LOG.propagate = False


class UserError(Exception):
    """An error that the user can correct; commands print its message and its hint."""

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        self.faults: Sequence[str] = (f"{message} {hint or ''}".rstrip(),)
        """The faults that the error reports, one string for each."""
        if hint:
            self.add_note(f"hint: {hint}")  # for Python tracebacks


class Interrupted(KeyboardInterrupt):
    """Raised when a signal ends the command."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


def visible(text: str) -> str:
    r"""Escape the control characters of untrusted text for printing.

    >>> visible("a\x1b[2Jb")
    'a\\x1b[2Jb'
    """
    return "".join(sign if sign.isprintable() or sign == "\n" else repr(sign)[1:-1] for sign in text)


def faults_error(subject: str, faults: Sequence[str], *, hint: str) -> UserError:
    """Combine all faults of a file or folder into one error."""
    if len(faults) == 1:
        return UserError(f"{subject}: {faults[0]}", hint=hint)
    more = len(faults) - _MOST_FAULTS
    lines = [*faults[:_MOST_FAULTS], *([f"and {more} more"] if more > 0 else [])]
    message = f"{subject} has {len(faults)} faults:\n" + "\n".join(f"  {line}" for line in lines)
    error = UserError(message, hint=hint)
    error.faults = faults
    return error


def errors_of(checks: Iterable[Callable[[], object]]) -> list[UserError]:
    """Run all checks, and return the errors that they raise."""
    errors = []
    for check in checks:
        try:
            check()
        except UserError as error:
            errors.append(error)
    return errors


def refuse(
    subject: str, errors: Sequence[UserError], *, hint: str = "Nothing was changed, and no call was made."
) -> None:
    """Combine errors into one and raise it; do nothing if there are none."""
    different = list({error.message: error for error in errors}.values())
    if len(different) == 1:
        raise different[0]
    if different:
        faults = dict.fromkeys(fault for error in different for fault in error.faults)
        own = [one for one in faults if not any(one in other and one != other for other in faults)]
        raise faults_error(subject, own, hint=hint)
