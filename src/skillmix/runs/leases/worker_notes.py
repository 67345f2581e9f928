"""Figures of the workers of a step, in `workers.json` of the run, which the driver writes every few seconds.

They are notes for `skillmix status`: nothing depends on them, a missing or damaged file means that nothing is known,
and a failed write is harmless. Only the process that holds the run's lock writes the file.
"""

import asyncio
import json
import math
import os
import socket
import time
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final, get_args

from skillmix.errors import visible
from skillmix.render import are, plural, whole
from skillmix.runs.folder_replacement import write_whole
from skillmix.runs.leases.owner import LeaseOwner
from skillmix.runs.leases.worker_figures import WorkerState

WORKERS_FILE: Final = "workers.json"
_FORMAT: Final = 1
_EVERY_S: Final = 2.0
_STALE_S: Final = 30.0
"""Seconds without a new note after which a driver that has not ended is taken for gone."""
_SILENT_S: Final = 5.0
"""Seconds after which it is shown that a worker has not answered."""


@dataclass(frozen=True, slots=True)
class WorkerNote:
    """One worker as the driver sees it."""

    name: str
    state: WorkerState
    leases: int
    in_flight: int
    """Calls that it may send or has sent; of a lost worker, those that may be asked twice."""
    calls: int
    """Calls that it made and that are stored."""
    per_second: float
    """Calls a second since the note before; of a worker that does nothing any more, over its whole time."""
    silent: float
    """Seconds since it last answered."""


@dataclass(frozen=True, slots=True)
class WorkersNote:
    """All workers of the last step that had any."""

    at: float
    """When the note was written, in seconds since 1970."""
    is_over: bool
    """Whether the step has ended."""
    waiting: int
    """Conversations that wait to be lent."""
    refused: int
    """Rows and questions that came under a lease that was taken back."""
    workers: tuple[WorkerNote, ...]
    machine: str = ""
    """The name of the driver's machine."""
    process: int = 0
    """The number of the driver's process on that machine."""
    process_table: str = ""
    """Which table of processes has that number: a container and a new start of the machine have their own."""
    process_start: str = ""
    """When the driver's process started, in the system's words: a later process may get its number."""

    @property
    def lost_calls(self) -> int:
        """Calls that were under way on lost workers, which may be asked twice."""
        return sum(worker.in_flight for worker in self.workers if worker.state == "lost")

    @property
    def calls_under_way(self) -> int:
        """Calls of workers that worked when the note was written."""
        return sum(worker.in_flight for worker in self.workers if worker.state == "works")

    @property
    def has_driver(self) -> bool | None:
        """Whether the driver's process lives; None if this machine cannot know."""
        # On other systems, the question below would end the process.
        if os.name != "posix" or not self.process or self.machine != socket.gethostname():
            return None
        if self.process_table not in ("", _process_table()):
            return None
        try:
            os.kill(self.process, 0)  # asks, and sends nothing
        except ProcessLookupError:
            return False
        except PermissionError:  # a process of another user
            pass
        except OverflowError:  # no number of a process
            return None
        return not self.process_start or _process_start(self.process) in ("", self.process_start)

    def as_json(self) -> dict[str, object]:
        """The documented form of `status --json`."""
        return asdict(self) | {"lost_calls": self.lost_calls, "has_driver": self.has_driver}

    def lines(self, now: float) -> Iterator[str]:
        """The note in words, as `skillmix status` prints it."""
        states = [worker.state for worker in self.workers]
        works, lost = states.count("works"), states.count("lost")
        age = max(0.0, now - self.at)
        has_driver = self.has_driver
        if self.is_over:
            yield f"workers: the last step with workers has ended; it had {len(states)}, {lost} of them lost"
        elif has_driver is False:
            yield (
                f"workers: the driver has ended without a last note, {whole(round(age))} s ago or less; "
                "run the same command again to go on"
            )
        elif age > _STALE_S:
            why = "its driver is stuck" if has_driver else "the run has ended or its driver is stuck"
            yield f"workers: nothing was noted for {whole(round(age))} s, so {why}"
        else:
            leases = plural(sum(worker.leases for worker in self.workers), "lease")
            waiting = are(self.waiting, "conversation", verb=("waits", "wait"))
            yield f"workers: {works} work, {lost} lost; {leases} out, {waiting}; {self._rate():.1f} calls/s"
        is_gone = has_driver is False and not self.is_over
        yield from (
            _last_line(worker) if is_gone and worker.state == "works" else _line(worker) for worker in self.workers
        )
        if self.lost_calls:
            yield f"calls under way on lost workers, which may be asked twice: {whole(self.lost_calls)}"
        if is_gone and self.calls_under_way:
            yield f"calls under way at the last note, which the next run may ask twice: {whole(self.calls_under_way)}"

    def _rate(self) -> float:
        return sum(worker.per_second for worker in self.workers if worker.state == "works")


