"""Standard error while a run goes on: a terminal with a bar, or a file that gets lines."""

import io
import os
import sys
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Final, TextIO

if TYPE_CHECKING:
    from skillmix.runs.progress.bar import Bar, BarState

_WITHOUT_CURSOR: Final = ("", "dumb", "unknown")
"""Values of TERM for terminals that cannot draw over a line."""


def say(line: str) -> None:
    """Write one line to standard error; a closed stream stops no run."""
    with suppress(AttributeError, OSError, ValueError):
        sys.stderr.write(f"{line}\n")
        sys.stderr.flush()


def can_draw(stream: TextIO | None) -> bool:
    """Whether a bar can be drawn there."""
    try:
        is_terminal = stream is not None and stream.isatty()
    except ValueError:  # closed
        return False
    return is_terminal and os.environ.get("TERM", "") not in _WITHOUT_CURSOR


class Terminal:
    """Replaces standard error, so that everything written to it stays above the bar."""

    def __init__(self, stream: TextIO, state: "Callable[[], BarState]") -> None:
        self._stream, self._state = stream, state
        self._lines = _Lines(stream)
        sys.stderr = self._lines

    def draw(self) -> None:
        """Begin to draw the bar."""
        if self._lines.bar is None:
            from skillmix.runs.progress.bar import Bar

            bar = Bar(self._stream, self._state)
            bar.start()
            self._lines.bar = bar

    def close(self) -> None:
        """Remove the bar and restore standard error."""
        bar, self._lines.bar = self._lines.bar, None
        if bar is not None:
            bar.stop()
        self._lines.flush()
        if sys.stderr is self._lines:
            sys.stderr = self._stream


class _Lines(io.TextIOBase):
    """Passes text on, in whole lines while there is a bar; a logger may keep it longer than the run lasts."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._begun = ""
        self.bar: Bar | None = None

    def write(self, text: str) -> int:
        if self.bar is None:
            self._stream.write(self._begun + text)
            self._begun = ""
            return len(text)
        *whole, self._begun = (self._begun + text).split("\n")
        for line in whole:
            self.bar.print(line)
        return len(text)

    def flush(self) -> None:
        if self.bar is None and self._begun:
            self.write("\n")
        self._stream.flush()

    def isatty(self) -> bool:
        return self._stream.isatty()

    def fileno(self) -> int:
        return self._stream.fileno()

    @property
    def encoding(self) -> str:  # type: ignore[override]
        return self._stream.encoding
