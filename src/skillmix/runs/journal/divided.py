"""A journal in several files, each with a range of combination ids, so that SQLite can write on several cores.

The first file is that of a journal which is not divided, and its lock is the lock of the run. A conversation is in one
file, unless the number of files was changed after it began. Files that hold ids outside their range are then asked as
well, and readers take the union of all files, so the number may change at any time.
"""

import re
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import ExitStack, contextmanager
from itertools import groupby
from pathlib import Path
from threading import Lock
from types import TracebackType
from typing import Final, Self, TypeVar

from skillmix.calls import Call, GenerateKey, Origin, Outcome, Request
from skillmix.catalog.combinations import Combination
from skillmix.errors import UserError
from skillmix.runs.journal.buckets import starts_of
from skillmix.runs.journal.call_journal import RunJournal, TryThread
from skillmix.runs.journal.file_order import IdSpan
from skillmix.runs.journal.journal import MAIN_FILE, JournalWriter, make_file
from skillmix.runs.journal.row_writer import Try
from skillmix.runs.journal.rows import key_order, union
from skillmix.runs.journal.submissions import Submissions

_PART: Final = re.compile(r"calls-([1-9][0-9]{0,3})\.sqlite")
_Row = TypeVar("_Row")
_Key = TypeVar("_Key")


def run_journal(folder: Path, *, files: int = 1) -> RunJournal:
    """Open a run's journal for writing; rows go to that many files, whatever number the run had before."""
    numbers = sorted({*_numbers_of_parts(folder), *range(2, files + 1)})
    return DividedJournal(folder, files=files, numbers=numbers) if numbers else JournalWriter(folder)


def _numbers_of_parts(folder: Path) -> Iterator[int]:
    for path in folder.glob("calls-*.sqlite"):
        match = _PART.fullmatch(path.name)
        if match and int(match[1]) > 1:
            yield int(match[1])


def part_file(number: int) -> str:
    """The name of a file of a divided journal, from 1.

    >>> part_file(1), part_file(2)
    ('calls.sqlite', 'calls-2.sqlite')
    """
    return MAIN_FILE if number == 1 else f"calls-{number}.sqlite"


