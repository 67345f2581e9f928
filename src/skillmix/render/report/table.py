"""A table once, and its four forms: Markdown, CSV, LaTeX and the page."""

import csv
import io
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

from skillmix.core.cells import Cell
from skillmix.core.scoring import Metric
from skillmix.render.numbers import share, share_with_interval, signed, signed_with_interval
from skillmix.render.tables import markdown_table


@dataclass(frozen=True, slots=True)
class Score:
    """A metric of a cell, with everything a reader needs beside it."""

    value: float | None
    low: float | None
    high: float | None
    one_try: float | None
    one_try_low: float | None
    one_try_high: float | None
    complete: int
    combinations: int
    ungraded: int
    format_failures: int
    link: str | None = None
    """Where the texts are."""

    @property
    def text(self) -> str:
        """Value and interval."""
        return share_with_interval(self.value, self.low, self.high)

    @property
    def one_try_text(self) -> str:
        """The same for single texts."""
        return share_with_interval(self.one_try, self.one_try_low, self.one_try_high)

    @property
    def warnings(self) -> tuple[str, ...]:
        """What is amiss with the cell."""
        said = []
        if self.complete < self.combinations:
            said.append(f"{self.complete}/{self.combinations} complete")
        if self.ungraded:
            said.append(f"{self.ungraded} ungraded")
        if self.format_failures:
            said.append(f"{self.format_failures} format failure{'s' if self.format_failures != 1 else ''}")
        return tuple(said)

    @property
    def shade(self) -> int:
        """How strongly the page shades it, 0 to 10."""
        return round(10 * (self.value or 0))


@dataclass(frozen=True, slots=True)
class Estimate:
    """A number with or without its interval."""

    value: float | None
    low: float | None = None
    high: float | None = None
    is_signed: bool = False

    @property
    def text(self) -> str:
        """As printed."""
        if self.value is None:
            return "–"
        if self.low is None:
            return signed(self.value) if self.is_signed else share(self.value)
        put = signed_with_interval if self.is_signed else share_with_interval
        return put(self.value, self.low, self.high)


@dataclass(frozen=True, slots=True)
class Count:
    """A number of things."""

    value: int | None

    @property
    def text(self) -> str:
        """As printed."""
        return "–" if self.value is None else f"{self.value:,}"


@dataclass(frozen=True, slots=True)
class PValue:
    """Of a test."""

    value: float

    @property
    def text(self) -> str:
        """As printed."""
        return "<.001" if self.value < 0.001 else f"{self.value:.3f}".removeprefix("0")


LONG: Final = 16
"""Rows beyond which a table is folded away on the page."""
Entry = str | Score | Estimate | Count | PValue


@dataclass(frozen=True, slots=True)
class ReportTable:
    """Rows under a header, with a name for its files and words for its readers."""

    name: str
    title: str
    note: str
    columns: tuple[str, ...]
    rows: tuple[tuple[Entry, ...], ...]
    is_detail: bool = False
    """Folded away on the page."""
    groups: tuple[tuple[str, int], ...] = field(default=())
    """Headings over several columns, with their widths; empty for none."""

    @property
    def numeric(self) -> list[bool]:
        """Whether each column holds plain numbers, which stand on the right."""
        return [_form(self, column) not in (str, Score) for column in range(len(self.columns))]

    @property
    def full_columns(self) -> list[str]:
        """Each column's heading with that of its group."""
        if not self.groups:
            return list(self.columns)
        over = [heading for heading, width in self.groups for _ in range(width)]
        return [f"{g}, {c}" if g and c else g or c for g, c in zip(over, self.columns, strict=True)]


def score_entry(cell: Cell | None, metric: Metric, *, link: str | None = None) -> Entry:
    """A cell of the run as a cell of a table."""
    if cell is None or not cell.combinations:
        return "–"
    s = cell.summary(metric)
    return Score(
        value=s.value,
        low=s.low,
        high=s.high,
        one_try=s.one_try,
        one_try_low=s.one_try_low,
        one_try_high=s.one_try_high,
        complete=s.complete,
        combinations=s.combinations,
        ungraded=s.ungraded,
        format_failures=cell.format_failures,
        link=link,
    )


def as_markdown(table: ReportTable) -> str:
    """The table with its title and note."""
    right = frozenset(c for c in range(len(table.columns)) if _is_numeric(table, c))
    rows = [[_markdown_entry(entry) for entry in row] for row in table.rows]
    return f"**{table.title}**\n\n{markdown_table(table.full_columns, rows, right=right)}\n\n{table.note}\n"


