"""A report that several processes read together has the same bytes as one that a single process reads."""

import os
import pickle
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, process
from pathlib import Path
from typing import Any

import pytest

from skillmix.catalog.catalog import Catalog
from skillmix.errors import UserError
from skillmix.report import cell_templates, contents
from skillmix.report.archive import Archive
from skillmix.report.pieces import pieces_in_order
from skillmix.report.run_reading import RunReading, read_run
from skillmix.report.write import ReportOptions, report
from skillmix.runs.judging import worker_pool
from skillmix.runs.judging.ordered_work import OrderedWork
from skillmix.runs.judging.worker_pool import WorkerPool, shared_pool, shared_workers
from skillmix.runs.reading.conversation_index import key_ranges
from skillmix.runs.rules_grader import RulesGrader
from skillmix.runs.run import Run, open_run
from skillmix.scores import independence
from skillmix.scores.independence import independence_tests
from tests.runs.test_reading import imported, scripted, unfinished, with_fewer_rounds

LONG = bool(os.environ.get("SKILLMIX_LONG"))
WORLDS = [scripted, unfinished, with_fewer_rounds, imported]


class LatePool(WorkerPool):
    """A pool without processes: each result crosses the border as bytes, and is late by a few looks."""

    def __init__(self, catalog: Catalog | None, size: int) -> None:
        super().__init__(catalog)
        self.size = size
        self.submitted = 0
        self._is_possible = True

    def submit(self, function: Any, *arguments: Any, **named: Any) -> Any:
        """Do the work at once; the second part of two is ready before the first one."""
        self.submitted += 1
        future = LateFuture(looks=5 * (self.submitted % 2))
        future.set_result(pickle.loads(pickle.dumps(function(*pickle.loads(pickle.dumps(arguments)), **named))))
        return future


class LateFuture(Future[Any]):
    """A result that is not ready at first."""

    def __init__(self, looks: int) -> None:
        super().__init__()
        self._looks = looks

    def done(self) -> bool:
        """Whether it has been looked at often enough."""
        self._looks -= 1
        return self._looks < 0


