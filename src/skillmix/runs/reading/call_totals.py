"""Calls, tokens and cost of a run by model, added up in its journal."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, Literal

from skillmix.runs.journal.journal import JournalReader

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
    """The totals of each student and grader of a run, file by file of its journal."""
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
