"""Write a table as Markdown, CSV, JSON and LaTeX."""

import csv
import io
import json
from collections.abc import Iterator, Sequence
from typing import Final

from skillmix.render.markdown import markdown_table
from skillmix.report.tables.latex import NO_MARKS, Marks, as_latex
from skillmix.report.tables.table import Entry, Estimate, ReportTable, ScoreEntry


def written_forms(tables: Sequence[ReportTable], marks: Marks = NO_MARKS) -> Iterator[tuple[str, str]]:
    """The file name and the content of every table in every format."""
    for table in tables:
        yield f"{table.name}.md", as_markdown(table)
        yield f"{table.name}.csv", as_csv(table)
        yield f"{table.name}.json", as_json(table)
        yield f"{table.name}.tex", as_latex(table, marks)


def as_markdown(table: ReportTable) -> str:
    """The table in Markdown, with its title and note."""
    right = frozenset(c for c in range(len(table.columns)) if table.form(c) is not str)
    rows = [[_markdown_entry(entry) for entry in row] for row in table.rows]
    return f"**{table.title}**\n\n{markdown_table(table.full_columns, rows, right=right)}\n\n{table.note}\n"


def _markdown_entry(entry: Entry) -> str:
    if isinstance(entry, str):
        return entry
    if isinstance(entry, ScoreEntry):
        return "; ".join([entry.text, f"one try {entry.one_try_text}", *entry.warnings])
    return entry.text


def as_csv(table: ReportTable) -> str:
    """The table in CSV, with every number in full precision and in its own column."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    headings, rows = _flat(table)
    writer.writerow(headings)
    writer.writerows([_number(value) for value in row] for row in rows)
    return out.getvalue()


def as_json(table: ReportTable) -> str:
    """The rows of the table as JSON objects, with the headings of the CSV as keys; an unknown number is null."""
    headings, rows = _flat(table)
    records = [dict(zip(headings, row, strict=True)) for row in rows]
    return json.dumps(records, ensure_ascii=False, allow_nan=False, indent=1) + "\n"


def _flat(table: ReportTable) -> tuple[list[str], list[list[object]]]:
    """The headings and rows with every number in a column of its own."""
    columns = [_fields(table, column) for column in range(len(table.columns))]
    headings = [
        f"{heading} {field}" if number or len(fields) == len(_SCORE_FIELDS) else heading
        for heading, fields in zip(table.full_columns, columns, strict=True)
        for number, field in enumerate(fields)
    ]
    rows = [
        [value for entry, fields in zip(row, columns, strict=True) for value in _values(entry, fields)]
        for row in table.rows
    ]
    return headings, rows


_SCORE_FIELDS: Final = (
    "value",
    "low",
    "high",
    "one_try",
    "one_try_low",
    "one_try_high",
    "complete",
    "combinations",
    "ungraded",
    "format_failures",
)


def _fields(table: ReportTable, column: int) -> tuple[str, ...]:
    """The CSV fields of a column; ends of intervals only if an entry has them."""
    form = table.form(column)
    if form is ScoreEntry:
        return _SCORE_FIELDS
    entries = [row[column] for row in table.rows]
    has_ends = any(isinstance(entry, Estimate) and (entry.low is not None or entry.is_too_few) for entry in entries)
    return ("value", "low", "high") if has_ends else ("value",) if form is not str else ("words",)


def _values(entry: Entry, fields: Sequence[str]) -> Iterator[object]:
    if isinstance(entry, str):
        yield entry if fields == ("words",) else None
        yield from [None] * (len(fields) - 1)
    else:
        numbers = entry.score if isinstance(entry, ScoreEntry) else entry
        yield from (getattr(numbers, field) for field in fields)


def _number(value: object) -> str:
    if value is None:
        return ""
    text = repr(value) if isinstance(value, float) else str(value)
    # A spreadsheet would read text that starts with one of these as a formula.
    return f"'{text}" if isinstance(value, str) and text[:1] in ("=", "+", "@", "\t") else text
