"""The `checkers.py` of a user's catalog, which is always read as text, and run only if the user trusts it.

A catalog contains the text and the hash of its code, and whether the user trusted it when the catalog was loaded: with
`--trust-code` on the command line, or with `trusting_code` in Python. `checkers/registry.py` runs trusted code, and
`runs/verdicts.py` rejects code that is not trusted.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from skillmix.errors import UserError

CODE_FILE: Final = "checkers.py"


@dataclass(frozen=True, slots=True)
class OwnCode:
    """The code in a catalog's folder."""

    path: str
    source: str
    skills: tuple[str, ...]
    """The skills of the catalog, which are the only ones that the code may check."""
    is_trusted: bool

    @property
    def hash(self) -> str:
        """Hash the code, because verdicts depend on it."""
        from skillmix.hashing import short_id

        return short_id("checkers.py", self.source)


@dataclass(slots=True)
class Trust:
    """The code that a process trusts, and passes to the processes that it starts."""

    is_given: bool = False
    codes: dict[str, OwnCode] = field(default_factory=dict)
    """The trusted code, by path."""


_trusted: Trust = Trust()


@contextmanager
def trusting_code(is_given: bool = True) -> Iterator[None]:
    """Trust the `checkers.py` of catalogs that are loaded inside this block."""
    before = _trusted.is_given
    if not before:
        # Clear the code here and not when a block ends, because its catalogs may still be used afterwards.
        _trusted.codes.clear()
    _trusted.is_given = is_given
    try:
        yield
    finally:
        _trusted.is_given = before


def trust_here() -> Trust:
    """Return the code that this process trusts."""
    return _trusted


@contextmanager
def trusting_as(trust: Trust) -> Iterator[None]:
    """Trust the code that the parent process trusts."""
    with trusting_code(trust.is_given):
        _trusted.codes.update(trust.codes)
        yield


def own_code_of(folder: Path, skills: tuple[str, ...]) -> OwnCode | None:
    """Read the code in a catalog's folder, if any."""
    from skillmix.files import read_text  # imported here, because the command line imports this module

    file = folder / CODE_FILE
    if not file.is_file():
        return None
    code = OwnCode(str(file.resolve()), read_text(file), skills, _trusted.is_given)
    remember_trusted(code)
    return code


def remember_trusted(code: OwnCode | None) -> None:
    """Remember trusted code in this process, including a worker that receives the code with its catalog."""
    if code is not None and code.is_trusted:
        _trusted.codes[code.path] = code


def trusted_codes() -> tuple[OwnCode, ...]:
    """Return the trusted code of this process."""
    return tuple(_trusted.codes.values())


def require_trust(code: OwnCode | None) -> None:
    """Reject code that is not trusted, because grading without it would lead to other verdicts."""
    if code is not None and not code.is_trusted:
        hint = "Read the file. If you trust it, add --trust-code, and skillmix runs it with your permissions."
        raise UserError(f"The catalog has code that you have not trusted: {code.path}.", hint=hint)
