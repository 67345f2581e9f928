"""Tables for a paper: booktabs, as wide as the text at most, in plain ASCII so that every TeX can read them."""

import re
import unicodedata
from collections.abc import Iterator, Sequence
from typing import Final

from skillmix.render.report.table import Entry, ReportTable, Score

_TALL: Final = 8
_LOW: Final = 42
"""Rows that fit on a page, with scores in them (several lines each) and without."""
_LONG_WORDS: Final = 48
"""Letters beyond which a column of words is broken into lines."""


def as_latex(table: ReportTable) -> str:
    """The table with caption and label; one that is longer than a page in parts under one number."""
    has_scores = any(table.form(column) is Score for column in range(len(table.columns)))
    most = _TALL if has_scores else _LOW
    parts = [table.rows[start : start + most] for start in range(0, len(table.rows), most)] or [()]
    lines = ["% Needs \\usepackage{booktabs} and \\usepackage{graphicx}."]
    for number, rows in enumerate(parts):
        lines += ["\\begin{table}", "\\centering\\small"]
        if number:
            lines += ["\\addtocounter{table}{-1}", f"\\caption{{{escaped(table.title)}, continued.}}"]
        else:
            lines += [f"\\caption{{{escaped(table.title)}}}", f"\\label{{tab:{table.name}}}"]
        # What is wider than the text is made smaller, as a whole.
        lines += ["\\sbox0{%", *_tabular(table, rows), "}%"]
        lines += ["\\ifdim\\wd0>\\linewidth\\resizebox{\\linewidth}{!}{\\usebox0}\\else\\usebox0\\fi"]
        if number == len(parts) - 1:
            lines.append(f"\\par\\smallskip\\parbox{{\\linewidth}}{{\\footnotesize {escaped(table.note)}}}")
        lines.append("\\end{table}")
    return "\n".join(lines) + "\n"


def _tabular(table: ReportTable, rows: Sequence[Sequence[Entry]]) -> Iterator[str]:
    yield f"\\begin{{tabular}}{{{''.join(_alignment(table, column) for column in range(len(table.columns)))}}}"
    yield "\\toprule"
    if table.groups:
        yield " & ".join(f"\\multicolumn{{{width}}}{{c}}{{{escaped(g)}}}" for g, width in table.groups) + " \\\\"
        yield " ".join(_rules(table))
    yield " & ".join(_heading(table, column) for column in range(len(table.columns))) + " \\\\"
    yield "\\midrule"
    for row in rows:
        yield " & ".join(map(_entry, row)) + " \\\\"
    yield "\\bottomrule"
    yield "\\end{tabular}%"


def _rules(table: ReportTable) -> Iterator[str]:
    """A line under each heading that stands over several columns."""
    first = 1
    for heading, width in table.groups:
        if heading:
            yield f"\\cmidrule(lr){{{first}-{first + width - 1}}}"
        first += width


def _alignment(table: ReportTable, column: int) -> str:
    if table.form(column) is not str:
        return "r"
    longest = max((len(entry) for row in table.rows if isinstance(entry := row[column], str)), default=0)
    return "p{0.6\\linewidth}" if longest > _LONG_WORDS else "l"


def _heading(table: ReportTable, column: int) -> str:
    """Over numbers one word below the other, which saves the width."""
    words = escaped(table.columns[column])
    if table.form(column) is str or " " not in words:
        return words
    return _stacked(words.split(" "))


def _entry(entry: Entry) -> str:
    if isinstance(entry, str):
        return escaped(entry) if len(entry) <= _LONG_WORDS else _broken(entry)
    if not isinstance(entry, Score):
        return escaped(entry.text)
    if entry.value is None:
        return _stacked([escaped(entry.text), *map(_small, entry.warnings)])
    value, _, interval = entry.text.partition(" ")
    single, _, its_interval = entry.one_try_text.partition(" ")
    small = [interval, f"one try {single}", its_interval, *entry.warnings]
    return _stacked([escaped(value), *map(_small, small)])


def _broken(text: str) -> str:
    """Words for a column that is broken into lines, even where there is no space: specs and paths have none."""
    return "\\sloppy\\hspace{0pt}" + "\\allowbreak{}".join(map(escaped, _BREAKS.split(text)))


_BREAKS: Final = re.compile("(?<=[/?&=:._])(?=[^ ])")


def _small(text: str) -> str:
    return f"\\scriptsize {escaped(text)}"


def _stacked(lines: Sequence[str]) -> str:
    return "\\shortstack[r]{" + "\\\\".join(lines) + "}"


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
"""Stands for a hyphen after another: as they are, TeX would make one dash of the two."""
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
"""Letters that TeX has by name; the others look like Latin ones."""


def escaped(text: str) -> str:
    r"""Text as TeX prints it; a sign that it has no name for is shown by its number.

    >>> print(escaped("50 % of a_b, é, α, 中"))
    50 \% of a\_b, \'{e}, $\alpha$, \texttt{U+4E2D}
    """
    return "".join(map(_sign, _SECOND_HYPHEN.sub(_APART, text)))


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
    """A Greek letter by its name."""
    kind, _, name = unicodedata.name(sign, "").rpartition(" ")
    if kind in ("GREEK SMALL LETTER", "GREEK CAPITAL LETTER"):
        letter = name.replace("LAMDA", "LAMBDA").lower()
        letter = letter.capitalize() if "CAPITAL" in kind else letter
        if f"{letter} " in _GREEK:
            return f"$\\{letter}$"
    return None
