"""Migrate runs of earlier versions to a single `run.sqlite`. Only this module knows the old file formats.

Up to version 3 of the journal, a run stored its calls in `journal/calls.sqlite`, sometimes with additional
`calls-N.sqlite` files, people's answers in the same folder, and everything else in JSON and YAML files. The new files
are first written and checked, and then put in place. The old files are moved to `before-migration/` last. The run
therefore stays intact even if the migration is killed.
"""

import atexit
import json
import os
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, suppress
from pathlib import Path
from shutil import copy2, rmtree
from tempfile import mkdtemp
from typing import Any, Final

from skillmix.errors import UserError
from skillmix.files import read_yaml
from skillmix.hashing import short_id
from skillmix.runs.database import APPLICATION_ID, RUN_FILE, connect, held_lock, telling_what_broke
from skillmix.runs.progress import say
from skillmix.runs.rows import ExperimentVersion, StepRecord, now, write_excluded, write_step, write_version
from skillmix.runs.verdicts import code_version

COPY_NOTE: Final = "# A copy for people. The run itself is in run.sqlite.\n"
"""The first line of experiment.yaml in a run with a `run.sqlite`."""
LINKS_FILE: Final = "people/links.json"
_CALLS: Final = "calls.sqlite"
_RATER: Final = "human-"
_OLD_FILES: Final = (
    "journal",
    "manifest.json",
    "finished.json",
    "around.json",
    "earlier.yaml",
    "annotate.json",
    "seconds.json",
    "workers.json",
    "derived.sqlite*",
    "derived-scores.json",
    "*/begun.json",
)
_KEEP: Final = "before-migration"
_WORK: Final = ".migration-"
_RESTORE: Final = "Nothing was changed. Restore it from a backup."


def state_folder(run: Path) -> Path:
    """Return the folder with the `run.sqlite` of a run. If needed, create the file from an earlier version's files.

    This is the run's folder, or a temporary folder if the run is read-only and was made by an earlier version.
    """
    if (run / RUN_FILE).exists():
        if (run / "journal" / _CALLS).exists():  # an earlier migration was killed before it had moved the old files
            _put_old_files_away(run)
        return run
    copy = run / "experiment.yaml"
    if not (copy.exists() or (run / "journal").is_dir()):
        return run
    if copy.exists() and copy.read_text(encoding="utf-8", errors="replace").startswith(COPY_NOTE):
        raise _gone(run, RUN_FILE)
    return _migrated(run)


def _gone(run: Path, file: str) -> UserError:
    return UserError(
        f"{run} has made calls, but its journal is missing: there is no {run / file}.",
        hint=f"Restore {file} from a backup. To repeat (and pay for) all calls, delete {run} and rerun the command.",
    )


def _migrated(run: Path) -> Path:
    can_write = os.access(run, os.W_OK)
    with ExitStack() as stack:
        if can_write:
            for file in (run / RUN_FILE, *sorted((run / "journal").glob("*.sqlite"))):
                stack.callback(held_lock(file).release)
            for left in run.glob(f"{_WORK}*"):
                rmtree(left)
        work = Path(mkdtemp(prefix=_WORK, dir=run if can_write else None))
        try:
            _write_new_files(run, work)
        except BaseException:
            rmtree(work, ignore_errors=True)
            raise
        if not can_write:
            say(f"{run} was made by an earlier version and is read-only, so a migrated temporary copy is used")
            atexit.register(rmtree, work, ignore_errors=True)
            return work
        if (work / "people").exists():
            rmtree(run / "people", ignore_errors=True)
            (work / "people").rename(run / "people")
        (work / RUN_FILE).rename(run / RUN_FILE)
        rmtree(work)
        _put_old_files_away(run)
        say(f"{run} was made by an earlier version; it was migrated to {RUN_FILE}, and its old files are in {_KEEP}")
    return run


def _put_old_files_away(run: Path) -> None:
    for pattern in _OLD_FILES:
        for path in run.glob(pattern):
            target = run / _KEEP / path.relative_to(run)
            with suppress(OSError):  # the migrated run does not need these files
                target.parent.mkdir(parents=True, exist_ok=True)
                path.rename(target)