class DividedJournal:
    """Adds calls to the files of a run; it has the methods of a `JournalWriter`."""

    few: Final = JournalWriter.few

    def __init__(self, folder: Path, *, files: int, numbers: Sequence[int]) -> None:
        """Open the first file and those with `numbers`, of which the smallest get rows: as many as `files`."""
        self._starts = starts_of(files)
        with ExitStack() as opened:
            self._parts = [opened.enter_context(JournalWriter(folder))]
            if self.submissions.batches():
                raise UserError(
                    "Calls of this run are in batches, and their journal stays in one file until they are read.",
                    hint="Set workers.writers to 1 until then.",
                )
            for number in numbers:
                make_file(folder, part_file(number))
                self._parts.append(opened.enter_context(JournalWriter(folder, file=part_file(number))))
            self._wide = [
                part for number, part in enumerate(self._parts) if not self._is_in_range(number, part.id_span())
            ]
            self._opened = opened.pop_all()

    @property
    def submissions(self) -> Submissions:
        """The batches of a divided journal: it has none, and takes none."""
        return self._parts[0].submissions_of_divided

    def _is_in_range(self, number: int, span: IdSpan | None) -> bool:
        """Whether a file has no ids but those that it would get now."""
        return span is None or self._home(span.first) == self._home(span.last) == number

    def _home(self, combination: str) -> int:
        return bisect_right(self._starts, combination) - 1

    def _part(self, combination: str) -> JournalWriter:
        return self._parts[self._home(combination)]

    def _parts_with(self, combination: str) -> list[JournalWriter]:
        """The files that can have rows of a combination, the one that gets new rows first."""
        home = self._part(combination)
        return [home, *(part for part in self._wide if part is not home)]

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close all files and free their locks, that of the run last."""
        self._opened.close()

    def into_one_file(self) -> bool:
        """Move what the log of each file holds into the file; False if that is not possible for all."""
        return all([part.into_one_file() for part in self._parts])

    # Adding rows

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """Record everything inside the block, or nothing; if the process dies at its end, whole files may be recorded.

        A second run of the block completes them, because every row is found by its key.
        """
        with ExitStack() as stack:
            for part in self._parts:
                stack.enter_context(part.transaction())
            yield

    def add_combinations(self, combinations: Iterable[Combination]) -> None:
        """Store combinations under their ids."""
        for number, own in self._divided(combinations, lambda one: one.id).items():
            self._parts[number].add_combinations(own)

    def note_combinations(self, combinations: Iterable[Combination]) -> None:
        """Store combinations with the next tries of their files."""
        for number, own in self._divided(combinations, lambda one: one.id).items():
            self._parts[number].note_combinations(own)

    def record(self, request: Request, outcome: Outcome, *, origin: Origin = "call") -> bool:
        """Store one outcome; False if the key already has its final one."""
        return self.record_all([(request, outcome)], origin=origin) == 1

    def record_all(self, outcomes: Iterable[tuple[Request, Outcome]], *, origin: Origin = "call") -> int:
        """Store outcomes in one transaction; return how many were new."""
        new = [(request, outcome) for request, outcome in outcomes if not self._is_elsewhere(request)]
        with self.transaction():
            return sum(
                self._parts[number].record_all(own, origin=origin)
                for number, own in self._divided(new, lambda one: one[0].key.combination).items()
            )

    def _is_elsewhere(self, request: Request) -> bool:
        """Whether a file that would not get the request now has its final outcome."""
        return any(part.find(request) is not None for part in self._parts_with(request.key.combination)[1:])

    def record_tries(self, tries: Sequence[Try]) -> None:
        """Store tries, and the outcomes of calls that are over, in one transaction for each file."""
        for number, own in self.divided_tries(tries).items():
            self._parts[number].record_tries(own)

    def divided_tries(self, tries: Sequence[Try]) -> dict[int, list[Try]]:
        """Tries by the file that gets them."""
        return self._divided(tries, lambda one: one.request.key.combination)

    def in_thread(self) -> "DividedThread":
        """A thread for each file that gets rows; the caller closes them."""
        return DividedThread(self)

    def thread_of(self, number: int) -> TryThread:
        """A thread that writes to one file."""
        return self._parts[number].in_thread()

    def record_sent(self, request: Request, cost_usd: float) -> None:
        """Note a call that is about to be sent, with its worst case, in case this process dies."""
        self._part(request.key.combination).record_sent(request, cost_usd)

    def forget_sent(self, requests: Iterable[Request]) -> None:
        """Drop the notes of calls that were not sent after all."""
        for number, own in self._divided(requests, lambda one: one.key.combination).items():
            self._parts[number].forget_sent(own)

    # Looking up

    def find(self, request: Request) -> Outcome | None:
        """The stored final outcome of a request; None if the call must be made (again)."""
        found = (part.find(request) for part in self._parts_with(request.key.combination))
        return next((outcome for outcome in found if outcome is not None), None)

    def conversation(self, student: str, combination: str, generation: int) -> list[Call]:
        """Every call of one conversation: turns, then votes."""
        parts = self._parts_with(combination)
        calls = [call for part in parts for call in part.conversation(student, combination, generation)]
        if len(parts) == 1:
            return calls
        turns = [call for call in calls if isinstance(call.key, GenerateKey)]
        votes = [call for call in calls if not isinstance(call.key, GenerateKey)]
        return [
            union(list(same))
            for own in (turns, votes)
            for _, same in groupby(sorted(own, key=key_order), key=key_order)
        ]

    def calls_by_conversation(self, student: str) -> dict[tuple[str, int], int]:
        """How many calls of each conversation have a final outcome; conversations without one are absent."""
        return _added(part.calls_by_conversation(student) for part in self._parts)

    def rows_by_student(self) -> dict[str, int]:
        """How many calls of each student the files have, gradings included."""
        return _added(part.rows_by_student() for part in self._parts)

    def spent(self) -> tuple[int, float]:
        """How many calls were ever sent, and their cost; a try without a reply counts with its worst case."""
        amounts = [part.spent() for part in self._parts]
        return sum(calls for calls, _ in amounts), sum(cost for _, cost in amounts)

    def _divided(self, rows: Iterable[_Row], id_of: Callable[[_Row], str]) -> dict[int, list[_Row]]:
        """Rows by the number of the file that gets them, each file's in order."""
        divided: dict[int, list[_Row]] = {}
        for row in rows:
            divided.setdefault(self._home(id_of(row)), []).append(row)
        return divided


def _added(counts: Iterable[Mapping[_Key, int]]) -> dict[_Key, int]:
    total: dict[_Key, int] = {}
    for own in counts:
        for key, count in own.items():
            total[key] = total.get(key, 0) + count
    return total


class DividedThread:
    """Writes tries in a thread for each file."""

    def __init__(self, journal: DividedJournal) -> None:
        self._journal = journal
        self._threads: dict[int, TryThread] = {}

    def record_tries(self, tries: Sequence[Try]) -> "Future[None]":
        """Store tries; they are durable, in all files, when the future has its result."""
        futures = []
        for number, own in self._journal.divided_tries(tries).items():
            if number not in self._threads:
                self._threads[number] = self._journal.thread_of(number)
            futures.append(self._threads[number].record_tries(own))
        return _all_of(futures)

    def close(self) -> None:
        """Wait until everything is written, and close the files."""
        for thread in self._threads.values():
            thread.close()


def _all_of(futures: "Sequence[Future[None]]") -> "Future[None]":
    """A future that is done when all are; it has the first error that any of them has."""
    whole: Future[None] = Future()
    lock = Lock()
    left = len(futures)

    def count(_: "Future[None]") -> None:
        nonlocal left
        with lock:
            left -= 1
            is_last = left == 0
        if is_last:
            errors = [error for one in futures if (error := one.exception()) is not None]
            if errors:
                whole.set_exception(errors[0])
            else:
                whole.set_result(None)

    if not futures:
        whole.set_result(None)
    for one in futures:
        one.add_done_callback(count)
    return whole
