"""A run of an earlier version is migrated once, whole or not at all, and can be read where it cannot be written."""

import json
import os
import shutil
import signal
import sqlite3
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from skillmix.commands import main
from skillmix.errors import UserError
from skillmix.runs.run import open_run
from tests.runs.databases import row_counts
from tests.runs.test_old_runs import described, differences, expected, unpack

NAME = "people"
OLD = Path("runs") / NAME
CHANGES = ("os.mkdir", "os.rename", "os.remove", "os.rmdir", "os.chmod", "sqlite3.connect", "shutil.copyfile")


def opened_until(change: int) -> bool:
    """Open the run in a process that is killed before its n-th change; whether it ended before."""
    child = os.fork()
    if not child:
        seen = 0

        def kill_at_a_change(event: str, arguments: object) -> None:
            nonlocal seen
            if event in CHANGES:
                seen += 1
                if seen == change:
                    os.kill(os.getpid(), signal.SIGKILL)

        sys.addaudithook(kill_at_a_change)
        try:
            assert open_run(NAME).exists
            os._exit(0)
        finally:
            os._exit(1)
    status = os.waitpid(child, 0)[1]
    assert status in (0, signal.SIGKILL)
    return status == 0


def old_files() -> dict[str, bytes]:
    """The files of the run and of its former state, by their names in the old layout."""
    kept = OLD / "before-migration"
    files = [path for path in OLD.rglob("*") if path.is_file() and not path.name.endswith((".lock", "-shm", "-wal"))]
    former = {
        str(path.relative_to(kept if path.is_relative_to(kept) else OLD)): path.read_bytes()
        for path in files
        if ".migration-" not in str(path) and path.name != "run.sqlite"
    }
    return {name: content for name, content in former.items() if not name.startswith("people/")}


def test_a_run_is_whole_whenever_its_migration_is_killed(in_folder: Path) -> None:
    unpack(NAME, in_folder)
    before = old_files()
    for at in range(1, 200):
        shutil.rmtree(OLD)
        unpack(NAME, in_folder)
        if opened_until(at):
            break
        assert old_files() == before, at
        if at % 7 == 3:
            assert list(differences(expected(NAME), described(NAME))) == [], at
    assert at > 20
    assert old_files() == before
    assert list(differences(expected(NAME), described(NAME))) == []
    assert not list(OLD.glob(".migration-*"))


def test_the_old_files_move_and_secrets_keep_their_mode(in_folder: Path) -> None:
    unpack(NAME, in_folder)
    links = {"ann": {"port": 1234, "token": "t" * 43}}
    (OLD / "annotate.json").write_text(json.dumps(links), encoding="utf-8")
    (OLD / "annotate.json").chmod(0o600)

    run = open_run(NAME)

    assert {path.name for path in OLD.iterdir()} >= {"run.sqlite", "people", "before-migration", "experiment.yaml"}
    assert not (OLD / "journal").exists() and (OLD / "before-migration/journal/calls.sqlite").is_file()
    assert json.loads((run.people / "links.json").read_text(encoding="utf-8")) == links
    assert (run.people / "links.json").stat().st_mode & 0o077 == 0
    assert [path.name for path in sorted(run.people.glob("*.sqlite"))] == ["ann.sqlite", "bo.sqlite", "cy.sqlite"]


def test_a_run_that_cannot_be_written_is_read_from_a_temporary_copy(
    in_folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The superuser may write everywhere, so the question whether the folder can be written is answered here."""
    unpack(NAME, in_folder)
    before = old_files()
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    capsys.readouterr()

    assert main(["status", NAME, "--json"]) == 0

    printed = capsys.readouterr()
    assert list(differences(expected(NAME)["status"], json.loads(printed.out))) == []
    assert "is read-only, so a migrated temporary copy is used" in printed.err
    assert old_files() == before and not (OLD / "run.sqlite").exists()
    with pytest.raises(UserError, match="cannot be written"), open_run(NAME).write():
        pass


def damaged(name: str) -> Callable[[], object]:
    return lambda: (OLD / name).write_text("{", encoding="utf-8")


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (damaged("around.json"), "around.json is damaged"),
        (damaged("journal/calls.sqlite"), "is not a journal"),
        (lambda: (OLD / "journal/calls.sqlite").unlink(), "its journal is missing"),
        (
            lambda: os.truncate(OLD / "journal/human-bo.sqlite", 8192),
            "cannot be read: database disk image is malformed",
        ),
    ],
)
def test_a_damaged_run_is_refused_and_left_alone(in_folder: Path, damage: Callable[[], object], said: str) -> None:
    unpack(NAME, in_folder)
    damage()
    before = old_files()

    with pytest.raises(UserError, match=said):
        open_run(NAME).state  # noqa: B018

    assert old_files() == before
    assert not (OLD / "run.sqlite").exists() and not list(OLD.glob(".migration-*"))


def test_rows_that_cannot_be_copied_are_an_error(in_folder: Path) -> None:
    """A copy that loses a row must not take the place of the run."""
    unpack(NAME, in_folder)
    with closing(sqlite3.connect(OLD / "journal/calls.sqlite")) as journal, journal:
        journal.execute("PRAGMA ignore_check_constraints = ON")
        journal.execute("UPDATE calls SET status = 'perhaps' WHERE id = 1")

    with pytest.raises(UserError, match=r"calls\.sqlite"):
        open_run(NAME)

    assert not (OLD / "run.sqlite").exists()


def test_a_migrated_run_is_not_migrated_again(in_folder: Path) -> None:
    unpack(NAME, in_folder)
    first = row_counts(open_run(NAME).file)

    assert row_counts(open_run(NAME).file) == first
    assert first["call"] > 0 and first["experiment"] > 0 and first["step"] > 0
