"""Write tables as Markdown, CSV, JSON and LaTeX, and write the files for a paper.

The LaTeX tables use booktabs, with one line for each row. TeX scales down tables that are wider than the text or too
long for a page. In the tidy files for a paper, each row contains one number: the run, student, setting, k, grader and
metric, with the value, its interval and its n.
"""

import csv
import io
import json
import re
import unicodedata
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from itertools import accumulate, product
from typing import Any, Final, NamedTuple

from skillmix.files import read_yaml
from skillmix.grading.points import FULL_MARKS, METRICS
from skillmix.models.lineage import short_name
from skillmix.render import markdown_table
from skillmix.report.records import Report, by_key
from skillmix.report.registry import (
    FILES,
    PHRASES,
    Entry,
    Estimate,
    ReportTable,
    Row,
    ScoreEntry,
    rows_as_table,
    score_entry,
)
from skillmix.scores.cells import CellKey, Score


class Marks(NamedTuple):
    """Signs after scores, such as a star for a difference that is found, and the sentence that explains the signs."""

    signs: Mapping[int, str]
    """Signs by the identity of the score object, because several tables show the same score."""
    note: str
    """The sentence printed under a table that contains such a sign."""

    def sign(self, score: Score) -> str:
        """Return the sign after a score; empty for most scores."""
        return self.signs.get(id(score), "")


_COLUMN: Final = 5
_PAGE: Final = 8
"""The maximum number of columns for a table in one column of a two-column article, and for a panel of page width."""
_LONG_WORDS: Final = 40
"""Text is broken into lines in columns that contain longer entries than this, in characters."""
_PACKAGES: Final = "% Needs \\usepackage{booktabs} and \\usepackage{graphicx}."
_FIT: Final = (
    "\\ifdim\\wd0>\\linewidth\\sbox0{\\resizebox{\\linewidth}{!}{\\usebox0}}\\fi",
    "\\ifdim\\dimexpr\\ht0+\\dp0\\relax>SHARE\\textheight\\resizebox*{!}{SHARE\\textheight}{\\usebox0}\\else\\usebox0\\fi",
    "\\par\\medskip",
)
"""LaTeX that prints a panel's box, shrunk if it exceeds the text width or the panel's share of the page."""
_SCORE_NOTE: Final = "Scores: best of the generations, mean over complete combinations, with 95% intervals."
"""Replaces the page's note, because entries on the page have several lines."""
_INCOMPLETE: Final = "\\ensuremath{^\\circ}"


def as_latex(table: ReportTable, marks: Marks | None = None) -> str:
    """Format the table as one LaTeX float; groups of columns that do not fit side by side become panels."""
    marks = marks or Marks({}, "")
    is_narrow = len(table.columns) <= _COLUMN and not table.groups
    environment = "table" if is_narrow else "table*"
    lines = [
        _PACKAGES,
        f"\\begin{{{environment}}}",
        "\\centering\\small\\setlength{\\tabcolsep}{4pt}",
        f"\\caption{{{escaped(table.title)}}}",
        f"\\label{{tab:{table.name}}}",
    ]
    panels = list(_panels(table))
    best = set(_best_entries(table))
    for columns, groups in panels:
        lines += ["\\sbox0{%", *_tabular(table, columns, groups, best, marks), "}%"]
        lines += [line.replace("SHARE", f"{0.8 / len(panels):.2f}") for line in _FIT]
    scores = [entry.score for row in table.rows for entry in row if isinstance(entry, ScoreEntry)]
    notes = [table.note.replace(PHRASES["scores"], _SCORE_NOTE)] if table.note else []
    if best:
        notes.append("Bold: the best of the comparable rows.")
    if any(map(marks.sign, scores)):
        notes.append(marks.note)
    if any(_is_incomplete(score) for score in scores):
        notes.append("A circle (°): some texts are not graded.")
    lines.append(f"\\parbox{{\\linewidth}}{{\\footnotesize\\raggedright {escaped(' '.join(notes))}}}")
    return "\n".join([*lines, f"\\end{{{environment}}}"]) + "\n"