def _write_new_files(run: Path, work: Path) -> None:
    """Write and check the new files in a folder. The old files are only read."""
    journal, finished, entries = run / "journal", _finished(run), _json(run / "manifest.json")
    manifest = [entry for entry in entries if isinstance(entry, dict)] if isinstance(entries, list) else []
    noted = [str(name) for name, *_ in finished.get("journal", ()) if str(name).endswith(".sqlite")]
    noted += [_CALLS] if any(entry.get("called") for entry in manifest) else []
    for name in noted:
        if not (journal / name).is_file():
            raise _gone(run, f"journal/{name}")
    copies = work / "old"
    copies.mkdir()
    for path in journal.glob("*.sqlite*"):
        if not path.name.endswith((".lock", "-shm")) and path.is_file():
            copy2(path, copies / path.name)
    with closing(connect(work / RUN_FILE, write=True)) as new:
        for number, file in enumerate(sorted(copies.glob("calls*.sqlite"), key=lambda path: len(path.name))):
            _copy_calls(file, new, shown=journal / file.name, is_first=number == 0)
        with telling_what_broke(run / RUN_FILE):
            new.execute("BEGIN")
            _write_state(run, new, finished, manifest)
            new.execute("COMMIT")
    for file in copies.glob(f"{_RATER}*.sqlite"):
        (work / "people").mkdir(exist_ok=True)
        with closing(connect(work / "people" / file.name.removeprefix(_RATER), write=True)) as new:
            _copy_calls(file, new, shown=journal / file.name, is_first=True)
    if (run / "annotate.json").is_file():
        (work / "people").mkdir(exist_ok=True)
        copy2(run / "annotate.json", work / LINKS_FILE)
        (work / LINKS_FILE).chmod(0o600)
    rmtree(copies)


_KEY: Final = "stage, student, combination, generation, turn, text, grader, round, attempt"
_SAME: Final = (
    f"{_KEY}, model, messages, decoding, seed, request_hash, status, reply, finish, problem, detail, "
    "input_tokens, output_tokens, cost_usd, not_sent, origin, at"
)
_KIND: Final = {
    1: "CASE WHEN problem_kind = 'final' AND (stage = 'grade' OR problem = 'prompt too long') THEN 'failed' "
    "ELSE problem_kind END"
}
"""By version, the SQL that corrects the kind of a problem.

Version 1 wrongly blamed the student for an overlong prompt and for a grader's refusal.
"""


def _copy_calls(file: Path, new: sqlite3.Connection, *, shown: Path, is_first: bool) -> None:
    """Copy the rows of a journal file, and check that all were copied. `shown` is the name of the file in errors."""
    with telling_what_broke(shown):
        with closing(sqlite3.connect(file)) as old:  # opening the file makes SQLite apply its log
            version = old.execute("PRAGMA user_version").fetchone()[0]
            sound = old.execute("PRAGMA quick_check(1)").fetchone()[0]
            if old.execute("PRAGMA application_id").fetchone()[0] != APPLICATION_ID or version not in (1, 2, 3):
                raise UserError(f"{shown} is not a journal.", hint=_RESTORE)
            if sound != "ok":
                raise UserError(f"The journal {shown} is damaged: {str(sound).splitlines()[-1]}.", hint=_RESTORE)
            names = {row[1] for row in old.execute("PRAGMA table_info(tries)")}
            tables = {row[0] for row in old.execute("SELECT name FROM sqlite_master")}
        new.execute("ATTACH ? AS old", (str(file),))
        if not is_first:
            _refuse_other_requests(new, shown)
        kind, cost = _KIND.get(version, "problem_kind"), "cost_usd" if "cost_usd" in names else "NULL"
        columns = f"{_SAME}, batch, problem_kind"
        better = "call.status <> 'done' AND (excluded.status = 'done' OR coalesce(call.problem_kind, '') <> 'final')"
        values = ", ".join(f"{name} = excluded.{name}" for name in columns.split(", ")[9:])
        new.executescript(
            "BEGIN; INSERT INTO combination SELECT id, skills, topic FROM old.combinations WHERE true ORDER BY rowid "
            "ON CONFLICT DO NOTHING; INSERT INTO message SELECT hash, role, content FROM old.messages WHERE true "
            f"ON CONFLICT DO NOTHING; INSERT INTO call ({columns}) SELECT {_SAME}, batch, {kind} FROM old.calls "
            f"WHERE true ORDER BY id ON CONFLICT DO UPDATE SET {values} WHERE {better}; "
            f"INSERT INTO attempt (call, outcome, reason, seconds, cost_usd, at) SELECT key, outcome, reason, seconds, "
            f"{cost}, at FROM old.tries ORDER BY id; "
            + ("INSERT INTO sent SELECT key, cost_usd, at FROM old.sent; " if "sent" in tables else "")
            + ("INSERT OR IGNORE INTO batch SELECT * FROM old.batches; " if "batches" in tables else "")
            + "COMMIT;"
        )
        checks = [
            f"SELECT {_SAME} FROM old.calls {'' if is_first else 'WHERE false'} EXCEPT SELECT {_SAME} FROM call",
            f"SELECT {_KEY}, request_hash, reply FROM old.calls WHERE status = 'done' "
            f"EXCEPT SELECT {_KEY}, request_hash, reply FROM call",
            "SELECT id, skills, topic FROM old.combinations EXCEPT SELECT id, skills, topic FROM combination",
            "SELECT hash, role, content FROM old.messages EXCEPT SELECT hash, role, content FROM message",
            "SELECT key, outcome, reason, seconds, at FROM old.tries "
            "EXCEPT SELECT call, outcome, reason, seconds, at FROM attempt",
        ]
        if any(new.execute(f"SELECT count(*) FROM ({check})").fetchone()[0] for check in checks):
            raise UserError(f"The journal {shown} is damaged: some of its rows cannot be copied.", hint=_RESTORE)
        new.execute("DETACH old")


