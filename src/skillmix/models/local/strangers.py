"""Errors for checkpoints that a library cannot read, in one line for the user."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from skillmix.errors import UserError

_SHOWN: Final = 3
_PANIC: Final = "PanicException"
"""What libraries written in Rust raise; it is not an `Exception`, and it cannot be imported."""


@contextmanager
def reading_weights(source: Path, *, hint: str = "The file is damaged; fetch or save it again.") -> Iterator[None]:
    """Turn whatever a library raises while it reads an untrusted file into a `UserError`."""
    try:
        yield
    except UserError:
        raise
    except Exception as error:  # noqa: BLE001  # every library has its own exceptions, and a file can provoke any of them
        raise _unreadable(source, error, hint) from None
    except BaseException as error:
        if type(error).__name__ != _PANIC:
            raise
        raise _unreadable(source, error, hint) from None


def _unreadable(source: Path, error: BaseException, hint: str) -> UserError:
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return UserError(f"{source} cannot be loaded: {lines[0][:_LONGEST_REASON]}", hint=hint)


_LONGEST_REASON: Final = 300


def some_of(names: Sequence[str]) -> str:
    """The first few of many names, with their number.

    >>> some_of(["a", "b", "c", "d"])
    'a, b, c and 1 more (4 in all)'
    """
    shown = ", ".join(names[:_SHOWN])
    return shown if len(names) <= _SHOWN else f"{shown} and {len(names) - _SHOWN} more ({len(names)} in all)"
