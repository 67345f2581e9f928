"""A journal that is refused leaves no file open."""

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from skillmix.calls import Decoding, GenerateKey, Message, Reply, Request
from skillmix.errors import UserError
from skillmix.runs import database
from skillmix.runs.journal import JournalReader, JournalWriter


def open_files(folder: Path) -> list[str]:
    """The files of a folder that this process has open."""
    found = []
    for link in list(Path("/proc/self/fd").iterdir()):
        if link.is_symlink() and str(link.readlink()).startswith(str(folder)):
            found.append(link.readlink().name)
    return sorted(found)


def filled(folder: Path, file: str) -> None:
    request = Request(GenerateKey("base", "c0ffee", 0, 1), "openai:m", (Message("user", "Hello"),), Decoding(), 1)
    with JournalWriter(folder / file) as journal:
        journal.record(request, Reply("hi"))


def test_an_open_journal_is_seen(tmp_path: Path) -> None:
    filled(tmp_path, "run.sqlite")

    with JournalReader(tmp_path / "run.sqlite"):
        assert "run.sqlite" in open_files(tmp_path)
    assert open_files(tmp_path) == []


def test_a_refused_file_closes_those_before_it(tmp_path: Path) -> None:
    filled(tmp_path, "a.sqlite")
    (tmp_path / "b.sqlite").write_bytes(b"no journal" * 100)

    with pytest.raises(UserError, match="not a database") as caught:
        JournalReader(tmp_path / "a.sqlite", [tmp_path / "b.sqlite"])

    assert caught.traceback  # which holds the reader: it was closed, not collected
    assert open_files(tmp_path) == []


@pytest.mark.parametrize("write", [True, False])
def test_a_connection_whose_first_steps_fail_is_closed(tmp_path: Path, write: bool) -> None:
    filled(tmp_path, "run.sqlite")
    with closing(sqlite3.connect(tmp_path / "run.sqlite")) as connection:
        connection.execute("DROP TABLE step")

    with pytest.raises(UserError, match="damaged: it differs in the table 'step'") as caught:
        database.connect(tmp_path / "run.sqlite", write=write)

    assert caught.traceback
    assert open_files(tmp_path) == []
