"""Encode and decode the rows of a run's database: calls and all other contents.

A damaged row is an error. A request whose key is stored with other settings is an error that lists the changes.
"""

import json
import sqlite3
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import lru_cache
from sys import intern
from typing import Any, Final

from skillmix.calls import (
    Call,
    CallKey,
    CallProblem,
    Decoding,
    GenerateKey,
    GradeKey,
    Message,
    Origin,
    Outcome,
    Reply,
    Request,
    Role,
    content_address,
    extra_json,
)
from skillmix.catalog.combinations import Combination, combination_id
from skillmix.errors import UserError
from skillmix.render import shortened

# `json.dumps` with options creates a new encoder on every call, which takes longer than the encoding itself.
json_text: Final = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode
WRITTEN_COLUMNS: Final = (
    "stage, student, combination, generation, turn, text, grader, round, attempt, model, messages, decoding, seed, "
    "request_hash, status, reply, finish, input_tokens, output_tokens, cost_usd, problem_kind, problem, detail, "
    "not_sent, origin, batch, at"
)
"""The columns of a call, in the order in which `row_of_call` returns their values."""


def now() -> str:
    """Return the current time in UTC, in the format that a journal stores."""
    return datetime.now(UTC).isoformat(timespec="milliseconds")


def row_of_call(request: Request, outcome: Outcome, *, origin: Origin = "call", at: str) -> tuple[object, ...]:
    """Encode a finished call, with the hash of its reply instead of the reply."""
    done: tuple[object, ...]
    if isinstance(outcome, Reply):
        # `Reply` has already cleaned its text, as `Message` does.
        reply = content_address("assistant", outcome.text)
        counts = (outcome.finish, outcome.input_tokens, outcome.output_tokens, outcome.cost_usd)
        done = ("done", reply, *counts, None, None, None, json_text(outcome.not_sent))
    else:
        problem = (outcome.kind, outcome.reason, outcome.detail)
        done = ("problem", None, None, None, None, None, *problem, "[]")
    return (*_key_values(request.key), *_settings_of(request), *done, origin, None, at)


def row_of_submitted(request: Request, worst: float | None, tag: str) -> tuple[object, ...]:
    """Encode a call in a batch, with the worst-case cost in the cost column."""
    done = ("submitted", None, None, None, None, worst, None, None, None, "[]")
    return (*_key_values(request.key), *_settings_of(request), *done, "call", tag, now())


def _settings_of(request: Request) -> tuple[object, ...]:
    messages = json_text([message.content_hash for message in request.messages])
    return request.model, messages, json_text(request.decoding.settings()), request.seed, request.content_hash


def _key_values(key: CallKey) -> tuple[object, ...]:
    if isinstance(key, GenerateKey):
        return "generate", key.student, key.combination, key.generation, key.turn, None, None, None, None
    votes = (None, key.text, key.grader, key.round, key.attempt)
    return ("grade", key.student, key.combination, key.generation, *votes)


# With a literal stage, SQLite can use the partial index of that stage.
_WHERE_GENERATE: Final = "stage = 'generate' AND student = ? AND combination = ? AND generation = ? AND turn = ?"
_WHERE_GRADE: Final = (
    "stage = 'grade' AND student = ? AND combination = ? AND generation = ? AND text = ? AND grader = ? "
    "AND round = ? AND attempt = ?"
)


def where_key(key: CallKey) -> tuple[str, tuple[object, ...]]:
    """Return the SQL condition that finds a key, with the values for its placeholders."""
    if isinstance(key, GenerateKey):
        return _WHERE_GENERATE, (key.student, key.combination, key.generation, key.turn)
    place = (key.student, key.combination, key.generation)
    return _WHERE_GRADE, (*place, key.text, key.grader, key.round, key.attempt)


CALL_COLUMNS: Final = (
    "student, combination, generation, turn, text, grader, round, attempt, model, messages, decoding, seed, "
    "request_hash, origin, at, status, reply, finish, problem_kind, problem, detail, input_tokens, output_tokens, "
    "cost_usd, not_sent, role, content"
)
"""The columns that `call_of_row` expects, from calls joined with messages by the hash of the reply."""


def combination_of_row(row: Sequence[Any]) -> Combination:
    """Decode a combination. Its id must be the hash of its skills and topic."""
    try:
        # Repeated names share memory.
        combination = Combination(row[0], tuple([intern(skill) for skill in json.loads(row[1])]), intern(row[2]))
        is_whole = combination_id(combination.skills, combination.topic) == combination.id
    except (ValueError, TypeError, RecursionError, UserError):
        is_whole = False
    if not is_whole:
        raise _damaged(f"the combination {row[0]}")
    return combination


def _damaged(what: str) -> UserError:
    what = " ".join(what.split())[:_LONGEST_NAME]  # a damaged journal can contain any name
    return UserError(f"The journal is damaged: {what} cannot be read.", hint="Restore it from a backup.")


