"""The last lines of `skillmix run`: the differences that tuning made, the cost, and commands to try next."""

from collections.abc import Sequence
from typing import Final

from skillmix.render.numbers import dollars, duration, in_words, share, share_with_interval, signed_with_interval, whole
from skillmix.render.wording import plural
from skillmix.scores.cells import CellScore
from skillmix.scores.compare import Change, clearest_first

_MAX_LINES: Final = 12
_NOISE: Final = (
    "A difference is within noise if its 95 % interval over combinations includes 0; each k is looked at by itself."
)


def shown_lines(changes: Sequence[Change], scores: Sequence[CellScore], *, run: str) -> list[str]:
    """The differences between tuned students and their bases, the clearest first; none if a run has no such pair."""
    words = _Words(changes, scores)
    known = [change for change in clearest_first(changes) if words.knows(change)]
    if not known:
        return []
    shown = known[:_MAX_LINES]
    lines = [words.sentence(shown[0]), *map(words.short, shown[1:])]
    more = len(known) - len(shown)
    if more > 0:
        lines.append(f"{plural(more, 'more difference')}: skillmix scores {run}")
    return [*lines, _NOISE]


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


class _Words:
    """Puts differences into words; names the setting and the grader if a run has several."""

    def __init__(self, changes: Sequence[Change], scores: Sequence[CellScore]) -> None:
        self._has_settings = len({change.setting for change in changes}) > 1
        self._has_graders = len({change.grader for change in changes}) > 1
        self._scores: dict[tuple[str, str, str, int], CellScore] = {}
        for score in scores:
            key = score.student, score.grader, score.setting, score.k
            is_larger = key not in self._scores or score.combinations > self._scores[key].combinations
            if score.metric == "full_marks" and score.sets == "all" and is_larger:
                self._scores[key] = score

    def knows(self, change: Change) -> bool:
        """Whether the table has both scores; an early stop can leave one out."""
        return all((name, change.grader, change.setting, change.k) in self._scores for name in _both(change))

    def sentence(self, change: Change) -> str:
        """A difference as a full sentence."""
        after, before = (self._score(name, change) for name in _both(change))
        n = change.gain.combinations
        is_same = after.complete == before.complete == n
        of_before = "" if is_same else f" of {whole(before.complete)}"
        things = "combination" if after.complete == 1 else "combinations"
        shared = "" if is_same else f"on the {whole(n)} that both have, "
        return (
            f"{self._where(change)}, {change.student} earns full marks on {_value(after)} of {whole(after.complete)} "
            f"{things}, {change.base} on {_value(before)}{of_before}: {shared}a difference of "
            f"{_difference(change)}.{self._format(change)}"
        )

    def short(self, change: Change) -> str:
        """A difference as one short line."""
        after, before = (self._score(name, change) for name in _both(change))
        return (
            f"{self._where(change)}: {change.student} {_value(after)}, {change.base} {_value(before)}, "
            f"difference {_difference(change)}.{self._format(change)}"
        )

    def _format(self, change: Change) -> str:
        """Full marks among texts with a valid format, and what format has to do with the difference."""
        scores = [(name, self._score(name, change)) for name in _both(change)]
        if not any(score.format_failures for _, score in scores):
            return ""
        each = [f"{name} {share(score.among_valid)} of {whole(score.valid_texts)}" for name, score in scores]
        words = change.format_words
        explained = f" {words[0].upper()}{words[1:]}." if words else ""
        return f" Full marks among texts with a valid format: {', '.join(each)}.{explained}"

    def _score(self, student: str, change: Change) -> CellScore:
        return self._scores[student, change.grader, change.setting, change.k]

    def _where(self, change: Change) -> str:
        skills = "skill" if change.k == 1 else "skills"
        named = [change.setting] if self._has_settings else []
        named += [f"graded by {change.grader}"] if self._has_graders else []
        return f"With {in_words(change.k)} {skills}" + (f" ({', '.join(named)})" if named else "")


def _both(change: Change) -> tuple[str, str]:
    return change.student, change.base


def _value(score: CellScore) -> str:
    return share_with_interval(score.value, score.low, score.high)


def _difference(change: Change) -> str:
    interval = signed_with_interval(change.gain.mean, change.gain.low, change.gain.high)
    if change.gain.low is None:
        return interval
    return f"{interval}, {'within' if change.remark == 'within noise' else 'outside'} noise"
