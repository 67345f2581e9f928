"""Show the progress of a run on standard error: a bar on a terminal, lines elsewhere."""

import asyncio
import sys
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from skillmix.runs.progress.messages import begin_words, call_words, run_words, step_words
from skillmix.runs.progress.terminal import Terminal, can_draw, say
from skillmix.runs.progress.time_left import ENOUGH, Bound, Work, pace_of, share_done, time_left
from skillmix.runs.scheduler import CallCounts

if TYPE_CHECKING:
    from skillmix.runs.progress.bar import BarState

LINE_EVERY: Final = 15.0
"""Seconds between two lines where there is no terminal."""
_LOOK_EVERY: Final = 0.5
_SHORTEST: Final = 0.2
"""Seconds; shorter measurements are ignored."""
_RECENT: Final = 60.0
"""Seconds in which the pace is measured."""


class RunProgress:
    """The steps of a run and how far each of them is; a step that was not planned is not shown."""

    def __init__(self, works: Sequence[Work] = (), *, clock: Callable[[], float] = time.monotonic) -> None:
        self._works = {work.name: work for work in works}
        self._clock = clock
        self._started: dict[str, float] = {}
        """When each step with work to do began."""
        self._marks: dict[str, deque[tuple[float, int]]] = {}
        """When units of a step were done lately, and how many: the time before the first units does not count."""
        self._details: dict[str, str] = {}
        self._made: dict[str, int] = {}
        self._current = ""
        self._largest_share = 0.0
        self._last_line = clock()
        self._terminal: Terminal | None = None

    def __enter__(self) -> "RunProgress":
        if self._works and can_draw(sys.stderr):
            self._terminal = Terminal(sys.stderr, self._state)
        return self

    def __exit__(self, *problem: object) -> None:
        if self._terminal is not None:
            self._terminal.close()
            self._terminal = None

    def expect(self, name: str, total: int, *, bound: Bound | None = None) -> None:
        """Correct the total of a step and, if it has changed, whether the total is a bound."""
        if name in self._works:
            work = self._works[name]
            self._works[name] = replace(work, total=total, bound=bound or work.bound)

    def begin(self, name: str) -> None:
        """Show that a step begins, which has work to do."""
        if name not in self._works or name in self._started:
            return
        self._current = name
        self._started[name] = self._last_line = self._clock()
        if self._terminal is not None:
            self._terminal.draw()
        else:
            say(begin_words(self._works[name]))

    def go_on(self, name: str) -> None:
        """Show a step that every run repeats, if an earlier step had work to do."""
        if self._started:
            self.begin(name)

    def update(self, name: str, *, done: int, made: int, detail: str = "") -> None:
        """Note how many units of a step are done, and how many of them this process made."""
        if name not in self._works:
            return
        now = self._clock()
        work = replace(self._works[name], done=done)
        if made:
            marks = self._marks.setdefault(name, deque())
            if not marks or made > marks[-1][1]:
                marks.append((now, made))
            while len(marks) > ENOUGH + 1 and marks[1][0] < now - _RECENT:
                marks.popleft()
            first, before = marks[0]
            if now - first >= _SHORTEST:
                work = replace(work, timed=made - before, seconds=now - first)
        self._works[name], self._details[name], self._made[name] = work, detail, made
        if name in self._started and self._terminal is None and now - self._last_line >= LINE_EVERY:
            self._last_line = now
            say(f"{self._step(name)}; {self._run()}")

    def end(self, name: str, line: str | None = None) -> None:
        """Note that a step is over; if it had work to do, say what is left of the run."""
        work = self._works.get(name)
        if work is not None and not work.is_over:
            made, started = self._made.get(name, 0), self._started.get(name)
            if started is not None and work.timed < ENOUGH <= made:  # too short to be measured in the middle
                work = replace(work, timed=made, seconds=self._clock() - started)
            self._works[name] = replace(work, is_over=True)
        if line is not None:
            self._last_line = self._clock()
            say(f"{line}; {self._run()}" if name in self._started else line)

    def leave(self, name: str, line: str) -> None:
        """Say what was done of a step that was stopped before its end, and how much of the run is done."""
        self._last_line = self._clock()
        say(f"{line}; {self._run()}" if name in self._started else line)

    def pace(self, name: str) -> float | None:
        """Units per second of a step; None if not measured."""
        work = self._works.get(name)
        seconds = pace_of(work, ()) if work is not None else None
        return 1 / seconds if seconds else None

    def _step(self, name: str) -> str:
        return step_words(self._works[name], self._details.get(name, ""))

    def _run(self) -> str:
        return run_words(self._share(), time_left(self._all()))

    def _share(self) -> float:
        """The share of the run that is done; it never falls, even if a better estimate finds more work."""
        self._largest_share = max(self._largest_share, share_done(self._all()))
        return self._largest_share

    def _all(self) -> list[Work]:
        return list(self._works.values())

    def _state(self) -> "BarState":
        from skillmix.runs.progress.bar import BarState

        return BarState(self._step(self._current), self._share(), time_left(self._all()))


NO_PROGRESS: Final = RunProgress()
"""For work outside a run, whose progress is not shown."""


@asynccontextmanager
async def watched(progress: RunProgress, step: str, counts: CallCounts) -> AsyncIterator[None]:
    """Keep the progress of a step of calls up to date."""
    watching = asyncio.create_task(_watch(progress, step, counts))
    try:
        yield
    finally:
        watching.cancel()
        with suppress(asyncio.CancelledError):
            await watching
        _look(progress, step, counts)


async def _watch(progress: RunProgress, step: str, counts: CallCounts) -> None:
    while True:
        _look(progress, step, counts)
        await asyncio.sleep(_LOOK_EVERY)


def _look(progress: RunProgress, step: str, counts: CallCounts) -> None:
    made = counts.called - counts.retried
    detail = call_words(progress.pace(step), cost_usd=counts.cost_usd, retried=counts.retried)
    if counts.started:
        progress.begin(step)
    progress.update(step, done=counts.found + made, made=made, detail=detail)