def _markdown_entry(entry: Entry) -> str:
    if isinstance(entry, str):
        return entry
    if isinstance(entry, Score):
        return "; ".join([entry.text, f"one try {entry.one_try_text}", *entry.warnings])
    return entry.text


def as_csv(table: ReportTable) -> str:
    """Numbers in full, one column for each."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    columns = [_fields(table, column) for column in range(len(table.columns))]
    writer.writerow(
        [
            f"{heading} {field}" if number or len(fields) == len(_SCORE_FIELDS) else heading
            for heading, fields in zip(table.full_columns, columns, strict=True)
            for number, field in enumerate(fields)
        ]
    )
    for row in table.rows:
        writer.writerow(
            [_number(v) for entry, fields in zip(row, columns, strict=True) for v in _values(entry, fields)]
        )
    return out.getvalue()


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


def _form(table: ReportTable, column: int) -> type:
    """What a column holds, words only if it holds nothing else."""
    return next((type(row[column]) for row in table.rows if not isinstance(row[column], str)), str)


def _is_numeric(table: ReportTable, column: int) -> bool:
    return _form(table, column) is not str


def _fields(table: ReportTable, column: int) -> tuple[str, ...]:
    """What is written of each entry: ends of intervals only where there are some."""
    form = _form(table, column)
    if form is Score:
        return _SCORE_FIELDS
    entries = [row[column] for row in table.rows]
    has_ends = any(isinstance(entry, Estimate) and entry.low is not None for entry in entries)
    return ("value", "low", "high") if has_ends else ("value",) if form is not str else ("words",)


def _values(entry: Entry, fields: Sequence[str]) -> Iterator[object]:
    if isinstance(entry, str):
        yield entry if fields == ("words",) else ""
        yield from [""] * (len(fields) - 1)
    else:
        yield from (getattr(entry, field) for field in fields)


def _number(value: object) -> str:
    if value is None:
        return ""
    text = repr(value) if isinstance(value, float) else str(value)
    # A spreadsheet takes text that starts so for a formula.
    return f"'{text}" if isinstance(value, str) and text[:1] in ("=", "+", "@", "\t") else text


def as_latex(table: ReportTable) -> str:
    """A tabular with booktabs rules, in a table with caption and label."""
    spec = "".join("r" if _is_numeric(table, column) else "l" for column in range(len(table.columns)))
    lines = ["\\begin{table}", "\\centering\\small", f"\\caption{{{_escaped(table.title)}. {_escaped(table.note)}}}"]
    lines += [f"\\label{{tab:{table.name}}}", f"\\begin{{tabular}}{{{spec}}}", "\\toprule"]
    if table.groups:
        lines.append(
            " & ".join(f"\\multicolumn{{{width}}}{{c}}{{{_escaped(g)}}}" for g, width in table.groups) + " \\\\"
        )
    lines.append(" & ".join(map(_escaped, table.columns)) + " \\\\")
    lines.append("\\midrule")
    lines += [" & ".join(map(_latex_entry, row)) + " \\\\" for row in table.rows]
    lines += ["\\bottomrule", "\\end{tabular}", "\\end{table}"]
    return "% Needs \\usepackage{booktabs}.\n" + "\n".join(lines) + "\n"


def _latex_entry(entry: Entry) -> str:
    if isinstance(entry, str):
        return _escaped(entry)
    if isinstance(entry, Score):
        small = [f"one try {entry.one_try_text}", *entry.warnings]
        lines = [_escaped(entry.text), *(f"\\scriptsize {_escaped(line)}" for line in small)]
        return "\\shortstack[r]{" + "\\\\".join(lines) + "}"
    return _escaped(entry.text)


_LATEX: Final = str.maketrans(
    {
        "\\": r"\textbackslash{}",
        "&": r"\&",
        "%": r"\%",
        "$": r"\$",
        "#": r"\#",
        "_": r"\_",
        "{": r"\{",
        "}": r"\}",
        "~": r"\textasciitilde{}",
        "^": r"\textasciicircum{}",
        "<": r"\textless{}",
        ">": r"\textgreater{}",
        "−": r"$-$",
        "–": "--",
        "×": r"$\times$",
        "≥": r"$\geq$",
        "≤": r"$\leq$",
        "\n": " ",
    }
)


def _escaped(text: str) -> str:
    return "".join(c if c.isprintable() else " " for c in text).translate(_LATEX)


def written_forms(tables: Sequence[ReportTable]) -> Iterator[tuple[str, str]]:
    """File names and contents of every table in every form."""
    for table in tables:
        yield f"{table.name}.md", as_markdown(table)
        yield f"{table.name}.csv", as_csv(table)
        yield f"{table.name}.tex", as_latex(table)
