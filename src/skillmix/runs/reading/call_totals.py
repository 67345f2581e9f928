"""Calls, tokens and cost of a run by model, added up in its journal."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Final, Literal, TypeVar

from skillmix.runs.journal.journal import JournalReader

_Number = TypeVar("_Number", int, float)
_QUERY: Final = (
    "SELECT stage, coalesce(grader, student), model, count(*), sum(input_tokens), sum(output_tokens), sum(cost_usd), "
    "sum(status = 'done' AND input_tokens IS NULL), sum(status = 'done' AND output_tokens IS NULL), "
    "sum(status = 'done' AND cost_usd IS NULL), min(at), max(at) "
    "FROM calls WHERE origin = 'call' GROUP BY 1, 2, 3 ORDER BY min(id)"
)


@dataclass(frozen=True, slots=True)
class CallTotals:
    """The calls of one student or grader to one model."""

    role: Literal["student", "grader"]
    name: str
    model: str
    calls: int
    input_tokens: int | None
    """None if some reply does not say it, as are the other totals."""
    output_tokens: int | None
    cost_usd: float | None
    first: str
    """The time of the first call, in UTC."""
    last: str


def call_totals(journal: JournalReader) -> Iterator[CallTotals]:
    """The totals of each student and grader of a run, over all files of its journal, the earliest first."""
    found: dict[tuple[str, str, str], CallTotals] = {}
    for total in _totals_of_files(journal):
        key = (total.role, total.name, total.model)
        found[key] = _added(found[key], total) if key in found else total
    yield from found.values() if len(journal.files) == 1 else sorted(found.values(), key=lambda total: total.first)


def _added(one: CallTotals, other: CallTotals) -> CallTotals:
    return replace(
        one,
        calls=one.calls + other.calls,
        input_tokens=_sum(one.input_tokens, other.input_tokens),
        output_tokens=_sum(one.output_tokens, other.output_tokens),
        cost_usd=_sum(one.cost_usd, other.cost_usd),
        first=min(one.first, other.first),
        last=max(one.last, other.last),
    )


def _sum(one: _Number | None, other: _Number | None) -> _Number | None:
    """The sum; None if a part is unknown."""
    return None if one is None or other is None else one + other


def _totals_of_files(journal: JournalReader) -> Iterator[CallTotals]:
    for row in journal.rows(_QUERY):
        stage, name, model, calls, inputs, outputs, cost, no_inputs, no_outputs, no_cost, first, last = row
        yield CallTotals(
            role="student" if stage == "generate" else "grader",
            name=name,
            model=model,
            calls=int(calls),
            input_tokens=None if int(no_inputs or 0) or inputs is None else int(inputs),
            output_tokens=None if int(no_outputs or 0) or outputs is None else int(outputs),
            cost_usd=None if int(no_cost or 0) or cost is None else float(cost),
            first=first,
            last=last,
        )
