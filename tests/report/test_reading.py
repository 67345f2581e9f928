"""Replies read with help are those read without, in the same order."""

import os
import signal
from concurrent.futures import ProcessPoolExecutor
from typing import Any

import pytest

from skillmix.grading.ballots import read_calls, student_texts
from skillmix.prompts.rubric import Phrases
from skillmix.runs.reading.gradings import read_gradings
from skillmix.runs.run import Run
from tests.report.worlds import World


def test_a_second_process_changes_nothing(world: World) -> None:
    with Run(world.run).read() as journal:
        texts = student_texts(journal.calls("generate"), journal.combinations(), turns=2)
        alone = list(read_calls(texts, journal.calls("grade"), phrases=Phrases(), rounds=None))

        helped = list(read_gradings(texts, journal.calls("grade"), phrases=Phrases(), rounds=None, here=100))

    assert len(alone) > 2000
    assert helped == alone


def test_a_second_process_that_dies_changes_nothing(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    class Dying(ProcessPoolExecutor):
        """Ends its process after the first piece of work."""

        def submit(self, *args: Any, **more: Any) -> Any:
            given = super().submit(*args, **more)
            if len(self._processes) and not self.killed:
                given.result()
                for process in self._processes:
                    os.kill(process, signal.SIGKILL)
                self.killed = True
            return given

        killed = False

    monkeypatch.setattr("skillmix.runs.reading.gradings.ProcessPoolExecutor", Dying)
    with Run(world.run).read() as journal:
        texts = student_texts(journal.calls("generate"), journal.combinations(), turns=2)
        alone = list(read_calls(texts, journal.calls("grade"), phrases=Phrases(), rounds=None))

        helped = list(read_gradings(texts, journal.calls("grade"), phrases=Phrases(), rounds=None, here=100))

    assert helped == alone
