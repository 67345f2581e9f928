"""Show the progress of a run on standard error, as a bar on a terminal and as lines elsewhere."""

import sys
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field, replace
from logging import INFO
from typing import TYPE_CHECKING, Final, Literal

from skillmix.errors import LOG
from skillmix.render import dollars, duration, percent, plural, whole

if TYPE_CHECKING:
    from rich.live import Live
    from rich.table import Table

    from skillmix.runs.scheduler import CallCounts

Bound = Literal["about", "at least", "at most"]
LINE_EVERY: Final = 15.0
"""Seconds between two progress lines if standard error is not a terminal."""
_LOOK_EVERY: Final = 0.5
_RECENT: Final = 60.0
"""The time window for measuring the speed, in seconds."""
_REFRESHES_A_SECOND: Final = 4
_SHORTEST: Final = 0.2
"""The minimum duration of a speed measurement, in seconds."""
_ENOUGH_SECONDS: Final = 10.0
_ENOUGH_SHARE: Final = 0.1
"""The share of a step's units that is enough to measure its speed in fewer than `_ENOUGH_SECONDS` seconds."""
_NARROW: Final = 50
"""The width in columns below which a terminal shows only the percentage and the time left."""
_UNCOUNTED: Final = ("report", "annotate", "graders")
"""Kinds of steps that are shown without counts, because their units mean nothing to users."""


@dataclass(slots=True)
class Work:
    """One step of a run, with its planned units of work, such as model calls or training steps, and its progress."""

    name: str
    kind: str
    """The kind of units.

    All units of a kind take about the same time, so earlier steps predict the time of later ones.
    """
    total: int | None = None
    """The total number of units; None if not known yet."""
    bound: Bound = "about"
    """Whether the total is an estimate or a bound."""
    is_over: bool = False
    started: float | None = None
    """The time when work on the step began; None if there has been no work yet."""
    done: int = 0
    """Units that this process completed or found in the journal."""
    made: int = 0
    pace: float | None = None
    """Seconds per unit, measured recently; None until the first measurement."""
    marks: deque[tuple[float, int]] = field(default_factory=deque)
    """Recent times, each with the number of units completed by then. The first unit starts the measurement."""
    detail: str = ""

    @property
    def size(self) -> int:
        """Return the total number of units, but at least the number that are done."""
        return max(self.total or 0, self.done)

    @property
    def left(self) -> int | None:
        """Return the number of remaining units; None if not known yet."""
        if self.is_over:
            return 0
        return None if self.total is None else self.size - self.done

    def measure(self, now: float, made: int) -> None:
        """Record the number of units that this process has completed so far."""
        marks, self.made = self.marks, made
        if made and (not marks or made > marks[-1][1]):
            marks.append((now, made))
        while len(marks) > 3 and marks[1][0] < now - _RECENT:
            marks.popleft()
        if marks:
            seconds, units = now - marks[0][0], made - marks[0][1]
            is_long = seconds >= _ENOUGH_SECONDS or units >= _ENOUGH_SHARE * (self.total or 0)
            if units >= 2 and seconds >= _SHORTEST and is_long:
                self.pace = seconds / units

    @property
    def plan(self) -> str:
        """Describe the planned units, such as `at least 300`; empty if they are unknown or meaningless."""
        if self.kind in _UNCOUNTED or not self.total:
            return ""
        bound = "" if self.bound == "about" else f"{self.bound} "
        return f"{bound}{whole(self.size)}"

    @property
    def words(self) -> str:
        """Describe the progress: `eval: 300 of 1,200 calls, 12/s` or `m1: step 3 of 50, loss 2.1`."""
        if self.kind in _UNCOUNTED:
            return self.name
        known = whole(self.done) + (f" of {self.plan}" if self.plan else "")
        progress = f"step {known}" if self.kind == "training" else f"{known} calls"
        return f"{self.name}: {progress}" + (f", {self.detail}" if self.detail else "")


def say(line: str) -> None:
    """Write one line to standard error, unless the command is quiet."""
    LOG.info(line)


