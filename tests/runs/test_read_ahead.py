"""Replies that a second process reads are those read here, in the same order."""

import os
import signal
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from skillmix.runs.reading import read_ahead
from skillmix.runs.reading.graded_conversations import conversations, graded_conversations
from skillmix.runs.reading.read_ahead import GradedConversation
from skillmix.runs.run import Run
from tests.runs.test_reading import scripted


@pytest.fixture
def run(in_folder: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """A run that is read in many batches."""
    monkeypatch.setattr(read_ahead, "_BATCH", 3)
    monkeypatch.setattr(read_ahead, "is_there_a_second_core", lambda: True)
    return scripted(in_folder)


def both_ways(run: Run) -> tuple[list[GradedConversation], list[GradedConversation]]:
    """The conversations of a run, read here and with a second process."""
    with run.read() as journal:
        alone = list(conversations(run, journal))
        texts = [conversation.text for conversation in alone]
        helped = list(graded_conversations(run, journal, texts, workers=2, here=20))
    return alone, helped


def test_a_second_process_changes_nothing(run: Run) -> None:
    alone, helped = both_ways(run)

    assert sum(len(conversation.calls) for conversation in alone) > 200
    assert helped == alone


def test_a_second_process_that_dies_changes_nothing(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
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

    monkeypatch.setattr(read_ahead, "ProcessPoolExecutor", Dying)

    alone, helped = both_ways(run)

    assert helped == alone
