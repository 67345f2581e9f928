"""The conversations with full marks of a run; of a large run, a second process reads one half."""

import gc
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice, zip_longest
from pathlib import Path
from typing import Final

from skillmix.datasets.build import Writers, has_two_turns, kept_texts
from skillmix.datasets.texts import KeptText
from skillmix.runs.helper_process import LostHelper, beside, is_there_a_second_core
from skillmix.runs.reading.decisions import Graded, deciding_for, graded_conversations
from skillmix.runs.reading.outlines import HALVES, Ids
from skillmix.runs.run import Run

_AT_ONCE: Final = 10_000
WORTH_IT: Final = 100_000
"""Calls in a journal from which on another process, which takes a second to come up, saves time."""


@dataclass(frozen=True)
class RunSource:
    """A run, whose votes count in it and whose texts are wanted; None for everybody's."""

    run: Path
    graders: Sequence[str] | None
    students: Sequence[str] | None
    writers: Writers


@dataclass
class KeptOfRun:
    """Texts with full marks in the order of their keys, and the count of everything else."""

    kept: list[KeptText] = field(default_factory=list)
    kinds: Counter[str] = field(default_factory=Counter)
    """Conversations: 'full', 'less', 'undecided', 'unfinished' and 'no turns'."""
    decided: Counter[str] = field(default_factory=Counter)
    """Texts by the grader who decided about them."""

    def add(self, other: "KeptOfRun") -> None:
        """Put what another process or an earlier part found with it."""
        self.kept.extend(other.kept)
        self.kinds.update(other.kinds)
        self.decided.update(other.decided)


def found_in(source: RunSource) -> KeptOfRun:
    """Read a whole run."""
    if not _is_large(source) or not is_there_a_second_core():
        return _together(_parts(source, None))
    mine, others = HALVES
    ours, theirs = KeptOfRun(), KeptOfRun()
    try:
        with beside(_parts_there, source, others) as received:
            for part, other in zip_longest(_parts(source, mine), received, fillvalue=KeptOfRun()):
                ours.add(part)
                theirs.add(other)
    except LostHelper:
        return _together(_parts(source, None))
    ours.add(theirs)
    ours.kept.sort(key=lambda kept: (kept.writer, kept.combination.id, kept.generation))
    return ours


def _is_large(source: RunSource) -> bool:
    with Run(source.run).read() as journal:
        return journal.size() >= WORTH_IT


def _together(parts: Iterable[KeptOfRun]) -> KeptOfRun:
    whole = KeptOfRun()
    for part in parts:
        whole.add(part)
    return whole


def _parts_there(source: RunSource, ids: Ids) -> Iterator[KeptOfRun]:
    gc.disable()  # for the same reason as in `dataset_of_runs`
    yield from _parts(source, ids)


def _parts(source: RunSource, ids: Ids | None) -> Iterator[KeptOfRun]:
    """Some conversations after the other: words are fetched only of what is kept, and for some at a time."""
    run = Run(source.run)
    deciding = deciding_for(run, graders=source.graders)
    graders = list(deciding.graders)
    graded = graded_conversations(run, deciding, students=source.students, ids=ids)
    with run.read() as journal:
        while part := list(islice(graded, _AT_ONCE)):
            kinds = [_kind(one) for one in part]
            full = [one for one, kind in zip(part, kinds, strict=True) if kind == "full"]
            yield KeptOfRun(
                kept_texts(full, journal, source.writers, graders),
                Counter(kinds),
                Counter(
                    [g for one in part for g, d in zip(graders, one.decisions, strict=False) if d.earned is not None]
                ),
            )


def _kind(graded: Graded) -> str:
    if not graded.is_over:
        return "unfinished"
    if graded.is_ungraded:
        return "undecided"
    if not graded.is_kept:
        return "less"
    return "full" if has_two_turns(graded.outline) else "no turns"