def _panels(table: ReportTable) -> Iterator[tuple[list[int], list[tuple[str, int]]]]:
    """Yield each panel's columns and groups: the first group, which identifies rows, and as many others as fit."""
    starts = list(accumulate((width for _, width in table.groups), initial=0))
    first = table.groups[:1]
    heads = list(range(len(table.columns) if not first else first[0][1]))
    columns, groups = list(heads), list(first)
    for group, start in zip(table.groups[1:], starts[1:], strict=False):
        if len(columns) > len(heads) and len(columns) + group[1] > _PAGE:
            yield columns, groups
            columns, groups = list(heads), list(first)
        columns += range(start, start + group[1])
        groups.append(group)
    yield columns, groups


def _tabular(
    table: ReportTable,
    columns: Sequence[int],
    groups: Sequence[tuple[str, int]],
    best: Container[tuple[int, int]],
    marks: Marks,
) -> Iterator[str]:
    """Yield the lines of a panel; if the first column is a setting, the rows of each setting form a block."""
    long = {c for row in table.rows for c, e in enumerate(row) if isinstance(e, str) and len(e) > _LONG_WORDS}
    sides = ("p{.3\\linewidth}" if c in long else "r" if table.numeric[c] else "l" for c in columns)
    yield f"\\begin{{tabular}}{{@{{}}{''.join(sides)}@{{}}}}"
    yield "\\toprule"
    if groups:
        yield " & ".join(f"\\multicolumn{{{width}}}{{c}}{{{escaped(g)}}}" for g, width in groups) + " \\\\"
        starts = accumulate((width for _, width in groups), initial=1)
        rules = ((first, first + width - 1) for (heading, width), first in zip(groups, starts, strict=False) if heading)
        yield " ".join(f"\\cmidrule(lr){{{first}-{last}}}" for first, last in rules)
    yield " & ".join(escaped(table.columns[column]) for column in columns) + " \\\\"
    yield "\\midrule"
    has_blocks = table.columns[:1] == ("setting",)
    for index, row in enumerate(table.rows):
        is_repeated = has_blocks and index > 0 and table.rows[index - 1][0] == row[0]
        if has_blocks and index and not is_repeated:
            yield "\\addlinespace"
        entries = []
        for column in columns:
            entry = row[column]
            if isinstance(entry, ScoreEntry):
                value, _, interval = entry.text.partition(" ")
                shown = f"\\textbf{{{escaped(value)}}}" if (index, column) in best else escaped(value)
                sign = marks.sign(entry.score) + (_INCOMPLETE if _is_incomplete(entry.score) else "")
                entries.append(f"{shown}{sign}" + (f" {{\\scriptsize {escaped(interval)}}}" if interval else ""))
            elif not isinstance(entry, str):
                entries.append(escaped(entry.text))
            elif column in long:
                # Let TeX break a long text even where there is no space, as in model strings and paths.
                pieces = "\\allowbreak{}".join(map(escaped, _BREAKS.split(entry)))
                entries.append(f"\\sloppy\\hspace{{0pt}}{pieces}")
            else:
                entries.append("" if is_repeated and column == 0 else escaped(entry))
        yield " & ".join(entries) + " \\\\"
    yield "\\bottomrule"
    yield "\\end{tabular}%"


def _is_incomplete(score: Score) -> bool:
    return bool(score.complete < score.combinations or score.ungraded)


_COMPARED: Final = frozenset({"student", "trained on", "base", "conversations"})
"""Columns in which rows may differ and still be comparable."""


def _best_entries(table: ReportTable) -> Iterator[tuple[int, int]]:
    """Yield the row and column of each column's best scores, compared among rows with equal identifying entries."""
    contexts: dict[tuple[str, ...], list[int]] = {}
    for index, row in enumerate(table.rows):
        pairs = zip(table.columns, row, strict=True)
        others = (entry for name, entry in pairs if isinstance(entry, str) and name not in _COMPARED and entry != "–")
        contexts.setdefault(tuple(others), []).append(index)
    for column in range(len(table.columns)):
        for rows in contexts.values():
            # Values with the same printed form are equally good.
            values = {i: e.text.partition(" ")[0] for i in rows if isinstance(e := table.rows[i][column], ScoreEntry)}
            known = {i: text for i, text in values.items() if text != "–"}
            if len(set(known.values())) > 1:
                best = max(known.values(), key=float)
                yield from ((i, column) for i, text in known.items() if text == best)


