"""Write a table as LaTeX with booktabs, no wider than the text, in ASCII so that every TeX can read it."""

import re
import unicodedata
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from textwrap import wrap
from typing import Final

from skillmix.report.tables.table import Entry, ReportTable, ScoreEntry

_LINES: Final = 45
"""Lines that fit on a page below the caption."""
_HEADER: Final = 5
"""Lines that the headings and rules take."""
_WIDE: Final = 6
_NARROW: Final = 9
"""Columns that fit side by side, of scores and of plain numbers; further groups go below."""
_LONG_WORDS: Final = 48
"""A column with longer words is broken into lines."""


def as_latex(table: ReportTable) -> str:
    """The table with caption and label; a table longer than a page is split into parts under one number."""
    lines = ["% Needs \\usepackage{booktabs} and \\usepackage{graphicx}."]
    pages = list(_pages(table))
    for number, blocks in enumerate(pages):
        lines += ["\\begin{table}", "\\centering\\small"]
        if number:
            lines += ["\\addtocounter{table}{-1}", f"\\caption{{{escaped(table.title)}, continued.}}"]
        else:
            lines += [f"\\caption{{{escaped(table.title)}}}", f"\\label{{tab:{table.name}}}"]
        for block in blocks:
            # A block that is wider than the text is scaled down.
            lines += ["\\sbox0{%", *_tabular(table, block), "}%"]
            lines.append("\\ifdim\\wd0>\\linewidth\\resizebox{\\linewidth}{!}{\\usebox0}\\else\\usebox0\\fi")
            lines.append("\\par\\smallskip")
        if number == len(pages) - 1:
            lines.append(f"\\parbox{{\\linewidth}}{{\\footnotesize {escaped(table.note)}}}")
        lines.append("\\end{table}")
    return "\n".join(lines) + "\n"


@dataclass(frozen=True, slots=True)
class _Block:
    """Some rows and some columns of a table."""

    rows: Sequence[Sequence[Entry]]
    columns: Sequence[int]
    groups: Sequence[tuple[str, int]]


def _has_scores(table: ReportTable) -> bool:
    return any(table.form(column) is ScoreEntry for column in range(len(table.columns)))


def _pages(table: ReportTable) -> Iterator[list[_Block]]:
    """The blocks of each page; every page leaves room for the note."""
    room = _LINES - len(wrap(table.note, 100))
    page, left = list[_Block](), room
    for rows in _pieces(table.rows, room - _HEADER):
        for columns, groups in _panels(table):
            height = _HEADER + sum(map(_height, rows))
            if page and height > left:
                yield page
                page, left = [], room
            page.append(_Block(rows, columns, groups))
            left -= height
    yield page


def _pieces(rows: Sequence[Sequence[Entry]], max_height: int) -> Iterator[list[Sequence[Entry]]]:
    """Rows that fit on a page together."""
    piece, height = list[Sequence[Entry]](), 0
    for row in rows:
        if piece and height + _height(row) > max_height:
            yield piece
            piece, height = [], 0
        piece.append(row)
        height += _height(row)
    yield piece


def _height(row: Sequence[Entry]) -> int:
    """Lines that a row takes, with the space below it."""
    lines = [
        5 + len(e.warnings) if isinstance(e, ScoreEntry) else len(e) // 40 + 1 if isinstance(e, str) else 1 for e in row
    ]
    return max(lines)


def _panels(table: ReportTable) -> Iterator[tuple[list[int], list[tuple[str, int]]]]:
    """The columns of each panel: the first group, which has the names, and as many other groups as fit."""
    if not table.groups:
        yield list(range(len(table.columns))), []
        return
    (_, names), *others = table.groups
    max_columns = _WIDE if _has_scores(table) else _NARROW
    columns, groups, first = list(range(names)), [table.groups[0]], names
    for group in others:
        if len(columns) > names and len(columns) - names + group[1] > max_columns:
            yield columns, groups
            columns, groups = list(range(names)), [table.groups[0]]
        columns += range(first, first + group[1])
        groups.append(group)
        first += group[1]
    yield columns, groups


def _tabular(table: ReportTable, block: _Block) -> Iterator[str]:
    yield f"\\begin{{tabular}}{{{''.join(_alignment(table, column) for column in block.columns)}}}"
    yield "\\toprule"
    if block.groups:
        yield " & ".join(f"\\multicolumn{{{width}}}{{c}}{{{escaped(g)}}}" for g, width in block.groups) + " \\\\"
        yield " ".join(_rules(block.groups))
    yield " & ".join(_heading(table, column) for column in block.columns) + " \\\\"
    yield "\\midrule"
    for number, row in enumerate(block.rows):
        if number and _has_scores(table):
            yield "\\addlinespace"
        yield " & ".join(_entry(row[column]) for column in block.columns) + " \\\\"
    yield "\\bottomrule"
    yield "\\end{tabular}%"


def _rules(groups: Sequence[tuple[str, int]]) -> Iterator[str]:
    """A rule under each group heading."""
    first = 1
    for heading, width in groups:
        if heading:
            yield f"\\cmidrule(lr){{{first}-{first + width - 1}}}"
        first += width


def _alignment(table: ReportTable, column: int) -> str:
    if table.form(column) is not str:
        return "r"
    longest = max((len(entry) for row in table.rows if isinstance(entry := row[column], str)), default=0)
    return "p{0.6\\linewidth}" if longest > _LONG_WORDS else "l"