@pytest.fixture
def tiny_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pieces of a few conversations, each worth a worker."""
    monkeypatch.setattr(pieces_in_order, "CALLS", 7)
    monkeypatch.setattr(pieces_in_order, "FOR_A_WORKER", 1)
    monkeypatch.setattr(cell_templates, "FOR_A_WORKER", 1)


def read(name: str) -> tuple[dict[str, str], RunReading]:
    """The files that the archive writes, and everything else that a report takes from a run."""
    files: dict[str, str] = {}
    archive = Archive(files.__setitem__)
    reading = read_run(open_run(name), rules=None, archive=archive)
    archive.close([reading.archived], reading.all_cells, [], {})
    return files, reading


def taken(reading: RunReading) -> list[object]:
    archived = reading.archived
    parts = (reading.facts, reading.cells, reading.decided, reading.readability, reading.shown, reading.followed)
    return [*parts, reading.templates, reading.baselines, archived.evidence, archived.numbers.denials]


@pytest.mark.usefixtures("tiny_pieces")
@pytest.mark.parametrize("make", WORLDS)
def test_any_number_of_workers_gives_the_same_bytes(
    in_folder: Path, monkeypatch: pytest.MonkeyPatch, make: Callable[[Path], Run]
) -> None:
    name = make(in_folder).name
    files, reading = read(name)
    assert {"talks-0.js", "votes-0.js", "lines-0.js", "index.js"} <= files.keys()

    for size in (1, 2, 3):
        pools: dict[bool, LatePool] = {}

        def pool_of(catalog: Catalog | None, size: int = size, pools: dict[bool, LatePool] = pools) -> LatePool:
            if catalog is not None:
                monkeypatch.setattr(worker_pool, "_code", [RulesGrader(catalog)])
            return pools.setdefault(catalog is None, LatePool(catalog, size))

        for module in (pieces_in_order, cell_templates):
            monkeypatch.setattr(module, "shared_pool", pool_of)
        files_now, reading_now = read(name)

        assert sum(pool.submitted for pool in pools.values()) > 2
        assert files_now == files
        assert taken(reading_now) == taken(reading)
    pieces_in_order._open.pop().journal.close()


def files_of(folder: Path) -> dict[str, bytes]:
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.usefixtures("tiny_pieces")
def test_real_workers_give_the_same_report_and_may_die(
    in_folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    catalog = scripted(in_folder).catalog
    options = ReportOptions(figures=False)
    alone = files_of(report(["scripted"], output=in_folder / "alone", options=options).page.parent)
    monkeypatch.setattr(worker_pool, "is_there_a_second_core", lambda: True)
    monkeypatch.setattr(worker_pool, "cores", lambda: 3)

    with shared_workers():
        shared = files_of(report(["scripted"], output=in_folder / "shared", options=options).page.parent)
        pool = shared_pool(catalog)
        assert pool is not None and pool._executor is not None
        processes = list(pool._executor._processes.values())
        assert len(processes) == 2
        assert "ended before its work was done" not in capsys.readouterr().err
        processes[0].kill()
        survived = files_of(report(["scripted"], output=in_folder / "survived", options=options).page.parent)
        assert capsys.readouterr().err.count("a worker process ended before its work was done") == 1

    assert shared == alone
    assert survived == alone
    assert not any(process.is_alive() for process in processes)


def test_a_small_report_starts_no_process(in_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    scripted(in_folder)
    monkeypatch.setattr(worker_pool, "is_there_a_second_core", lambda: True)
    monkeypatch.setattr(worker_pool, "ProcessPoolExecutor", lambda **_: pytest.fail("a process was started"))

    assert report(["scripted"], options=ReportOptions(figures=False)).texts > 50


def test_a_system_without_semaphores_does_the_work_in_one_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker_pool, "is_there_a_second_core", lambda: True)
    monkeypatch.setattr(process, "_system_limits_checked", False)
    monkeypatch.setattr(process, "_system_limited", None)
    monkeypatch.setitem(sys.modules, "multiprocessing.synchronize", None)
    pool = WorkerPool(None)

    assert list(OrderedWork(pool, there=str, here=str).results([1, 2, 3], workers=2)) == ["1", "2", "3"]
    assert not pool.is_possible


def work_until_unwanted(begun: Path) -> float:
    begun.touch()
    start = time.monotonic()
    while worker_pool.is_wanted() and time.monotonic() < start + 60:
        time.sleep(0.01)
    return time.monotonic() - start


def test_workers_stop_long_work_when_their_pool_closes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker_pool, "is_there_a_second_core", lambda: True)
    pool = WorkerPool(None)
    future = pool.submit(work_until_unwanted, tmp_path / "begun")
    deadline = time.monotonic() + 60
    while not (tmp_path / "begun").exists() and time.monotonic() < deadline:
        time.sleep(0.01)

    pool.close()

    assert future is not None and future.result() < 30
    assert worker_pool.is_wanted()  # this process is no worker


def test_figures_that_nobody_waits_for_are_not_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(contents, "drawings", lambda _: iter([(None, None)] * 3))
    monkeypatch.setattr(contents, "is_wanted", lambda: False)

    assert contents._drawn_figures(None) == ([], [])  # type: ignore[arg-type]


def test_ranges_have_every_conversation_once_and_in_order(in_folder: Path) -> None:
    with scripted(in_folder).read() as journal:
        ranges = list(key_ranges(journal, 7))
        whole = [call.key for call in journal.calls("generate")]
        pieces = [[c.key for c in journal.calls("generate", r.ids, student=r.student)] for r in ranges]

    assert [key for piece in pieces for key in piece] == whole
    assert [r.calls for r in ranges] == list(map(len, pieces))
    assert len(ranges) > 10
    assert max(map(len, pieces)) < 7 + 4  # the two generations of a combination stay together


def test_an_id_that_is_no_hash_is_in_a_range_too(in_folder: Path) -> None:
    import sqlite3

    run = scripted(in_folder)
    with sqlite3.connect(run.journal / "calls.sqlite") as journal:
        journal.execute("UPDATE calls SET combination = 'zz' || combination WHERE id % 50 = 0 AND stage = 'generate'")
    journal.close()

    with pytest.raises(UserError, match="does not say what combination zz"):
        report(["scripted"], options=ReportOptions(figures=False))


def test_an_error_in_a_worker_is_raised_here() -> None:
    def refuse(part: int) -> int:
        raise UserError(f"no {part}", hint="h")

    work = OrderedWork(LatePool(None, 2), there=refuse, here=lambda part: part)
    with pytest.raises(UserError, match="no 1"):
        list(work.results([1, 2, 3], workers=2))


def test_results_that_wait_are_few_however_many_parts_there_are() -> None:
    taken_parts = 0

    def parts() -> Iterator[int]:
        nonlocal taken_parts
        for number in range(1000):
            taken_parts += 1
            yield number

    work = OrderedWork(LatePool(None, 3), there=str, here=str)
    results = []
    for number, result in enumerate(work.results(parts(), workers=3)):
        results.append(result)
        assert taken_parts - number <= 2 * 2 * 3 + 1

    assert results == [str(number) for number in range(1000)]


@pytest.mark.skipif(not LONG, reason="seconds for figures; set SKILLMIX_LONG=1")
def test_figures_that_a_worker_draws_have_the_same_bytes(in_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    scripted(in_folder)
    alone = files_of(report(["scripted"], output=in_folder / "alone").page.parent)
    pool = LatePool(None, 2)
    monkeypatch.setattr(contents, "started_pool", lambda: pool)

    there = files_of(report(["scripted"], output=in_folder / "there").page.parent)

    assert pool.submitted == 1
    assert any(name.endswith(".svg") for name in there)
    assert there == alone


def test_workers_that_have_started_share_the_tests_of_independence(
    in_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, reading = read(scripted(in_folder).name)
    pairs = [(cell, None) for cell in reading.cells]
    alone = list(independence_tests(pairs))
    pool = LatePool(None, 2)
    monkeypatch.setattr(independence, "started_pool", lambda: pool)

    assert list(independence_tests(pairs)) == alone
    assert pool.submitted == 0  # these texts are too few
    monkeypatch.setattr(independence, "WORTH_IT", 1)
    assert list(independence_tests(pairs)) == alone
    assert pool.submitted > 1


SCRIPT = """
import sys
from skillmix.report.pieces import pieces_in_order
from skillmix.report.write import ReportOptions, report
from skillmix.runs.judging import ordered_work, worker_pool

