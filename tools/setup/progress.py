"""A line of progress that moves: rewritten on a terminal, printed every 15 seconds elsewhere."""

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import TextIO

_BLOCK = 4096


class ProgressLine:
    """Shows the latest text of something that takes long."""

    def __init__(self, stream: TextIO, clock: Callable[[], float], *, every: float = 15) -> None:
        self._stream = stream
        self._clock = clock
        self._every = every
        self._shown_at = clock()

    def show(self, text: str) -> None:
        """Show a text, at once on a terminal and at most every 15 seconds elsewhere."""
        if self._stream.isatty():
            self._stream.write(f"\r{text[: shutil.get_terminal_size().columns - 1]}\x1b[K")
        elif self._clock() - self._shown_at >= self._every:
            self._stream.write(f"{text}\n")
            self._shown_at = self._clock()
        self._stream.flush()

    def end(self, text: str) -> None:
        """Show the last text."""
        self._stream.write(f"\r{text}\x1b[K\n" if self._stream.isatty() else f"{text}\n")
        self._stream.flush()


def megabytes(folder: Path) -> int:
    """Return the megabytes of the files in a folder, in whole blocks, as a disk counts them."""
    total, waiting = 0, [os.fspath(folder)]
    while waiting:
        try:
            with os.scandir(waiting.pop()) as entries:
                for entry in entries:
                    if entry.is_dir(follow_symlinks=False):
                        waiting.append(entry.path)
                    else:
                        total += -(-entry.stat(follow_symlinks=False).st_size // _BLOCK) * _BLOCK
        except OSError:  # pip removes files while we look
            continue
    return total // 1_000_000