_LONGEST_NAME: Final = 200


def json_of_row(stored: str, what: str) -> object:
    """Decode a stored JSON value."""
    try:
        value: object = json.loads(stored)
    except (ValueError, TypeError, RecursionError):
        raise _damaged(what) from None
    return value


def call_of_row(row: Sequence[Any]) -> Call:
    """Decode a stored call."""
    *key, model, messages, decoding, seed, request_hash, origin, at = row[:15]
    try:
        return Call(
            key=key_of(key),
            outcome=_outcome_of(row[15:]),
            model=model,
            messages=tuple(json.loads(messages)),
            decoding=_decoding_of(decoding),
            seed=seed,
            request_hash=request_hash,
            origin=origin,
            at=at,
        )
    except (ValueError, TypeError, RecursionError):
        raise _damaged(f"a call of {row[0]}") from None


def key_of(columns: Sequence[Any]) -> CallKey:
    """Decode the columns that identify a call."""
    student, combination, generation, turn, text, grader, round_number, attempt = columns
    if turn is not None:
        return GenerateKey(student, combination, generation, turn)
    return GradeKey(student, combination, generation, text, grader, round_number, attempt)


@lru_cache(maxsize=256)
def _decoding_of(stored: str) -> Decoding:
    settings = json.loads(stored)
    return Decoding(**{**settings, "extra": extra_json(settings.get("extra", {}))})


def _outcome_of(columns: Sequence[Any]) -> Outcome | None:
    status, reply, finish, kind, problem, detail, tokens_in, tokens_out, cost, not_sent, role, content = columns
    if status == "submitted":
        return None
    if status == "problem":
        return CallProblem(kind, problem, detail or "")
    if status != "done":
        raise ValueError(f"the status {status!r} is unknown")
    return Reply(
        text=verified_content(reply, role, content),
        finish=finish,
        input_tokens=tokens_in,
        output_tokens=tokens_out,
        cost_usd=cost,
        not_sent=tuple(json.loads(not_sent)) if not_sent != "[]" else (),
    )


def verified_message(address: str, role: str | None, content: str | None) -> Message:
    """Return a message after checking that its content matches the hash it is stored under."""
    return Message(_role(role), verified_content(address, role, content))


def verified_content(address: str, role: str | None, content: str | None) -> str:
    """Check a message's content against its hash and return it, without creating one of millions of `Message`s."""
    if content is None or content_address(_role(role), content) != address:
        raise _damaged(f"the message with the hash {address}")
    return content


def _role(role: str | None) -> Role:
    return role if role in ("system", "user") else "assistant"  # type: ignore[return-value]


def changed_settings(request: Request, stored: Sequence[Any]) -> UserError:
    """Make the error for a request whose key is in the journal with another model, messages, sampling or seed."""
    key = request.key
    model, messages, decoding, seed = stored
    former = json_of_row(messages, f"the messages of {key}")
    before = {"model": model, "seed": seed, **_object(decoding, f"the decoding of {key}")}
    settings = {"model": request.model, "seed": request.seed, **request.decoding.settings()}
    changed = [
        "extra" if name == "extra" else _change(name, before.get(name), settings.get(name))  # the value may be secret
        for name in {**settings, **before}
        if before.get(name) != settings.get(name)
    ]
    hashes = [message.content_hash for message in request.messages]
    if hashes != former:
        prompts = hashes[1:] if request.messages[0].role == "system" else hashes
        is_system = isinstance(former, list) and prompts in (former, former[1:])
        changed.append("system text" if is_system else "prompt")
    role, name = ("student", key.student) if isinstance(key, GenerateKey) else ("grader", key.grader)
    return UserError(
        f"The run has calls of the {role} {name!r} with another {' and another '.join(changed or ['request'])}, "
        f"such as {key}.",
        hint=f"To continue this run, restore the old settings, or add a {role} with another name and the new "
        "settings. For a separate run, choose another run name, with `name` in the experiment or with --run if the "
        "command accepts it. To start over, delete the folder of the run first, which loses its replies.",
    )


_CONTENTS: Final = {"catalog_hash": ("catalog", "content of the catalog"), "prompts_hash": ("prompts", "prompts")}
"""For each hash in experiment.yaml, the key of the hashed content and a description of the change."""


def changed_keys(before: Mapping[str, object], now: Mapping[str, object], keys: Iterable[str]) -> list[str]:
    """Return the keys of an experiment that changed, each with its old and new value.

    >>> changed_keys({"seed": 0, "catalog_hash": "1a"}, {"seed": 2, "catalog_hash": "2b"}, ["seed", "catalog_hash"])
    ['seed (0 → 2)', 'content of the catalog']
    """
    changed = [key for key in keys if before.get(key) != now.get(key)]
    found = [_change(key, before.get(key), now.get(key)) for key in changed if key not in _CONTENTS]
    contents = (_CONTENTS[key] for key in changed if key in _CONTENTS)
    return found + [what for named_by, what in contents if named_by not in changed]


