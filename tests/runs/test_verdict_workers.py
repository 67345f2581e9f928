"""Verdicts in worker processes: the same decisions in the same order, and no process left behind."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from skillmix.catalog.catalog import Catalog
from skillmix.catalog.combinations import combination_of
from skillmix.catalog.files import load_catalog
from skillmix.grading.answers import RULES, Answer
from skillmix.prompts.rubric import Phrases
from skillmix.runs.judging import verdict_workers, worker_pool
from skillmix.runs.judging.verdict_workers import Means, Question, VerdictWorkers, decide
from skillmix.runs.reading.reply_reader import ReplyReader
from skillmix.runs.rules_grader import RulesGrader
from skillmix.runs.run import RunGrader

RULES_ALONE = RunGrader("rules", "rules:", votes=1, has_code=True, asks_model=False)


@pytest.fixture(scope="module")
def catalog() -> Catalog:
    return load_catalog("verifiable")


@pytest.fixture(scope="module")
def means(catalog: Catalog) -> Means:
    return Means(ReplyReader(Phrases()), RulesGrader(catalog), RULES["default"], Phrases())


def questions(catalog: Catalog, count: int, grader: RunGrader = RULES_ALONE) -> list[Question]:
    made = []
    for number in range(count):
        skill = catalog.skills[number % len(catalog.skills)]
        topic = catalog.topics[number % len(catalog.topics)]
        other = catalog.skills[7 * number % len(catalog.skills)]
        text = f"{other.example} It was number {number} about {topic.lower()}."
        made.append(Question(grader, combination_of([skill.name], topic), Answer(text, "fine"), ()))
    return made


@pytest.fixture
def workers(catalog: Catalog, monkeypatch: pytest.MonkeyPatch) -> Iterator[VerdictWorkers]:
    monkeypatch.setattr(verdict_workers, "WORTH_IT", 100)
    monkeypatch.setattr(worker_pool, "is_there_a_second_core", lambda: True)
    made = VerdictWorkers(catalog)
    yield made
    made.close()


def test_workers_decide_the_same_in_the_same_order(catalog: Catalog, means: Means, workers: VerdictWorkers) -> None:
    asked = questions(catalog, 300)

    few = workers.decide(asked[:50], means)
    assert workers._pool is not None and not workers._pool.is_started
    many = workers.decide(asked, means)

    assert workers._pool.is_started
    expected = [decide(question, means) for question in asked]
    assert (few, many) == (expected[:50], expected)
    assert len({decision.votes for decision in expected}) > 1


def test_a_lost_worker_costs_no_decision(catalog: Catalog, means: Means, workers: VerdictWorkers) -> None:
    asked = questions(catalog, 200)
    workers.decide(asked, means)
    assert workers._pool is not None and workers._pool._executor is not None
    for process in list(workers._pool._executor._processes.values()):
        process.kill()

    assert workers.decide(asked, means) == [decide(question, means) for question in asked]


def test_the_votes_of_models_are_read_here(catalog: Catalog, means: Means, workers: VerdictWorkers) -> None:
    mixed = RunGrader("mixed", "rules:openai:m", votes=1, has_code=True)

    workers.decide(questions(catalog, 150, mixed), means)

    assert workers._pool is not None and not workers._pool.is_started


SCRIPT = """
import os, signal, sys, time
from tests.runs.test_verdict_workers import *

if __name__ == "__main__":
    verdict_workers.WORTH_IT = 1
    worker_pool.is_there_a_second_core = lambda: True
    catalog = load_catalog("verifiable")
    means = Means(ReplyReader(Phrases()), RulesGrader(catalog), RULES["default"], Phrases())
    workers = VerdictWorkers(catalog)
    workers.decide(questions(catalog, 10), means)
    print(*workers._pool._executor._processes, flush=True)
    if sys.argv[1] == "wait":
        time.sleep(60)
    try:
        while True:
            workers.decide(questions(catalog, 200), means)
    finally:
        workers.close()
"""


@pytest.mark.skipif(not Path("/proc").exists(), reason="looks at processes in /proc")
@pytest.mark.parametrize(("how", "kind"), [("wait", signal.SIGKILL), ("work", signal.SIGKILL), ("work", signal.SIGINT)])
def test_no_worker_outlives_its_process(tmp_path: Path, how: str, kind: signal.Signals) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT, encoding="utf-8")
    root = Path(__file__).parents[2]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(root), os.environ.get("PYTHONPATH", "")])}
    process = subprocess.Popen(
        [sys.executable, str(script), how],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
        start_new_session=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler) and None,
    )
    assert process.stdout is not None
    children = [int(word) for word in process.stdout.readline().split()]
    assert children

    if kind == signal.SIGINT:
        os.killpg(process.pid, kind)  # as a terminal does
    else:
        process.kill()
    _, errors = process.communicate(timeout=30)

    deadline = time.monotonic() + 10
    while any(is_running(child) for child in children) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert [child for child in children if is_running(child)] == []
    assert errors.count("Traceback") <= (1 if kind == signal.SIGINT else 0), errors


def is_running(process: int) -> bool:
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
