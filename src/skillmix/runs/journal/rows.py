"""Decode journal rows into records; a damaged row is an error."""

import json
from collections.abc import Sequence
from functools import lru_cache
from typing import Final

from skillmix.calls import (
    Call,
    CallKey,
    CallProblem,
    Decoding,
    GenerateKey,
    GradeKey,
    Message,
    Outcome,
    Reply,
    Role,
    content_address,
    extra_json,
)
from skillmix.catalog.combinations import Combination, combination_id
from skillmix.errors import UserError

CALL_COLUMNS: Final = (
    "student, combination, generation, turn, text, grader, round, attempt, model, messages, decoding, seed, "
    "request_hash, origin, at, status, reply, finish, problem_kind, problem, detail, input_tokens, output_tokens, "
    "cost_usd, not_sent, role, content"
)
"""The columns that `call_of_row` expects, of calls joined with messages by the reply's hash."""


def key_order(call: Call) -> tuple[object, ...]:
    """The sort key of a call among the calls of its stage."""
    key = call.key
    if isinstance(key, GenerateKey):
        return key.student, key.combination, key.generation, key.turn
    return key.student, key.combination, key.generation, key.text, key.grader, key.round, key.attempt


def union(calls: list[Call]) -> Call:
    """The best of several files' calls of one key: a reply, else a final problem, else one that may pass."""
    if len({call.request_hash for call in calls}) > 1:
        raise UserError(
            f"{calls[0].key} stands in two journal files with different requests.",
            hint="Move one of the files away; they are of different experiments.",
        )
    return min(calls, key=lambda call: _rank(call.outcome))


def _rank(outcome: Outcome | None) -> int:
    if isinstance(outcome, Reply):
        return 0
    return 3 if outcome is None else (1 if outcome.kind == "final" else 2)


def combination_of_row(row: tuple[str, ...]) -> Combination:
    """Decode a combination; its id must be the hash of its skills and topic."""
    try:
        combination = Combination(row[0], tuple(json.loads(row[1])), row[2])
        is_whole = combination_id(combination.skills, combination.topic) == combination.id
    except (ValueError, TypeError, RecursionError, UserError):
        is_whole = False
    if not is_whole:
        raise _damaged(f"what combination {row[0]} stands for")
    return combination


def _damaged(what: str) -> UserError:
    what = " ".join(what.split())[:_LONGEST_NAME]  # a damaged journal can hold any name
    return UserError(f"The journal is damaged: {what} cannot be read.", hint="Restore it from a copy.")


_LONGEST_NAME: Final = 200


def json_of_row(stored: str, what: str) -> object:
    """Decode a stored JSON value."""
    try:
        value: object = json.loads(stored)
    except (ValueError, TypeError, RecursionError):
        raise _damaged(what) from None
    return value


def call_of_row(row: tuple[str, ...]) -> Call:
    """Decode a stored call."""
    try:
        return _call_of_whole(row)
    except (ValueError, TypeError, RecursionError):
        raise _damaged(f"a call of {row[0]}" if row else "a call") from None


def key_of(columns: Sequence[str]) -> CallKey:
    """Decode the columns that identify a call."""
    student, combination, generation, turn, text, grader, round_number, attempt = columns
    if turn is not None:
        return GenerateKey(student, combination, int(generation), int(turn))
    return GradeKey(student, combination, int(generation), text, grader, int(round_number), int(attempt))


def _call_of_whole(row: tuple[str, ...]) -> Call:
    *key, model, messages, decoding, seed, request_hash, origin, at = row[:15]
    return Call(
        key=key_of(key),
        outcome=_outcome_of(list(row[15:])),
        model=model,
        messages=_addresses_of(messages),
        decoding=_decoding_of(decoding),
        seed=None if seed is None else int(seed),
        request_hash=request_hash,
        origin=origin,  # type: ignore[arg-type]  # the table's CHECK holds it to the literal
        at=at,
    )


@lru_cache(maxsize=256)
def _addresses_of(stored: str) -> tuple[str, ...]:
    """Decode message hashes; consecutive rounds of a grader have the same ones."""
    return tuple(json.loads(stored))


@lru_cache(maxsize=256)
def _decoding_of(stored: str) -> Decoding:
    settings = json.loads(stored)
    return Decoding(**{**settings, "extra": extra_json(settings.get("extra", {}))})


def _outcome_of(columns: list[str]) -> Outcome | None:
    status, reply, finish, kind, problem, detail, *numbers, not_sent, role, content = columns
    if status == "submitted":
        return None
    if status == "problem":
        return CallProblem(kind, problem, detail or "")  # type: ignore[arg-type]  # as written
    if status != "done":
        raise ValueError(f"the status {status!r} is unknown")
    tokens_in, tokens_out, cost = numbers
    return Reply(
        text=verified_content(reply, role, content),
        finish=finish,
        input_tokens=None if tokens_in is None else int(tokens_in),
        output_tokens=None if tokens_out is None else int(tokens_out),
        cost_usd=None if cost is None else float(cost),
        not_sent=tuple(json.loads(not_sent)) if not_sent != "[]" else (),
    )


def verified_message(address: str, role: str | None, content: str | None) -> Message:
    """A message; its content must have the hash under which it is stored."""
    message = Message(_role(role), content or "")
    if content is None or message.content_hash != address:
        raise _damaged(f"the message with the hash {address}")
    return message


def verified_content(address: str, role: str | None, content: str | None) -> str:
    """The content of such a message, without a `Message` object for each of millions."""
    if content is not None and content_address(_role(role), content) == address:
        return content
    return verified_message(address, role, content).content


def _role(role: str | None) -> Role:
    return role if role in ("system", "user") else "assistant"  # type: ignore[return-value]
