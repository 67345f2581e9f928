"""What all fuzz tests share: how many cases, a draw for each of them, odd values, and a watch over the files around."""

import io
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from hashlib import blake2b
from pathlib import Path
from random import Random
from typing import Any, Final

from skillmix.commands import main
from skillmix.errors import UserError

LONG: Final = bool(os.environ.get("SKILLMIX_LONG"))


def cases(kind: str, *, few: int, many: int = 1_000_000) -> Iterator[tuple[int, Random]]:
    """The numbers of the cases, each with a draw of its own: a case is found again by its kind and number.

    `SKILLMIX_FUZZ` sets how many there are, or which: 20000, or 341:342 for one of them.
    """
    first, _, last = (os.environ.get("SKILLMIX_FUZZ") or str(many if LONG else few)).rpartition(":")
    for number in range(int(first or 0), int(last)):
        yield number, Random(f"{kind} {number}")


def refused(work: Callable[[], object]) -> UserError | None:
    """The error for its user with which some work ended, if it did; any other error is a fault, and goes on."""
    try:
        work()
    except UserError as error:
        assert error.message.strip()
        return error
    return None


def command(*words: str) -> tuple[int, str]:
    """The exit status of a command in this process, and what it said on standard error."""
    said = io.StringIO()
    with redirect_stdout(io.StringIO()), redirect_stderr(said):
        try:
            status = main(list(words))
        except SystemExit as stop:
            status = int(stop.code or 0)
    return status, said.getvalue()


@contextmanager
def nothing_changes_in(folder: Path, *, but: Path | None = None) -> Iterator[None]:
    """Every file below a folder is the same afterwards, but for those below another one."""
    before = _listing(folder, but)
    yield
    assert _listing(folder, but) == before


def _listing(folder: Path, but: Path | None) -> dict[str, str]:
    found = {}
    for path in sorted(folder.rglob("*")):
        if but is None or (path != but and but not in path.parents):
            content = path.read_bytes() if path.is_file() else b"a folder"
            found[str(path)] = blake2b(content).hexdigest()
    return found


# fmt: off
ODD_VALUES: Final[tuple[Any, ...]] = (
    None, True, False, 0, 1, -1, 2**31, 2**63, 10**400, -0.0, 0.5, 1e308, float("inf"), float("nan"), "", " ", "0",
    "null", "x" * 5_000, "\x00", "\ud800", "\udfff\ud800", "\ufeff", "\u202e", "é\u0301", "../../etc/passwd", "/",
    "~", "a/b", "local:/nowhere", "step:x", "-", "--help", "{}", "{x}", "%s", "\n\n", [], [[]], {}, {"": None},
    [None], ["a", 1], {"a": {"b": []}}, {"1": 2},
)
# fmt: on


def nested(depth: int, draw: Random) -> Any:
    """A value inside many others."""
    value: Any = "deep"
    for _ in range(depth):
        value = [value] if draw.random() < 0.5 else {"a": value}
    return value


def mutated(document: Any, draw: Random) -> Any:
    """A document after a few edits: values swapped, keys dropped, renamed and added, things nested deeply."""
    for _ in range(draw.randint(1, 3)):
        document = _edited(document, draw)
    return document


def _edited(document: Any, draw: Random) -> Any:
    if not isinstance(document, dict | list) or not document or draw.random() < 0.03:
        return nested(draw.choice((5, 60, 900)), draw) if draw.random() < 0.05 else draw.choice(ODD_VALUES)
    copy: Any = dict(document) if isinstance(document, dict) else dict(enumerate(document))
    key = draw.choice(list(copy))
    draw.choice(_EDITS)(copy, key, draw)
    return copy if isinstance(document, dict) else list(copy.values())


def _go_in(copy: dict[Any, Any], key: Any, draw: Random) -> None:
    copy[key] = _edited(copy[key], draw)


def _drop(copy: dict[Any, Any], key: Any, draw: Random) -> None:
    del copy[key]


def _rename(copy: dict[Any, Any], key: Any, draw: Random) -> None:
    copy[draw.choice(("", "x", f"{key} ", str(key).upper(), "\ud800", "__class__"))] = copy.pop(key)


def _repeat(copy: dict[Any, Any], key: Any, draw: Random) -> None:
    copy[f"{key}2" if isinstance(key, str) else len(copy)] = copy[key]


def _swap(copy: dict[Any, Any], key: Any, draw: Random) -> None:
    other = draw.choice(list(copy))
    copy[key], copy[other] = copy[other], copy[key]


_EDITS: Final = (_go_in, _go_in, _go_in, _go_in, _drop, _rename, _repeat, _swap)


def damaged_bytes(content: bytes, draw: Random) -> bytes:
    """Bytes cut short, zeroed, overwritten, doubled or put in between."""
    place = draw.randrange(len(content) + 1)
    length = draw.choice((1, 2, 16, 512, 4096))
    noise = draw.randbytes(length)
    return draw.choice(
        (
            content[:place],
            content[:place] + bytes(length) + content[place + length :],
            content[:place] + noise + content[place + length :],
            content[:place] + noise + content[place:],
            content[:place] + content[place : place + length] * 2 + content[place + length :],
            content[place:],
            b"\xef\xbb\xbf" + content,
            content[:place] + content[place + length :],
        )
    )