if __name__ == "__main__":
    pieces_in_order.CALLS, pieces_in_order.FOR_A_WORKER = 7, 1
    worker_pool.is_there_a_second_core = lambda: True
    worker_pool.cores = lambda: 3
    finished = ordered_work.OrderedWork._finished
    def slow(self, share):
        import time
        result = finished(self, share)
        print(*self._pool._executor._processes, flush=True)
        time.sleep(60)
    ordered_work.OrderedWork._finished = slow
    report(["scripted"], options=ReportOptions(figures=False))
"""


@pytest.mark.skipif(not LONG, reason="seconds for each signal; set SKILLMIX_LONG=1")
@pytest.mark.parametrize("kind", [signal.SIGKILL, signal.SIGINT])
def test_no_worker_outlives_a_report(in_folder: Path, kind: signal.Signals) -> None:
    scripted(in_folder)
    (in_folder / "script.py").write_text(SCRIPT, encoding="utf-8")
    with subprocess.Popen([sys.executable, "script.py"], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        workers = [Path(f"/proc/{number}") for number in process.stdout.readline().split()]
        assert workers and all(worker.exists() for worker in workers)

        process.send_signal(kind)

        assert process.wait(20) != 0
    deadline = time.monotonic() + 20
    while any(worker.exists() for worker in workers) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not any(worker.exists() for worker in workers)
    assert not list(in_folder.glob("runs/scripted/report"))