def _refuse_other_requests(new: sqlite3.Connection, shown: Path) -> None:
    same = " AND ".join(f"one.{name} IS other.{name}" for name in _KEY.split(", "))
    query = f"SELECT 1 FROM old.calls AS one JOIN call AS other ON {same} WHERE one.request_hash <> other.request_hash"
    if new.execute(f"{query} LIMIT 1").fetchone():
        raise UserError(
            f"{shown} and another journal file of the run have different requests for the same calls.",
            hint="Move one of the files away; they belong to different experiments.",
        )


def _write_state(
    run: Path, new: sqlite3.Connection, finished: Mapping[str, Any], manifest: Sequence[Mapping[str, Any]]
) -> None:
    """Write everything except the calls."""
    texts: list[tuple[str, dict[str, Any]]] = []
    if (run / "earlier.yaml").exists():
        documents = read_yaml(run / "earlier.yaml")
        if not isinstance(documents, list):
            raise UserError(f"{run / 'earlier.yaml'} is damaged.", hint=_RESTORE)
        texts += [(json.dumps(document, ensure_ascii=False), {}) for document in documents]
    if (run / "experiment.yaml").exists():
        text = (run / "experiment.yaml").read_text(encoding="utf-8")
        # An invocation that made no calls says nothing about how the run was made.
        made = [entry for number, entry in enumerate(manifest) if number == 0 or entry.get("called") != 0]
        texts += [(text, dict(entry)) for entry in made or [{}]]
    for number, (text, facts) in enumerate(texts, start=1):
        names = ("at", "skillmix", "python", "machine")
        at, skillmix, python, machine = (str(facts.pop(name)) if name in facts else None for name in names)
        write_version(new, ExperimentVersion(number, text, at, skillmix, python, machine, facts))
    for step, ids in _excluded(run / "around.json").items():
        write_excluded(new, step, ids)
    new.executemany("INSERT INTO uncounted VALUES (?, ?, ?)", _untried(run / "journal" / "ahead.jsonl"))
    for note in run.glob("*/begun.json"):
        begun = _json(note)
        if isinstance(begun, dict) and isinstance(begun.get("recipe"), dict):
            inputs = {f"its {name}": value for name, value in begun["recipe"].items()}
            write_step(
                new, note.parent.name, StepRecord({**inputs, "its replay texts": begun.get("replay")}, None), now()
            )
    for step, stored in finished.get("steps", {}).items():
        inputs = dict(_inputs(stored["depends_on"]))
        if "the run" not in inputs and "the texts of the run" not in inputs:  # such steps are rerun, without calls
            result = {name: value for name, value in stored["made"].items() if name != "rows"}
            write_step(new, step, StepRecord(inputs, result, float(stored.get("seconds", 0.0))), now())


def _inputs(depends_on: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Return the dependencies of a finished step under their current names."""
    for name, value in depends_on.items():
        if name == "the code that reads replies and checks texts":
            yield name, code_version()
        elif name == "its base" and isinstance(value, list):
            yield name, value[-1]
        elif name.startswith("the model of ") and isinstance(value, str) and "#" in value:
            yield name, value.partition("#")[2]
        else:
            yield name, value


def _excluded(file: Path) -> dict[str, list[str]]:
    """Return the combinations that draws skip.

    A damaged file is an error, because these combinations determine the cells.
    """
    if not file.exists():
        return {}
    found = _json(file)
    if not isinstance(found, dict) or not all(isinstance(ids, list) for ids in found.values()):
        raise UserError(f"{file} is damaged.", hint=_RESTORE)
    return {str(step): [str(one) for one in ids] for step, ids in found.items()}


def _untried(file: Path) -> list[tuple[str, str, int]]:
    """Return the conversations that dataset steps prefetched but never used."""
    is_tried: dict[tuple[str, str, int], bool] = {}
    with telling_what_broke(file):
        lines = file.read_bytes().splitlines() if file.exists() else []
    for line in lines:
        with suppress(ValueError, TypeError, RecursionError):  # a crash cut this line off, so no call followed it
            event, student, combination, generation = json.loads(line)
            key = str(student), str(combination), int(generation)
            is_tried[key] = event == "tried" or is_tried.get(key, False)
    return [key for key, tried in is_tried.items() if not tried]


def _finished(run: Path) -> Mapping[str, Any]:
    """Return the content of finished.json; empty if it is missing, damaged or edited."""
    document = _json(run / "finished.json")
    try:
        digest = document.pop("digest")
        is_whole = document["format"] == 2 and digest == short_id("finished steps", document)
    except (AttributeError, LookupError, TypeError):
        return {}
    return document if is_whole else {}


def _json(file: Path) -> Any:
    """Return the content of a file; None if it is missing or damaged."""
    try:
        return json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return None
