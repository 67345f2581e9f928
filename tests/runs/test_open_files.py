"""A journal that is refused leaves no file open."""

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from skillmix.calls import Decoding, GenerateKey, Message, Reply, Request
from skillmix.errors import UserError
from skillmix.runs.journal import schema
from skillmix.runs.journal.journal import JournalReader, JournalWriter


def open_files(folder: Path) -> list[str]:
    """The files of a folder that this process has open."""
    found = []
    for link in list(Path("/proc/self/fd").iterdir()):
        if link.is_symlink() and str(link.readlink()).startswith(str(folder)):
            found.append(link.readlink().name)
    return sorted(found)


def filled(folder: Path, file: str) -> None:
    request = Request(GenerateKey("base", "c0ffee", 0, 1), "openai:m", (Message("user", "Hello"),), Decoding(), 1)
    with JournalWriter(folder, file=file) as journal:
        journal.record(request, Reply("hi"))


def test_an_open_journal_is_seen(tmp_path: Path) -> None:
    filled(tmp_path, "calls.sqlite")

    with JournalReader(tmp_path):
        assert "calls.sqlite" in open_files(tmp_path)
    assert open_files(tmp_path) == []


def test_a_refused_file_closes_those_before_it(tmp_path: Path) -> None:
    filled(tmp_path, "a.sqlite")
    (tmp_path / "b.sqlite").write_bytes(b"no journal" * 100)

    with pytest.raises(UserError, match="not a journal") as caught:
        JournalReader(tmp_path)

    assert caught.traceback  # which holds the reader: it was closed, not collected
    assert open_files(tmp_path) == []


@pytest.mark.parametrize("write", [True, False])
def test_a_connection_whose_first_steps_fail_is_closed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, write: bool
) -> None:
    path = tmp_path / "calls.sqlite"
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("CREATE TABLE other (x)")
    monkeypatch.setattr(schema, "SCHEMA", "CREATE TABLE other (x);")

    with pytest.raises(sqlite3.OperationalError) as caught:
        schema.open_for_writing(path) if write else schema._reading(path)

    assert caught.traceback
    assert open_files(tmp_path) == []
