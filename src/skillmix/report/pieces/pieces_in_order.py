"""Read the pieces of a run on all cores, in key order."""

from bisect import bisect_left
from collections.abc import Collection, Iterator, Sequence
from functools import partial
from itertools import count
from os import getpid
from typing import Final, NamedTuple

from skillmix.catalog.catalog import Catalog
from skillmix.grading.answers import Rules
from skillmix.report.pieces.cycles import without_cycle_search
from skillmix.report.pieces.run_piece import PieceReader, RunPiece
from skillmix.runs.journal.journal import JournalReader
from skillmix.runs.judging.ordered_work import OrderedWork
from skillmix.runs.judging.worker_pool import code_of_worker, shared_pool
from skillmix.runs.reading.conversation_index import KeyRange, key_ranges
from skillmix.runs.rules_grader import RulesGrader
from skillmix.runs.run import Run

CALLS: Final = 500
"""Calls of a student in a piece: a process reads them in a quarter of a second, and their replies take a few MB."""
FOR_A_WORKER: Final = 2_000
"""Calls of a student for each worker that is started, because starting one takes as long as reading them."""
_readings: Final = count()


class _Part(NamedTuple):
    """What a process needs to know to read a piece."""

    reading: tuple[int, int]
    """Identifies this reading of the run, so that a worker opens the journal once for all its pieces."""
    run: Run
    with_code: bool
    rules: tuple[Rules, ...]
    keys: KeyRange
    chosen: Sequence[str] | None
    """The combinations that a report of a sample shows; None for all."""


def run_pieces(
    run: Run,
    journal: JournalReader,
    code: RulesGrader | None,
    *,
    rules: tuple[Rules, ...],
    sample: Collection[str] | None = None,
) -> Iterator[RunPiece]:
    """All conversations of a run or of a sample, in key order; the journal must be limited to the sample."""
    reading = getpid(), next(_readings)
    ranges = list(key_ranges(journal, CALLS))
    sampled = None if sample is None else sorted(sample)
    parts = [_Part(reading, run, code is not None, rules, keys, _chosen(sampled, keys)) for keys in ranges]
    reader = PieceReader(run, journal, code, rules)
    pool = shared_pool(code_catalog(run))
    workers = 0 if pool is None else min(pool.size, sum(keys.calls for keys in ranges) // FOR_A_WORKER)
    if pool is None or not pool.is_possible or not workers:
        return (reader.read(part.keys, part.chosen) for part in parts)
    work = OrderedWork(pool, there=_read_there, here=partial(_read, reader))
    return work.results(parts, workers=workers)


def code_catalog(run: Run) -> Catalog | None:
    """The catalogue by which workers can judge texts of a run; None if it is unknown or its code is not trusted."""
    catalog = run.unchanged_catalog
    return catalog if catalog is not None and (catalog.code is None or catalog.code.is_trusted) else None


def _chosen(sampled: Sequence[str] | None, keys: KeyRange) -> Sequence[str] | None:
    if sampled is None:
        return None
    first, end = keys.ids
    return sampled[bisect_left(sampled, first) : bisect_left(sampled, end)]


def _read(reader: PieceReader, part: _Part) -> RunPiece:
    return reader.read(part.keys, part.chosen)


class _Open(NamedTuple):
    reading: tuple[int, int]
    journal: JournalReader
    reader: PieceReader


_open: Final[list[_Open]] = []
"""In a worker: the journal of the reading that it is part of."""


def _read_there(part: _Part) -> RunPiece:
    if not _open or _open[0].reading != part.reading:
        while _open:
            _open.pop().journal.close()
        journal = part.run.read()
        code = code_of_worker() if part.with_code else None
        _open.append(_Open(part.reading, journal, PieceReader(part.run, journal, code, part.rules)))
    with without_cycle_search():
        return _read(_open[0].reader, part)
