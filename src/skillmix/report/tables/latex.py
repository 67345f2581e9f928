"""Write a table as LaTeX with booktabs: one line for each row, no wider than the text.

The file is in ASCII, so that every TeX can read it. The float is as wide as a column if the table fits there, and as
wide as the page otherwise. A table longer than a page is split into parts under one number. In columns of scores the
best value is bold.
"""

import re
import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from textwrap import wrap
from types import MappingProxyType
from typing import Final

from skillmix.report.tables.scores import SCORE_NOTE
from skillmix.report.tables.table import Entry, ReportTable, ScoreEntry
from skillmix.scores.cells import Score

_LINES: Final = 46
"""Lines that fit on a page below the caption."""
_HEADER: Final = 4
"""Lines that the headings and rules take."""
_COLUMN: Final = 226.0
_PAGE: Final = 465.0
"""The widths of a column and of a page, in points, in a two-column article."""
_LETTER: Final = 4.1
_SMALL_LETTER: Final = 3.4
"""The mean widths of a letter in points, in the font of the table and in that of intervals."""
_BETWEEN: Final = 8.0
"""The space between two columns, in points."""
_LONG_WORDS: Final = 40
"""A column with longer words is broken into lines."""
_SPACE: Final = "\\setlength{\\tabcolsep}{4pt}"


@dataclass(frozen=True, slots=True)
class Marks:
    """Signs after scores, such as a star for a difference outside noise, and the sentence that explains them."""

    signs: Mapping[int, str] = field(default_factory=lambda: MappingProxyType({}))
    """By the identity of the score, since several tables show one score."""
    note: str = ""
    """Printed under a table that has such a sign."""

    def sign(self, score: Score) -> str:
        """The sign of a score; empty for most."""
        return self.signs.get(id(score), "")


NO_MARKS: Final = Marks()
_SCORE_NOTE: Final = "Scores: best of the generations, mean over complete combinations, with 95 % intervals."
"""Stands for the note of the page, whose entries have several lines."""
_INCOMPLETE: Final = "\\ensuremath{^\\circ}"


def as_latex(table: ReportTable, marks: Marks = NO_MARKS) -> str:
    """The table with caption and label, in one float if it fits on a page."""
    lines = ["% Needs \\usepackage{booktabs} and \\usepackage{graphicx}."]
    printer = _Printer(table, marks)
    pages = list(printer.pages())
    for number, blocks in enumerate(pages):
        lines += [f"\\begin{{{printer.environment}}}", f"\\centering\\small{_SPACE}"]
        if number:
            lines += ["\\addtocounter{table}{-1}", f"\\caption{{{escaped(table.title)}, continued.}}"]
        else:
            lines += [f"\\caption{{{escaped(table.title)}}}", f"\\label{{tab:{table.name}}}"]
        for block in blocks:
            # A block that is wider than the text is scaled down.
            lines += ["\\sbox0{%", *printer.tabular(block), "}%"]
            lines.append("\\ifdim\\wd0>\\linewidth\\resizebox{\\linewidth}{!}{\\usebox0}\\else\\usebox0\\fi")
            lines.append("\\par\\medskip")
        if number == len(pages) - 1:
            lines.append(f"\\parbox{{\\linewidth}}{{\\footnotesize\\raggedright {escaped(printer.note)}}}")
        lines.append(f"\\end{{{printer.environment}}}")
    return "\n".join(lines) + "\n"


@dataclass(frozen=True, slots=True)
class _Block:
    """Some rows and some columns of a table; the rows by their index."""

    rows: Sequence[int]
    columns: Sequence[int]
    groups: Sequence[tuple[str, int]]


