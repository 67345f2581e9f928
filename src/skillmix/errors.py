"""The one exception that means: the user must change something; and the one for signals."""

from collections.abc import Sequence


class UserError(Exception):
    """A mistake that its user can mend; shown as one line and a hint, without a traceback."""

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint


class Interrupted(KeyboardInterrupt):
    """A signal asked for the end; what is done is kept."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


def visible(text: str) -> str:
    r"""A text from a stranger's file as a terminal may show it: signs that would steer the terminal are spelled out.

    >>> visible("a\x1b[2Jb")
    'a\\x1b[2Jb'
    """
    return "".join(sign if sign.isprintable() or sign == "\n" else repr(sign)[1:-1] for sign in text)


def faults_error(subject: str, faults: Sequence[str], *, hint: str) -> UserError:
    """All faults of one file or folder in a single error, so that one round of edits mends them all."""
    if len(faults) == 1:
        return UserError(f"{subject}: {faults[0]}", hint=hint)
    return UserError(f"{subject} has {len(faults)} faults:\n" + "\n".join(f"  {f}" for f in faults), hint=hint)
