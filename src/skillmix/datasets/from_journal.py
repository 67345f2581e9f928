"""Collect the conversations with full marks of a run; a second process reads half of a large run."""

import gc
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice, zip_longest
from typing import Final

from skillmix.datasets.build import Writers, has_two_turns, kept_texts
from skillmix.datasets.kept_texts import KeptText
from skillmix.runs.helper_process import LostHelper, in_helper, is_there_a_second_core
from skillmix.runs.journal.ahead import ConversationsAhead
from skillmix.runs.reading.conversation_index import HALVES, IdRange
from skillmix.runs.reading.decisions import DecidedConversation, decided_conversations, decision_rules
from skillmix.runs.run import Run

_AT_ONCE: Final = 10_000
WORTH_IT: Final = 100_000
"""The number of calls above which a second process saves time, although it takes a second to start."""


@dataclass(frozen=True)
class RunSource:
    """A run, the graders whose votes count and the students whose texts are wanted; None for all of them."""

    run: Run
    graders: Sequence[str] | None
    students: Sequence[str] | None
    writers: Writers


@dataclass
class KeptOfRun:
    """Texts with full marks in key order, and the count of all conversations by outcome."""

    kept: list[KeptText] = field(default_factory=list)
    kinds: Counter[str] = field(default_factory=Counter)
    """The number of conversations of each kind: 'full', 'less', 'undecided', 'unfinished' and 'no turns'."""
    decided: Counter[str] = field(default_factory=Counter)
    """The number of texts that each grader decided."""

    def add(self, other: "KeptOfRun") -> None:
        """Add the texts and counts of another part."""
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
        with in_helper(_parts_there, source, others) as received:
            for part, other in zip_longest(_parts(source, mine), received, fillvalue=KeptOfRun()):
                ours.add(part)
                theirs.add(other)
    except LostHelper:
        return _together(_parts(source, None))
    ours.add(theirs)
    ours.kept.sort(key=lambda kept: (kept.writer, kept.combination.id, kept.generation))
    return ours


def _is_large(source: RunSource) -> bool:
    with source.run.read() as journal:
        return journal.size() >= WORTH_IT


def _together(parts: Iterable[KeptOfRun]) -> KeptOfRun:
    whole = KeptOfRun()
    for part in parts:
        whole.add(part)
    return whole


def _parts_there(source: RunSource, ids: IdRange) -> Iterator[KeptOfRun]:
    gc.disable()  # for the same reason as in `dataset_of_runs`
    yield from _parts(source, ids)


def _parts(source: RunSource, ids: IdRange | None) -> Iterator[KeptOfRun]:
    """The conversations in blocks, without those that no step has tried yet.

    The texts are loaded only for kept conversations, one block at a time.
    """
    rules = decision_rules(source.run, graders=source.graders)
    graders = rules.names
    untried = ConversationsAhead(source.run.journal).untried
    everything = decided_conversations(rules, students=source.students, ids=ids)
    decided = (one for one in everything if one.conversation[:3] not in untried)
    with source.run.read() as journal:
        while part := list(islice(decided, _AT_ONCE)):
            kinds = [_kind(one) for one in part]
            full = [one for one, kind in zip(part, kinds, strict=True) if kind == "full"]
            yield KeptOfRun(
                kept_texts(full, journal, source.writers, graders),
                Counter(kinds),
                Counter(
                    [g for one in part for g, d in zip(graders, one.decisions, strict=False) if d.earned is not None]
                ),
            )


def _kind(conversation: DecidedConversation) -> str:
    if not conversation.is_over:
        return "unfinished"
    if conversation.is_ungraded:
        return "undecided"
    if not conversation.is_kept:
        return "less"
    return "full" if has_two_turns(conversation.conversation) else "no turns"