class _Printer:
    """Prints the parts of one table."""

    def __init__(self, table: ReportTable, marks: Marks) -> None:
        self._table = table
        self._marks = marks
        self._forms = [table.form(column) for column in range(len(table.columns))]
        self._long = {c for c in range(len(table.columns)) if _longest(table, c) > _LONG_WORDS}
        self._share = 0.6 / max(1, len(self._long))
        self._widths = [self._width(column) for column in range(len(table.columns))]
        self._best = set(_best_entries(table))
        self._rows = _with_blocks(table)

    @property
    def environment(self) -> str:
        """The environment: as wide as a column if the table fits there."""
        return "table" if sum(self._widths) <= _COLUMN and not self._table.groups else "table*"

    @property
    def note(self) -> str:
        """The note of the table, and the meaning of the signs that it has."""
        scores = [entry.score for row in self._table.rows for entry in row if isinstance(entry, ScoreEntry)]
        notes = [self._table.note.replace(SCORE_NOTE, _SCORE_NOTE)] if self._table.note else []
        if self._best:
            notes.append("Bold: the best of the rows that can be compared.")
        if any(map(self._marks.sign, scores)):
            notes.append(self._marks.note)
        if any(_is_incomplete(score) for score in scores):
            notes.append("A circle (°): some texts are not graded.")
        return " ".join(notes)

    def pages(self) -> Iterator[list[_Block]]:
        """The blocks of each page; every page leaves room for the note."""
        letters = (_COLUMN if self.environment == "table" else _PAGE) / 3.9
        room = _LINES - len(wrap(self.note, int(letters)))
        page, left = list[_Block](), room
        for rows in self._pieces(room - _HEADER):
            for columns, groups in self._panels():
                height = _HEADER + sum(map(self._height, rows))
                if page and height > left:
                    yield page
                    page, left = [], room
                page.append(_Block(rows, columns, groups))
                left -= height
        yield page

    def _pieces(self, max_height: int) -> Iterator[list[int]]:
        """Rows that fit on a page together."""
        piece, height = list[int](), 0
        for index in range(len(self._table.rows)):
            own = self._height(index)
            if piece and height + own > max_height:
                yield piece
                piece, height = [], 0
            piece.append(index)
            height += own
        yield piece

    def _height(self, index: int) -> int:
        """Lines that a row takes."""
        return max((len(entry) // 40 + 1 for entry in self._table.rows[index] if isinstance(entry, str)), default=1)

    def _panels(self) -> Iterator[tuple[list[int], list[tuple[str, int]]]]:
        """The columns of each panel: the first group, which has the names, and as many other groups as fit."""
        table = self._table
        if not table.groups:
            yield list(range(len(table.columns))), []
            return
        (_, names), *others = table.groups
        columns, groups, first = list(range(names)), [table.groups[0]], names
        for group in others:
            added = list(range(first, first + group[1]))
            if len(columns) > names and sum(self._widths[c] for c in (*columns, *added)) > _PAGE:
                yield columns, groups
                columns, groups = list(range(names)), [table.groups[0]]
            columns += added
            groups.append(group)
            first += group[1]
        yield columns, groups

    def tabular(self, block: _Block) -> Iterator[str]:
        """The lines of a block."""
        yield f"\\begin{{tabular}}{{@{{}}{''.join(self._alignment(column) for column in block.columns)}@{{}}}}"
        yield "\\toprule"
        if block.groups:
            yield " & ".join(f"\\multicolumn{{{width}}}{{c}}{{{escaped(g)}}}" for g, width in block.groups) + " \\\\"
            yield " ".join(_rules(block.groups))
        yield " & ".join(self._heading(column) for column in block.columns) + " \\\\"
        yield "\\midrule"
        for index in block.rows:
            if index in self._rows.starts and index != block.rows[0]:
                yield "\\addlinespace"
            yield " & ".join(self._entry(index, column, block) for column in block.columns) + " \\\\"
        yield "\\bottomrule"
        yield "\\end{tabular}%"

    def _entry(self, index: int, column: int, block: _Block) -> str:
        entry = self._table.rows[index][column]
        if isinstance(entry, str):
            if (index, column) in self._rows.repeated and index != block.rows[0]:
                return ""
            return _broken(entry) if column in self._long else escaped(entry)
        if not isinstance(entry, ScoreEntry):
            return escaped(entry.text)
        value, _, interval = entry.text.partition(" ")
        shown = escaped(value)
        if (index, column) in self._best:
            shown = f"\\textbf{{{shown}}}"
        sign = self._marks.sign(entry.score) + (_INCOMPLETE if _is_incomplete(entry.score) else "")
        small = f" {{\\scriptsize {escaped(interval)}}}" if interval else ""
        return f"{shown}{sign}{small}"

    def _alignment(self, column: int) -> str:
        if self._forms[column] is not str:
            return "l" if self._forms[column] is ScoreEntry else "r"
        return f"p{{{self._share:.2f}\\linewidth}}" if column in self._long else "l"

    def _heading(self, column: int) -> str:
        """A heading; over numbers it is broken into short lines to save width."""
        words = self._table.columns[column]
        lines = _heading_lines(words)
        if self._forms[column] is str or len(lines) == 1:
            return escaped(words)
        side = "l" if self._forms[column] is ScoreEntry else "r"
        return f"\\shortstack[{side}]{{" + "\\\\".join(map(escaped, lines)) + "}"

    def _width(self, column: int) -> float:
        """The width of a column in points, roughly."""
        heading = self._table.columns[column]
        form = self._forms[column]
        letters = len(heading) if form is str else max(map(len, _heading_lines(heading)))
        widths = [letters * _LETTER, *(self._entry_width(row[column]) for row in self._table.rows)]
        return max(widths) + _BETWEEN

    def _entry_width(self, entry: Entry) -> float:
        if isinstance(entry, str):
            return len(entry) * _LETTER if len(entry) <= _LONG_WORDS else self._share * _PAGE
        if not isinstance(entry, ScoreEntry):
            return len(entry.text) * _LETTER
        value, _, interval = entry.text.partition(" ")
        return (len(value) + 1.5) * _LETTER + len(interval) * _SMALL_LETTER


def _longest(table: ReportTable, column: int) -> int:
    return max((len(entry) for row in table.rows if isinstance(entry := row[column], str)), default=0)


def _heading_lines(words: str) -> list[str]:
    """A heading in short lines, none of which breaks a word."""
    return wrap(words, 11, break_long_words=False, break_on_hyphens=False) or [""]


def _is_incomplete(score: Score) -> bool:
    return bool(score.complete < score.combinations or score.ungraded)


_COMPARED: Final = frozenset({"student", "trained on", "base", "conversations"})
"""Columns in which rows that are compared may differ."""


def _best_entries(table: ReportTable) -> Iterator[tuple[int, int]]:
    """The row and the column of the best score of each column, among rows that agree in all other names."""
    contexts: dict[tuple[str, ...], list[int]] = {}
    for index, row in enumerate(table.rows):
        pairs = zip(table.columns, row, strict=True)
        others = (entry for name, entry in pairs if isinstance(entry, str) and name not in _COMPARED and entry != "–")
        contexts.setdefault(tuple(others), []).append(index)
    for column in range(len(table.columns)):
        for rows in contexts.values():
            # Values that print alike are equally good.
            values = {i: e.text.partition(" ")[0] for i in rows if isinstance(e := table.rows[i][column], ScoreEntry)}
            known = {i: text for i, text in values.items() if text != "–"}
            if len(set(known.values())) > 1:
                best = max(known.values(), key=float)
                yield from ((i, column) for i, text in known.items() if text == best)


@dataclass(frozen=True, slots=True)
class _RowBlocks:
    """Rows that begin with the same name form a block."""

    starts: frozenset[int] = frozenset()
    repeated: frozenset[tuple[int, int]] = frozenset()
    """The row and the column of names that the row above already has."""


def _with_blocks(table: ReportTable) -> _RowBlocks:
    """The blocks of a table whose first column, a setting, is constant over several rows."""
    if not table.columns or table.columns[0] != "setting":
        return _RowBlocks()
    names = [row[0] for row in table.rows]
    starts = {i for i, name in enumerate(names) if i == 0 or names[i - 1] != name}
    return _RowBlocks(frozenset(starts), frozenset((i, 0) for i in range(len(names)) if i not in starts))


def _rules(groups: Sequence[tuple[str, int]]) -> Iterator[str]:
    """A rule under each group heading."""
    first = 1
    for heading, width in groups:
        if heading:
            yield f"\\cmidrule(lr){{{first}-{first + width - 1}}}"
        first += width


def _broken(text: str) -> str:
    """Text that TeX may break even where there is no space, as in specs and paths."""
    return "\\sloppy\\hspace{0pt}" + "\\allowbreak{}".join(map(escaped, _BREAKS.split(text)))


_BREAKS: Final = re.compile("(?<=[/?&=:._])(?=[^ ])")


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