_BREAKS: Final = re.compile("(?<=[/?&=:._])(?=[^ ])")
_TEX: Final[Any] = read_yaml(FILES / "tex.yaml")
_SECOND_HYPHEN: Final = re.compile("(?<=-)-")
_APART: Final = "\ue000"
"""A placeholder for a hyphen after another hyphen, because TeX would join both into a dash."""


def escaped(text: str) -> str:
    r"""Escape text for TeX; replace characters without a TeX command with their code points.

    >>> print(escaped("50% of a_b, é, α, 中"))
    50\% of a\_b, \'{e}, $\alpha$, \texttt{U+4E2D}
    """
    return "".join(map(_sign, _SECOND_HYPHEN.sub(_APART, unicodedata.normalize("NFC", text))))


def _sign(sign: str) -> str:
    if sign == _APART:
        return "{-}"
    if sign in _TEX["signs"] or sign.isascii():
        return str(_TEX["signs"].get(sign, sign if sign.isprintable() else " "))
    base, *accents = list(unicodedata.normalize("NFD", sign))
    if base.isascii() and base.isalpha() and len(accents) == 1 and accents[0] in _TEX["accents"]:
        return f"\\{_TEX['accents'][accents[0]]}{{{base}}}"
    return f"\\texttt{{U+{ord(sign):04X}}}" if sign.isprintable() else " "


def written_forms(tables: Sequence[ReportTable], marks: Marks) -> Iterator[tuple[str, str]]:
    """Yield the file name and the content of every table in every format."""
    for table in tables:
        yield f"{table.name}.md", as_markdown(table)
        yield f"{table.name}.csv", as_csv(table)
        yield f"{table.name}.json", as_json(table)
        yield f"{table.name}.tex", as_latex(table, marks)


def as_markdown(table: ReportTable) -> str:
    """Format the table as Markdown, with its title and note."""
    right = frozenset(c for c in range(len(table.columns)) if table.form(c) is not str)
    rows = [
        [
            "; ".join([entry.text, f"one try {entry.one_try_text}", *entry.warnings])
            if isinstance(entry, ScoreEntry)
            else entry
            if isinstance(entry, str)
            else entry.text
            for entry in row
        ]
        for row in table.rows
    ]
    return f"**{table.title}**\n\n{markdown_table(table.full_columns, rows, right=right)}\n\n{table.note}\n"


def as_csv(table: ReportTable) -> str:
    """Format the table as CSV, with every number in full precision and in a separate column."""
    headings, rows = _flat(table)
    # A spreadsheet would interpret text that starts with one of these characters as a formula.
    signs = ("=", "+", "@", "\t")
    safe = [[f"'{v}" if isinstance(v, str) and v.startswith(signs) else v for v in row] for row in rows]
    return _csv_of(headings, safe)


def _csv_of(headings: Sequence[str], rows: Iterable[Iterable[object]]) -> str:
    """Return rows under headings as CSV; numbers have full precision, and an unknown number is an empty field."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(headings)
    writer.writerows(rows)
    return out.getvalue()


def as_json(table: ReportTable) -> str:
    """Return the rows of the table as JSON objects, with the CSV headings as keys; an unknown number is null."""
    headings, rows = _flat(table)
    records = [dict(zip(headings, row, strict=True)) for row in rows]
    return json.dumps(records, ensure_ascii=False, allow_nan=False, indent=1) + "\n"


def _flat(table: ReportTable) -> tuple[list[str], list[list[object]]]:
    """Return the headings and rows with every number in a separate column."""
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
    *("value", "low", "high", "one_try", "one_try_low", "one_try_high"),
    *("complete", "combinations", "ungraded", "format_failures"),
)


def _fields(table: ReportTable, column: int) -> tuple[str, ...]:
    """Return the CSV fields of a column, with the ends of intervals only if an entry has an interval."""
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


def paper_files(report: Report) -> Iterator[tuple[str, bytes]]:
    """Yield the name and the content of every file for a paper."""
    marks = significance_marks(report)
    for table in _metric_tables(report):
        yield f"{table.name.removeprefix('metric-')}.tex", as_latex(table, marks).encode("ascii")
    rows = list(tidy_rows(report))
    yield "scores.csv", tidy_csv(rows).encode()
    parquet = tidy_parquet(rows)
    if parquet is not None:
        yield "scores.parquet", parquet


def significance_marks(report: Report) -> Marks:
    """Mark each score of a tuned student with a star if its full marks differ from its base's."""
    cells = by_key(report.cells)
    signs = {}
    for change in report.changes:
        row = change.row
        cell = cells.get(CellKey(change.run, change.student, row.grader, row.setting, row.k))
        if cell is not None and row.found:
            signs[id(cell.scores[FULL_MARKS])] = "\\ensuremath{^{*}}"
    return Marks(signs, _STAR_NOTE)