def _line(worker: WorkerNote) -> str:
    made = f"{plural(worker.calls, 'call')} made, {worker.per_second:.1f} a second"
    if worker.state == "lost":
        return f"  {visible(worker.name)}: lost; {made}, {whole(worker.in_flight)} under way when it was lost"
    if worker.state == "ended":
        return f"  {visible(worker.name)}: ended; {made}"
    silent = f"; no answer for {worker.silent:.0f} s" if worker.silent > _SILENT_S else ""
    leases, in_flight = plural(worker.leases, "lease"), plural(worker.in_flight, "call")
    return f"  {visible(worker.name)}: {leases}, {in_flight} in flight; {made}{silent}"


def _last_line(worker: WorkerNote) -> str:
    """A worker that worked when its driver ended: Ray has ended it, too."""
    had = f"had {plural(worker.leases, 'lease')}, {plural(worker.in_flight, 'call')} under way"
    made = f"{plural(worker.calls, 'call')} made, {worker.per_second:.1f} a second"
    return f"  {visible(worker.name)}: ended with its driver; {made}, {had}"


def _process_table() -> str:
    """A name of the table of processes that this process sees; empty if the system has none."""
    with suppress(OSError):
        started = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        return f"{started} {Path('/proc/self/ns/pid').readlink()}"
    return ""


def _process_start(process: int) -> str:
    """When a process started, in clock ticks; `ended` if only its entry is left, empty if the system does not say."""
    with suppress(OSError, ValueError, IndexError):
        facts = Path(f"/proc/{process}/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
        return "ended" if facts[0] in "ZX" else facts[19]
    return ""


@asynccontextmanager
async def noted_workers(folder: Path, owner: LeaseOwner) -> AsyncIterator[None]:
    """Note the workers of an owner now and then while the block runs, and once more at its end."""
    notes = _Notes(folder, owner)
    writing = asyncio.create_task(notes.run())
    try:
        yield
    finally:
        writing.cancel()
        await asyncio.gather(writing, return_exceptions=True)
        notes.write(is_over=True)


class _Notes:
    def __init__(self, folder: Path, owner: LeaseOwner) -> None:
        self._file = folder / WORKERS_FILE
        self._owner = owner
        self._before: dict[str, tuple[float, int]] = {}
        """By worker, when it was last noted, and the calls that it had made."""

    async def run(self) -> None:
        while True:
            self.write(is_over=False)
            await asyncio.sleep(_EVERY_S)

    def write(self, *, is_over: bool) -> None:
        with suppress(OSError):
            if self._file.parent.is_dir():  # the user may have deleted the run
                note = {"format": _FORMAT, **asdict(self._note(is_over=is_over))}
                write_whole(self._file, json.dumps(note, indent=1) + "\n")

    def _note(self, *, is_over: bool) -> WorkersNote:
        now = time.monotonic()
        workers = []
        for figures in self._owner.figures:
            at, calls = figures.joined, 0
            if figures.state == "works" and not is_over:
                at, calls = self._before.get(figures.name, (at, calls))
            end = now if figures.state == "works" else figures.heard
            seconds = max(end - at, 0.001)
            self._before[figures.name] = now, figures.calls
            workers.append(
                WorkerNote(
                    figures.name,
                    figures.state,
                    figures.leases,
                    figures.in_flight,
                    figures.calls,
                    round((figures.calls - calls) / seconds, 2),
                    round(now - figures.heard, 1),
                )
            )
        return WorkersNote(
            at=time.time(),
            is_over=is_over,
            waiting=self._owner.waiting,
            refused=self._owner.refused,
            workers=tuple(workers),
            machine=socket.gethostname(),
            process=os.getpid(),
            process_table=_process_table(),
            process_start=_process_start(os.getpid()),
        )


def read_workers(folder: Path) -> WorkersNote | None:
    """The last note of a run's workers; None if there is none, or if it cannot be read."""
    try:
        document = json.loads((folder / WORKERS_FILE).read_text(encoding="utf-8"))
        if document["format"] != _FORMAT:
            return None
        return WorkersNote(
            at=_number(document["at"]),
            is_over=bool(document["is_over"]),
            waiting=_count(document["waiting"]),
            refused=_count(document["refused"]),
            workers=tuple(map(_worker, document["workers"])),
            machine=str(document.get("machine", "")),
            process=_count(document.get("process", 0)),
            process_table=str(document.get("process_table", "")),
            process_start=str(document.get("process_start", "")),
        )
    except (OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError):
        return None


def _worker(entry: Mapping[str, Any]) -> WorkerNote:
    state = entry["state"]
    if state not in get_args(WorkerState):
        raise ValueError(state)
    return WorkerNote(
        name=str(entry["name"]),
        state=state,
        leases=_count(entry["leases"]),
        in_flight=_count(entry["in_flight"]),
        calls=_count(entry["calls"]),
        per_second=_number(entry["per_second"]),
        silent=_number(entry["silent"]),
    )


def _count(value: object) -> int:
    if type(value) is not int or value < 0:
        raise ValueError(value)
    return value


def _number(value: Any) -> float:
    number = float(value)
    if not 0 <= number < math.inf:
        raise ValueError(value)
    return number
