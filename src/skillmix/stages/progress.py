"""How a step is going, on standard error: one line written over on a terminal, a line now and then elsewhere."""

import asyncio
import sys
import time
from contextlib import suppress

from skillmix.engine.scheduler import Tally

_EVERY = 5.0


async def watch(step: str, tally: Tally, expected: int | None) -> None:
    """Say how it goes until cancelled; without an expected number of calls, only what was done."""
    is_terminal = sys.stderr.isatty()
    started = time.monotonic()
    with suppress(asyncio.CancelledError):
        while True:
            await asyncio.sleep(1.0 if is_terminal else _EVERY)
            line = _line(step, tally, expected, seconds=time.monotonic() - started)
            sys.stderr.write(f"\r{line}\x1b[K" if is_terminal else f"{line}\n")
            sys.stderr.flush()
    if is_terminal:
        sys.stderr.write("\r\x1b[K")


def _line(step: str, tally: Tally, expected: int | None, *, seconds: float) -> str:
    rate = tally.called / seconds
    ahead = ""
    if expected is not None:
        left = max(0, expected - tally.called - tally.found)
        ahead = f"about {left} to go, {duration(left / rate) if rate else 'time left unknown'}, "
    return (
        f"{step}: {tally.called} calls, {tally.found} found, {rate:.0f}/s, {ahead}"
        f"{tally.tokens} tokens, {tally.cost_usd:.2f} US dollars, {tally.retried} tried again"
    )


def duration(seconds: float) -> str:
    """How long something will take."""
    return f"about {seconds / 60:.0f} min left" if seconds >= 90 else f"about {seconds:.0f} s left"


def say(line: str) -> None:
    """One line of news."""
    sys.stderr.write(f"{line}\n")
    sys.stderr.flush()
