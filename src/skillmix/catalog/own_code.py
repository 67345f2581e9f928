"""The `checkers.py` of a catalog's own folder: read as text always, run only where the user trusts it.

This module runs nothing. A catalog carries the text and the hash of its code, and whether the user trusts the code:
`--trust-code` on the command line, or `trusting_code` in Python, at the moment when the catalog is loaded.
`checkers/registry.py` runs the code of trusted catalogs; `runs/verdicts.py` refuses to grade without it.
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
    """The names of the catalog's skills, which the code may check."""
    is_trusted: bool

    @property
    def hash(self) -> str:
        """A hash of the code, trusted or not; verdicts depend on it."""
        from skillmix.hashing import short_id

        return short_id("checkers.py", self.source)


@dataclass(slots=True)
class Trust:
    """What a process trusts; it hands this to a process that it starts."""

    is_given: bool = False
    codes: dict[str, OwnCode] = field(default_factory=dict)
    """The trusted code, by path."""


_trusted: Trust = Trust()


@contextmanager
def trusting_code(is_given: bool = True) -> Iterator[None]:
    """Trust the `checkers.py` of catalogs that are loaded inside this block."""
    before = _trusted.is_given
    if not before:
        _trusted.codes.clear()  # at the start and not at the end: what was loaded inside may be used after the block
    _trusted.is_given = is_given
    try:
        yield
    finally:
        _trusted.is_given = before


def trust_here() -> Trust:
    """What this process trusts."""
    return _trusted


@contextmanager
def trusting_as(trust: Trust) -> Iterator[None]:
    """Trust what the process that started this one trusts."""
    with trusting_code(trust.is_given):
        _trusted.codes.update(trust.codes)
        yield


def own_code_of(folder: Path, skills: tuple[str, ...]) -> OwnCode | None:
    """The code of a catalog's folder; None if the folder has none."""
    from skillmix.files import read_text  # the command line imports this module, and YAML takes time

    file = folder / CODE_FILE
    if not file.is_file():
        return None
    code = OwnCode(str(file.resolve()), read_text(file), skills, _trusted.is_given)
    remember_trusted(code)
    return code


def remember_trusted(code: OwnCode | None) -> None:
    """Add trusted code to this process; a worker process gets it with its catalog."""
    if code is not None and code.is_trusted:
        _trusted.codes[code.path] = code


def trusted_codes() -> tuple[OwnCode, ...]:
    """The trusted code of this process."""
    return tuple(_trusted.codes.values())


def require_trust(code: OwnCode | None) -> None:
    """Refuse to grade with a catalog whose code is not trusted: other checkers would decide otherwise."""
    if code is not None and not code.is_trusted:
        raise UserError(
            f"The catalog has its own code, {code.path}, and nothing says that you trust it.",
            hint="Read the file. If you trust it, give --trust-code: skillmix then runs it as you.",
        )