def _heading(table: ReportTable, column: int) -> str:
    """A heading; over numbers it is broken into short lines to save width."""
    words = table.columns[column]
    if table.form(column) is str:
        return escaped(words)
    lines = map(escaped, wrap(words, _HEADING))
    return "\\shortstack[r]{" + "\\\\".join(lines) + "}"


_HEADING: Final = 9


def _entry(entry: Entry) -> str:
    if isinstance(entry, str):
        return escaped(entry) if len(entry) <= _LONG_WORDS else _broken(entry)
    if not isinstance(entry, ScoreEntry):
        return escaped(entry.text)
    if entry.score.value is None:
        return _stacked([escaped(entry.text), *map(_small, entry.warnings)])
    value, _, interval = entry.text.partition(" ")
    single, _, its_interval = entry.one_try_text.partition(" ")
    small = [interval, f"one try {single}", its_interval, *entry.warnings]
    return _stacked([escaped(value), *map(_small, small)])


def _broken(text: str) -> str:
    """Text that TeX may break even where there is no space, as in specs and paths."""
    return "\\sloppy\\hspace{0pt}" + "\\allowbreak{}".join(map(escaped, _BREAKS.split(text)))


_BREAKS: Final = re.compile("(?<=[/?&=:._])(?=[^ ])")


def _small(text: str) -> str:
    return f"\\scriptsize {escaped(text)}"


def _stacked(lines: Sequence[str]) -> str:
    """Lines in one cell, with the first line level with the rest of the row."""
    return "\\begin{tabular}[t]{@{}r@{}}" + "\\\\".join(lines) + "\\end{tabular}"


_SIGNS: Final = {
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
    "|": r"\textbar{}",
    # At the start of a line TeX would take these for an option of the line break before it.
    "[": "{[}",
    "]": "{]}",
    "*": "{*}",
    "−": "$-$",
    "–": "--",
    "—": "---",
    "…": r"\ldots{}",
    "“": "``",
    "”": "''",
    "„": ",,",
    "‘": "`",
    "’": "'",
    "×": r"$\times$",
    "÷": r"$\div$",
    "±": r"$\pm$",
    "·": r"$\cdot$",
    "≥": r"$\geq$",
    "≤": r"$\leq$",
    "≠": r"$\neq$",
    "≈": r"$\approx$",
    "∞": r"$\infty$",
    "→": r"$\rightarrow$",
    "←": r"$\leftarrow$",
    "°": r"$^\circ$",
    "µ": r"$\mu$",
    "§": r"\S{}",
    "£": r"\pounds{}",
    "©": r"\copyright{}",
    "ß": r"\ss{}",
    "æ": r"\ae{}",
    "Æ": r"\AE{}",
    "œ": r"\oe{}",
    "Œ": r"\OE{}",
    "ø": r"\o{}",
    "Ø": r"\O{}",
    "ł": r"\l{}",
    "Ł": r"\L{}",
    "ı": r"\i{}",
}
_SECOND_HYPHEN: Final = re.compile("(?<=-)-")
_APART: Final = "\ue000"
"""A placeholder for a hyphen after a hyphen, which TeX would join to a dash."""
_ACCENTS: Final = {
    "\u0300": r"\`",
    "\u0301": r"\'",
    "\u0302": r"\^",
    "\u0303": r"\~",
    "\u0304": r"\=",
    "\u0306": r"\u",
    "\u0307": r"\.",
    "\u0308": r"\"",
    "\u030a": r"\r",
    "\u030b": r"\H",
    "\u030c": r"\v",
    "\u0327": r"\c",
}
_GREEK: Final = (
    "alpha beta gamma delta epsilon zeta eta theta iota kappa lambda mu nu xi pi rho sigma tau upsilon phi chi psi "
    "omega Gamma Delta Theta Lambda Xi Pi Sigma Upsilon Phi Psi Omega "
)
"""Letters that TeX has by name; the other Greek letters look like Latin ones."""


def escaped(text: str) -> str:
    r"""Text escaped for TeX; a character without a TeX name is shown by its code.

    >>> print(escaped("50 % of a_b, é, α, 中"))
    50 \% of a\_b, \'{e}, $\alpha$, \texttt{U+4E2D}
    """
    return "".join(map(_sign, _SECOND_HYPHEN.sub(_APART, unicodedata.normalize("NFC", text))))


def _sign(sign: str) -> str:
    if sign == _APART:
        return "{-}"
    if sign in _SIGNS:
        return _SIGNS[sign]
    if sign.isascii():
        return sign if sign.isprintable() else " "
    base, *accents = list(unicodedata.normalize("NFD", sign))
    if base.isascii() and base.isalpha() and len(accents) == 1 and accents[0] in _ACCENTS:
        return f"{_ACCENTS[accents[0]]}{{{base}}}"
    return _letter(sign) or (f"\\texttt{{U+{ord(sign):04X}}}" if sign.isprintable() else " ")


def _letter(sign: str) -> str | None:
    """The TeX name of a Greek letter."""
    kind, _, name = unicodedata.name(sign, "").rpartition(" ")
    if kind in ("GREEK SMALL LETTER", "GREEK CAPITAL LETTER"):
        letter = name.replace("LAMDA", "LAMBDA").lower()
        letter = letter.capitalize() if "CAPITAL" in kind else letter
        if f"{letter} " in _GREEK:
            return f"$\\{letter}$"
    return None