class RunProgress:
    """Shows the progress of the planned steps of a run."""

    def __init__(self, works: Sequence[Work] = (), *, clock: Callable[[], float] = time.monotonic) -> None:
        self._steps = {work.name: replace(work) for work in works}
        self._clock = clock
        self._largest_share = 0.0
        self._last_line = clock()
        self._bar: Live | None = None
        self._current = ""
        """A description of the current step."""

    def __enter__(self) -> "RunProgress":
        return self

    def __exit__(self, *problem: object) -> None:
        if self._bar is not None:
            sys.stderr.flush()  # prints an unfinished last line
            self._bar.stop()
            self._bar = None

    def expect(self, name: str, total: int, *, bound: Bound | None = None) -> None:
        """Correct the total of a step and, if `bound` is given, whether the total is an estimate or a bound."""
        if (step := self._steps.get(name)) is not None:
            step.total, step.bound = total, bound or step.bound

    def begin(self, name: str) -> None:
        """Show that a step begins and has work to do."""
        step = self._steps.get(name)
        if step is None or step.started is not None:
            return
        step.started = self._last_line = self._clock()
        self._current = step.words
        self._bar = self._bar or self._new_bar()
        if self._bar is None:
            unit = "steps" if step.kind == "training" else "calls"
            say(f"{name}: begins" + (f", {step.plan} {unit}" if step.plan else ""))

    def go_on(self, name: str) -> None:
        """Show a step that every run repeats, but only if an earlier step had work to do."""
        if any(step.started is not None for step in self._steps.values()):
            self.begin(name)

    def update(self, name: str, *, done: int, made: int, detail: str = "") -> None:
        """Record how many units of a step are done, and how many of those this process completed."""
        step = self._steps.get(name)
        if step is None:
            return
        now = self._clock()
        step.done, step.detail = done, detail
        step.measure(now, made)
        if step.started is None:
            return
        self._current = step.words
        if self._bar is None and now - self._last_line >= LINE_EVERY:
            self._last_line = now
            say(f"{step.words}; {self._run}")

    def end(self, name: str, line: str | None = None) -> None:
        """Mark a step as finished. Print the line, if given, and the run's progress if the step had work to do."""
        step = self._steps.get(name)
        if step is not None and not step.is_over:
            if step.started is not None and step.pace is None and step.made >= 2:  # too short to be measured before
                step.pace = (self._clock() - step.started) / step.made
            step.is_over = True
        if line is not None:
            self.leave(name, line)

    def leave(self, name: str, line: str) -> None:
        """Print a line about a step, followed by the run's progress if the step had work to do."""
        self._last_line = self._clock()
        step = self._steps.get(name)
        say(line if step is None or step.started is None else f"{line}; {self._run}")

    def rate(self, name: str) -> float | None:
        """Return the units per second of a step; None if not measured."""
        step = self._steps.get(name)
        return 1 / step.pace if step is not None and step.pace else None

    def estimate(self) -> tuple[float, str]:
        """Estimate the finished share of the run, and the time left in words, which is empty until a step is measured.

        The estimate uses the speed of the step, or else the speed of the last step of its kind. A unit of an unmeasured
        kind counts as much as an average unit of the measured kinds. The share never falls, even if a better estimate
        finds more work.
        """
        paces = {step.kind: step.pace for step in self._steps.values() if step.pace}
        usual = sum(paces.values()) / len(paces) if paces else 1.0
        seconds_left, unmeasured, everything, done = 0.0, 0, 0.0, 0.0
        for step in self._steps.values():
            pace = step.pace or paces.get(step.kind)
            if step.left is None or (step.left and not pace):
                unmeasured += 1
            else:
                seconds_left += step.left * (pace or 0.0)
            everything += step.size * (pace or usual)
            done += (step.size if step.is_over else step.done) * (pace or usual)
        self._largest_share = max(self._largest_share, done / everything if everything else 0.0)
        more = f", {plural(unmeasured, 'step')} not measured yet" if unmeasured else ""
        return self._largest_share, f"about {duration(seconds_left)} left{more}" if seconds_left else ""

    @property
    def _run(self) -> str:
        share, left = self.estimate()
        return ", ".join(filter(None, (f"the run: {percent(share)}", left)))

    def _drawn(self, width: int) -> "Table":
        from rich.progress_bar import ProgressBar
        from rich.table import Table

        share, left = self.estimate()
        grid = Table.grid(padding=(0, 1), expand=True)
        cells: list[str | ProgressBar] = []
        if width >= _NARROW:
            grid.add_column(no_wrap=True, overflow="ellipsis", ratio=2)
            grid.add_column(ratio=2)
            cells += [self._current, ProgressBar(total=1.0, completed=share, complete_style="cyan")]
        grid.add_column(no_wrap=True, overflow="ellipsis", justify="right" if cells else "left")
        grid.add_row(*cells, f"{percent(share)}  {left}".rstrip())
        return grid

    def _new_bar(self) -> "Live | None":
        """Make a bar at the bottom of the terminal, below all output to standard error; None without a terminal."""
        try:
            if not (self._steps and LOG.isEnabledFor(INFO) and sys.stderr is not None and sys.stderr.isatty()):
                return None
        except ValueError:  # closed
            return None
        from rich.console import Console
        from rich.live import Live

        # Lines are not wrapped, so that users can copy long paths.
        console = Console(file=sys.stderr, highlight=False, markup=False, emoji=False, soft_wrap=True)
        if console.is_dumb_terminal:
            return None
        bar = Live(
            get_renderable=lambda: self._drawn(console.width),
            console=console,
            refresh_per_second=_REFRESHES_A_SECOND,
            transient=True,
            redirect_stdout=False,
        )
        bar.start(refresh=True)
        console.show_cursor(True)  # the bar hides the cursor, which a killed process could not restore
        return bar


NO_PROGRESS: Final = RunProgress()
"""Used for work outside a run, whose progress is not shown."""


@asynccontextmanager
async def watched(progress: RunProgress, step: str, counts: "CallCounts") -> AsyncIterator[None]:
    """Update the progress of a step that makes calls."""
    import asyncio

    def look() -> None:
        made = counts.called - counts.retried
        if counts.started:
            progress.begin(step)
        detail = _call_words(progress.rate(step), cost_usd=counts.cost_usd, retried=counts.retried)
        progress.update(step, done=counts.found + made, made=made, detail=detail)

    async def watch() -> None:
        while True:
            look()
            await asyncio.sleep(_LOOK_EVERY)

    watching = asyncio.create_task(watch())
    try:
        yield
    finally:
        watching.cancel()
        with suppress(asyncio.CancelledError):
            await watching
        look()


def _call_words(rate: float | None, *, cost_usd: float, retried: int) -> str:
    """Describe the speed, cost and retries of a step that makes calls.

    >>> _call_words(0.25, cost_usd=0.0, retried=0), _call_words(1200.4, cost_usd=1.5, retried=3)
    ('0.25/s', '1,200/s, 1.50 US dollars, 3 retried')
    """
    facts = [
        (f"{rate:.2f}/s" if rate < 10 else f"{rate:,.0f}/s") if rate else "",
        f"{dollars(cost_usd)} US dollars" if cost_usd else "",
        f"{whole(retried)} retried" if retried else "",
    ]
    return ", ".join(filter(None, facts))
