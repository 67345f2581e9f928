"""The last lines of `skillmix run`: the differences that tuning made, the cost, and commands to try next."""

from collections.abc import Sequence
from typing import Final

from skillmix.render import dollars, duration, in_words, plural, share, signed_with_interval, whole
from skillmix.scores.compare import Change

_MAX_LINES: Final = 12
_NOTE: Final = (
    "p is corrected over all settings and k of two students under one grader; within noise: p is .05 or more."
)


def shown_lines(changes: Sequence[Change], *, run: str) -> list[str]:
    """The differences between tuned students and their bases, in the order of the cells; none without such a pair."""
    several = [len({getattr(change.row, name) for change in changes}) > 1 for name in ("setting", "grader")]
    lines = [_line(change, *several) for change in changes[:_MAX_LINES]]
    more = len(changes) - len(lines)
    if more:
        lines.append(f"{plural(more, 'more difference')}: skillmix report {run}")
    return [*lines, _NOTE] if lines else []


def _line(change: Change, names_setting: bool, names_grader: bool) -> str:
    """A difference with its verdict, and the role of format in it."""
    row = change.row
    named = [row.setting] * names_setting + [f"graded by {row.grader}"] * names_grader
    place = f" ({', '.join(named)})" if named else ""
    format_words = change.format_words
    explained = f" {format_words[0].upper()}{format_words[1:]}." if format_words else ""
    return (
        f"With {in_words(row.k)} {'skill' if row.k == 1 else 'skills'}{place}: {change.student} "
        f"{share(row.second_value)}, {change.base} {share(row.first_value)} on "
        f"{plural(row.combinations, 'combination')}, difference "
        f"{signed_with_interval(row.difference, row.low, row.high)}: {row.words}.{explained}"
    )


def cost_line(*, called: int, found: int, seconds: float, cpu_seconds: float, cost_usd: float | None) -> str:
    """The calls, the time and the dollars of one command; no dollars if everything was free.

    >>> cost_line(called=480, found=0, seconds=660, cpu_seconds=1080, cost_usd=0.0)
    'cost: 480 calls made, 0 found, 11 min, 18 min of CPU time'
    >>> cost_line(called=5, found=10, seconds=20, cpu_seconds=1, cost_usd=None)
    'cost: 5 calls made, 10 found, 20 s, 1 s of CPU time, US dollars unknown'
    """
    facts = [
        f"{plural(called, 'call')} made",
        f"{whole(found)} found",
        duration(seconds),
        f"{duration(cpu_seconds)} of CPU time",
    ]
    if cost_usd is None:
        facts.append("US dollars unknown")
    elif cost_usd:
        facts.append(f"{dollars(cost_usd)} US dollars")
    return f"cost: {', '.join(facts)}"


def command_lines(commands: Sequence[tuple[str, str]]) -> list[str]:
    """Commands to try, each with a shell comment that says what it does."""
    return ["try next:", *(f"  {command}  # {about}" for command, about in commands)] if commands else []