def _change(name: str, before: object, now: object) -> str:
    if isinstance(before, Mapping | list) or isinstance(now, Mapping | list):
        return name  # its values are too long for a message
    old, new = ("not set" if value is None else shortened(str(value)) for value in (before, now))
    return f"{name} ({old} → {new})"


@dataclass(frozen=True, slots=True)
class ExperimentVersion:
    """An experiment of a run, and the environment that ran it; older runs may not have recorded the environment."""

    version: int
    yaml: str
    at: str | None
    skillmix: str | None
    python: str | None
    machine: str | None
    notes: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class StepRecord:
    """A step that finished completely, or a training run that has begun."""

    inputs: Mapping[str, Any]
    """Everything that the step's output depends on, by descriptive name: settings and content hashes."""
    result: Mapping[str, Any] | None
    """The output of the step; None for an unfinished training run."""
    seconds: float = 0.0
    """Wall-clock seconds, summed over all executions of the step."""

    def changes(self, inputs: Mapping[str, Any]) -> list[str]:
        """Return the names of inputs that differ now. Added and removed inputs count only if no other input differs."""
        both = self.inputs.keys() & inputs.keys()
        changed = [name for name in inputs if name in both and self.inputs[name] != inputs[name]]
        return changed or sorted(self.inputs.keys() ^ inputs.keys())


@dataclass(frozen=True, slots=True)
class RunState:
    """The state of a run, except its calls."""

    versions: tuple[ExperimentVersion, ...] = ()
    """The experiments of the run, oldest first. The last one is current."""
    excluded: Mapping[str, frozenset[str]] = field(default_factory=dict)
    """For each step, the combinations that its draws skip because one of the step's students was trained on them."""
    steps: Mapping[str, StepRecord] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Invocations:
    """Facts about all invocations that changed a run. Each tuple contains every distinct value once, oldest first."""

    began: str | None = None
    """The time when the first invocation was recorded, in UTC."""
    versions: tuple[str, ...] = ()
    """Versions of skillmix and of Python."""
    machines: tuple[str, ...] = ()
    prompts: Mapping[str, str] | None = None
    """The content hash of each prompt set; None if no hash was recorded."""


def read_state(connection: sqlite3.Connection) -> RunState:
    """Read the state of a run from its open database."""
    excluded: dict[str, set[str]] = {}
    for step, combination in connection.execute("SELECT step, combination FROM excluded"):
        excluded.setdefault(step, set()).add(combination)
    steps = connection.execute("SELECT name, inputs, result, seconds FROM step ORDER BY rowid").fetchall()
    query = "SELECT version, yaml, at, skillmix, python, machine, notes FROM experiment ORDER BY version"
    return RunState(
        versions=tuple(
            ExperimentVersion(number, text, at, skillmix, python, machine, _object(notes, "an experiment"))
            for number, text, at, skillmix, python, machine, notes in connection.execute(query)
        ),
        excluded={step: frozenset(ids) for step, ids in excluded.items()},
        steps={
            name: StepRecord(_object(inputs, name), None if result is None else _object(result, name), seconds)
            for name, inputs, result, seconds in steps
        },
    )


def _object(text: str, name: str) -> dict[str, Any]:
    value = json_of_row(text, f"the record of {name}")
    return value if isinstance(value, dict) else {}


def write_step(connection: sqlite3.Connection, name: str, record: StepRecord, at: str) -> None:
    """Store the record of a step, replacing any earlier record."""
    texts = [
        None if part is None else json.dumps(part, ensure_ascii=False) for part in (dict(record.inputs), record.result)
    ]
    connection.execute("INSERT OR REPLACE INTO step VALUES (?, ?, ?, ?, ?)", (name, *texts, record.seconds, at))


def write_excluded(connection: sqlite3.Connection, step: str, combinations: Iterable[str]) -> None:
    """Store the combinations that the draws of a step skip."""
    connection.execute("DELETE FROM excluded WHERE step = ?", (step,))
    rows = [(step, combination) for combination in sorted(combinations)]
    connection.executemany("INSERT INTO excluded VALUES (?, ?)", rows)


def write_version(connection: sqlite3.Connection, one: ExperimentVersion) -> None:
    """Store a version of the experiment, replacing any earlier version with the same number."""
    values = (one.yaml, one.at, one.skillmix, one.python, one.machine, json.dumps(one.notes, ensure_ascii=False))
    connection.execute("INSERT OR REPLACE INTO experiment VALUES (?, ?, ?, ?, ?, ?, ?)", (one.version, *values))
