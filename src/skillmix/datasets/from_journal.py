"""Collect the conversations with full marks of a run; a large run is read by a process for each core."""

import gc
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from itertools import groupby, islice, zip_longest
from pathlib import Path
from typing import Final, NamedTuple

from skillmix.datasets.build import Writers, has_all_turns, kept_texts
from skillmix.datasets.kept_texts import KeptText
from skillmix.runs.helper_process import MOST_HELPERS, LostHelper, cores, in_helper, is_there_a_second_core
from skillmix.runs.journal.ahead import ConversationsAhead
from skillmix.runs.on_disk.disk_list import DiskList, PackedItems, packed
from skillmix.runs.reading.conversation_index import IdRange, id_ranges
from skillmix.runs.reading.decisions import DecidedConversation, decided_conversations, decision_rules
from skillmix.runs.run import Run

_AT_ONCE: Final = 10_000
_BLOCK: Final = 500
WORTH_IT: Final = 100_000
"""The number of calls above which further processes save time, although they take a second to start."""


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

    kept: Sequence[KeptText] = ()
    kinds: Counter[str] = field(default_factory=Counter)
    """The number of conversations of each kind: 'full', 'less', 'undecided', 'unfinished' and 'no turns'."""
    decided: Counter[str] = field(default_factory=Counter)
    """The number of texts that each grader decided."""

    def count(self, other: "KeptOfRun | _PackedPart") -> None:
        """Add the counts of another part."""
        self.kinds.update(other.kinds)
        self.decided.update(other.decided)


class _PackedPart(NamedTuple):
    """A part of a run from another process: texts as bytes, each block of one writer with the key of its first text."""

    blocks: list[tuple[tuple[str, str, int], PackedItems]]
    kinds: Counter[str]
    decided: Counter[str]


def found_in(source: RunSource, *, folder: Path | None = None) -> KeptOfRun:
    """Read a whole run, on all cores if it is large; many texts go to disk in `folder`."""
    if _is_large(source) and is_there_a_second_core():
        with suppress(LostHelper):
            return _found_by_helpers(source, folder)
    texts: DiskList[KeptText] = DiskList(folder=folder)
    whole = KeptOfRun(texts)
    for part in _parts(source, None):
        texts.extend(part.kept)
        whole.count(part)
    return whole


def _found_by_helpers(source: RunSource, folder: Path | None) -> KeptOfRun:
    """Read a run by processes, each of which has a range of combination ids.

    Their texts stay packed here. Blocks in the order of their first keys are all texts in key order, because no block
    has texts of two writers or of two ranges.
    """
    texts: DiskList[KeptText] = DiskList(folder=folder)
    whole = KeptOfRun(texts)
    firsts: list[tuple[str, str, int]] = []
    with ExitStack() as stack:
        ranges = id_ranges(min(cores(), MOST_HELPERS))
        received = [stack.enter_context(in_helper(_parts_there, source, ids)) for ids in ranges]
        for parts in zip_longest(*received):
            for part in filter(None, parts):
                whole.count(part)
                for first, items in part.blocks:
                    firsts.append(first)
                    texts.add_packed(items)
    texts.reorder_blocks(sorted(range(len(firsts)), key=firsts.__getitem__))
    return whole


def _is_large(source: RunSource) -> bool:
    with source.run.read() as journal:
        return journal.size() >= WORTH_IT


def _parts_there(source: RunSource, ids: IdRange) -> Iterator[_PackedPart]:
    gc.disable()  # for the same reason as in `dataset_of_runs`
    for part in _parts(source, ids):
        blocks = []
        for _, own in groupby(part.kept, key=lambda kept: kept.writer):
            texts = list(own)
            for start in range(0, len(texts), _BLOCK):
                block = texts[start : start + _BLOCK]
                first = block[0].writer, block[0].combination.id, block[0].generation
                blocks.append((first, packed(block)))
        yield _PackedPart(blocks, part.kinds, part.decided)


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
    return "full" if has_all_turns(conversation.conversation) else "no turns"