_STAR_NOTE: Final = (
    "A star: full marks differ from the base's on the same combinations (p < .05, permutation test, corrected "
    "by Holm over the settings and k of the two students)."
)


def _metric_tables(report: Report) -> Iterator[ReportTable]:
    """Yield a table of all settings for each metric, with a row for each student and grader and a column for each k."""
    cells = by_key(report.cells)
    several = {"setting": len(report.settings) > 1, "grader": len(report.graders) > 1, "trained on": report.lineages}
    for metric in METRICS.values():
        rows: list[Row] = []
        for setting, grader, (run, student) in product(report.settings, report.graders, report.students):
            own = {k: cells.get(CellKey(run, student, grader, setting, k)) for k in report.ks}
            names = {
                "setting": setting,
                "grader": grader,
                "student": report.label(run, student),
                "trained on": short_name(report.training_of((run, student))),
            }
            shown = {name: value for name, value in names.items() if several.get(name, True)}
            if any(own.values()):
                rows.append({**shown, **{f"k = {k}": score_entry(cell, metric.name) for k, cell in own.items()}})
        if rows:
            label = metric.label.capitalize()
            note = f"{label}: {metric.meaning}. Best of the generations, mean over combinations, with 95% intervals."
            yield rows_as_table(f"metric-{metric.name.replace('_', '-')}", f"{label} by k", note, rows)


class TidyRow(NamedTuple):
    """One number from a report."""

    run: str
    student: str
    setting: str
    k: int
    grader: str
    metric: str
    value: float | None
    low: float | None
    """The lower end of the 95% interval; None if there are too few combinations for an interval."""
    high: float | None
    n: int
    """The number of combinations or texts behind the value; `unit` says which."""
    unit: str


def tidy_rows(report: Report) -> Iterator[TidyRow]:
    """Yield a row for each score of each cell."""
    for cell in report.cells:
        run, student, grader, setting, k = cell.key
        heads = run, student, setting, k, grader
        for name, s in cell.scores.items():
            one_try = (s.one_try, s.one_try_low, s.one_try_high)
            among_valid = (s.among_valid, s.among_valid_low, s.among_valid_high)
            yield TidyRow(*heads, name, s.value, s.low, s.high, s.complete, "combinations")
            yield TidyRow(*heads, f"{name}_one_try", *one_try, s.complete, "combinations")
            yield TidyRow(*heads, f"{name}_among_valid", *among_valid, s.valid_texts, "texts")
        full, written = cell.scores[FULL_MARKS], cell.written
        if full.woven is not None:
            woven = (full.woven, full.woven_low, full.woven_high)
            yield TidyRow(*heads, "woven_full_marks", *woven, full.complete, "combinations")
        yield TidyRow(*heads, "format_valid", cell.format_valid, None, None, written, "texts")
        if cell.cut is not None:
            yield TidyRow(*heads, "cut", cell.cut / written if written else None, None, None, written, "texts")


def tidy_csv(rows: Sequence[TidyRow]) -> str:
    """Format the rows as CSV."""
    return _csv_of(TidyRow._fields, rows)


def tidy_parquet(rows: Sequence[TidyRow]) -> bytes | None:
    """Encode the rows as Parquet; return None if pyarrow is not installed or there are no rows."""
    try:
        from pyarrow import csv as arrow_csv
        from pyarrow import float64, int64, parquet, string
    except ImportError:
        return None
    if not rows:
        return None
    types = dict.fromkeys(TidyRow._fields, string())
    types |= {"k": int64(), "n": int64(), "value": float64(), "low": float64(), "high": float64()}
    # Arrow's CSV reader does not import pandas, but its conversion of lists would if pandas is installed.
    options = arrow_csv.ConvertOptions(column_types=types)
    table = arrow_csv.read_csv(io.BytesIO(tidy_csv(rows).encode()), convert_options=options)
    out = io.BytesIO()
    parquet.write_table(table, out)
    return out.getvalue()
