"""The lock that lets only one process write to a run."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock, Timeout

from skillmix.errors import UserError


def held_lock(file: Path) -> FileLock:
    """Take the lock of a journal file; the kernel frees it when the process dies."""
    file.parent.mkdir(parents=True, exist_ok=True)
    lock = FileLock(file.with_name(f"{file.name}.lock"), timeout=0)
    try:
        lock.acquire()
    except Timeout:
        raise UserError(
            f"Another process is writing to {file}.", hint="Wait for it, or stop it, and run again."
        ) from None
    return lock


@contextmanager
def locked(file: Path) -> Iterator[None]:
    """Keep other writers out while the block runs."""
    lock = held_lock(file)
    try:
        yield
    finally:
        lock.release()
