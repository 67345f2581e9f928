"""Draw the bar at the bottom of a terminal, and print lines above it."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, TextIO

from rich.console import Console
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from skillmix.render import percent
from skillmix.runs.progress.messages import left_words
from skillmix.runs.progress.time_left import TimeLeft

_REFRESHES_A_SECOND: Final = 4
_NARROW: Final = 50
"""Columns below which only the percentage and the time left are shown."""


@dataclass(frozen=True, slots=True)
class BarState:
    """What the bar shows."""

    step: str
    share: float
    left: TimeLeft | None


class Bar:
    """One line at the bottom of a terminal that is drawn anew several times a second."""

    def __init__(self, terminal: TextIO, state: Callable[[], BarState]) -> None:
        self._state = state
        self._console = Console(file=terminal, force_terminal=True, highlight=False, markup=False, emoji=False)
        self._live = Live(
            get_renderable=self._drawn,
            console=self._console,
            refresh_per_second=_REFRESHES_A_SECOND,
            transient=True,
            redirect_stdout=False,
            redirect_stderr=False,
        )

    def start(self) -> None:
        """Begin to draw the bar."""
        self._live.start(refresh=True)
        # A killed process cannot show the cursor again, so the cursor is never hidden.
        self._console.show_cursor(True)

    def stop(self) -> None:
        """Remove the bar; the lines above it stay."""
        self._live.stop()

    def print(self, line: str) -> None:
        """Print a line above the bar."""
        self._console.print(Text(line), soft_wrap=True)

    def _drawn(self) -> Table:
        state = self._state()
        is_wide = self._console.width >= _NARROW
        grid = Table.grid(padding=(0, 1), expand=True)
        cells: list[Text | ProgressBar] = []
        if is_wide:
            grid.add_column(no_wrap=True, overflow="ellipsis", ratio=2)
            grid.add_column(ratio=2)
            cells += [Text(state.step), ProgressBar(total=1.0, completed=state.share, complete_style="cyan")]
        grid.add_column(no_wrap=True, overflow="ellipsis", justify="right" if is_wide else "left")
        left = f"  {left_words(state.left)}" if state.left else ""
        grid.add_row(*cells, Text(f"{percent(state.share)}{left}"))
        return grid
