"""Exceptions that commands show to the user without a traceback."""

from collections.abc import Sequence


class UserError(Exception):
    """A mistake that the user can mend; commands show its message and its hint."""

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        if hint:
            self.add_note(f"hint: {hint}")  # a traceback in Python shows it


class Interrupted(KeyboardInterrupt):
    """A signal ended the command; finished work is kept."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


def visible(text: str) -> str:
    r"""An untrusted text that is safe to print: control characters are spelled out.

    >>> visible("a\x1b[2Jb")
    'a\\x1b[2Jb'
    """
    return "".join(sign if sign.isprintable() or sign == "\n" else repr(sign)[1:-1] for sign in text)


def faults_error(subject: str, faults: Sequence[str], *, hint: str) -> UserError:
    """One error for all faults of a file or folder, so that the user can mend them in one round of edits."""
    if len(faults) == 1:
        return UserError(f"{subject}: {faults[0]}", hint=hint)
    return UserError(f"{subject} has {len(faults)} faults:\n" + "\n".join(f"  {f}" for f in faults), hint=hint)
