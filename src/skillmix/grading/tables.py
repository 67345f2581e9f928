"""Find the rows of tables in free text and the values in their cells, and convert JSON to tables."""

import json
import re
import unicodedata
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Final

from skillmix.catalog.catalog import fold_name

_MARKUP = re.compile(r"[*_`\"“”«»]+|</?\w+ ?/?>")
_INVISIBLE = re.compile(r"[\ufe0e\ufe0f\u200b-\u200f\u2060\ufeff\u00ad]")
_TICKS: Final = dict.fromkeys("✓✔✅☑🗸", 1.0) | dict.fromkeys("✗✘❌✖☒❎", 0.0)
_WORDS: Final = dict.fromkeys(("yes", "true", "met", "pass", "passed", "one"), 1.0) | dict.fromkeys(
    ("no", "false", "not met", "fail", "failed", "zero"), 0.0
)
VALUE_SIGNS: Final = "\\d½" + "".join(_TICKS)
"""The first characters of values that are not words, for use inside a regular-expression character class."""
_SIGN = re.compile(rf"[{VALUE_SIGNS}]")
VALUE_WORD: Final = r"(?:yes|no|true|false|met|not met|pass(?:ed)?|fail(?:ed)?)\b"

# A decimal comma counts only if it cannot separate two numbers: "0,5" and "1,0", not "0,1".
_NUMBER = re.compile(
    r"(?P<number>[-+−]?(?:\d+(?:\.\d+|,[05]0?(?!\d))?|\.\d+))"
    r"(?:\s*+(?:\(\s*+)?(?:/|\bout of\b|\bof\b)\s*+(?P<worth>\d+(?:\.\d+)?)\s*+\)?)?"
    r"\s*+(?:(?:points?\b|pts?\b\.?|marks?\b)\s*+)?(?:earned|awarded)?",
    re.IGNORECASE,
)
_WORD = re.compile(
    r"(yes|no|true|false|met|not met|pass(?:ed)?|fail(?:ed)?|zero|one)\b(?:\s+points?\b)?(?!\.\s+[a-z])", re.IGNORECASE
)
# A sequence of blanks must not match two parts of an expression, because the search would try every division.
_REMARK = re.compile(r"\s*+(?:[.;]|\((?:[^()\d]|\d+(?= sentences?\b)|100(?=%))*+\)|[-–—:,;.(][^\d]*+)?\s*+")
_BRACKETED = re.compile(r"[(\[]([^()\[\]]++)[)\]]")
_SAME_AGAIN = re.compile(r"\s*+[(\[]\s*+([01])\s*+(?:points?\s*+)?[)\]]\s*+")


@lru_cache(maxsize=1 << 12)
def read_value(cell: str) -> float | None:
    """Parse the number in a cell, of any size; None if the cell as a whole is not a number.

    >>> [read_value(c) for c in ("**1**", "0/1", "1 point", "½", "✅", "１", "2", "N/A", "1/2", "0 (see 1)")]
    [1.0, 0.0, 1.0, 0.5, 1.0, 1.0, 2.0, None, None, None]
    """
    text = _plain(cell)
    bracketed = _BRACKETED.fullmatch(text)
    text = bracketed[1].strip() if bracketed else text
    ticks = {_TICKS[c] for c in text if c in _TICKS}
    ticked = ticks.pop() if len(ticks) == 1 else None
    if ticked is not None:
        text = "".join(c for c in text if c not in _TICKS).strip()
    if not text:
        return ticked
    number, rest = _leading_number(text)
    if number is None and ticked is not None:
        number, rest = ticked, text
    again = _SAME_AGAIN.fullmatch(rest)
    if number is None or (again is None and _REMARK.fullmatch(rest) is None):
        return None
    values = {number, *([ticked] if ticked is not None else []), *([float(again[1])] if again else [])}
    return number if len(values) == 1 else None


def has_value_sign(text: str) -> bool:
    """Return whether a text contains a digit, "½", or a tick or cross."""
    return _SIGN.search(text) is not None


def read_leading_value(text: str, *, words: bool = True) -> float | None:
    """Return the number at the start of a remark; None if the text after the number could be part of it.

    >>> [read_leading_value(t) for t in ("1. Well done", "0/1, none seen", "1 example is there", "0.5", "1-5")]
    [1.0, 0.0, None, 0.5, None]
    """
    text = _plain(text)
    if text[:1] in _TICKS:
        return _TICKS[text[0]]
    number, rest = _leading_number(text)
    if number is None or (not words and text[:1].isalpha()):
        return None
    return number if _GOES_NO_FURTHER.match(rest) else None


# A number must not continue as another number ("1-5", "0, 1"), an enumeration ("1) … 2) …") or a sentence
# ("1 example").
_GOES_NO_FURTHER = re.compile(r"\s*(?:$|[.,;:!\]](?!\s*\d)|[-–—(](?!\s*(?:\d|out of|of \d))|\(100\s?%\))")


def _plain(text: str) -> str:
    return _MARKUP.sub("", _INVISIBLE.sub("", text)).strip()


def _leading_number(text: str) -> tuple[float | None, str]:
    if not text.isascii():
        if len(text) == 1 and unicodedata.category(text) == "No":
            return unicodedata.numeric(text), ""
        text = unicodedata.normalize("NFKC", text.replace("½", "0.5"))
    word = _WORD.match(text)
    if word:
        return _WORDS[word[1].lower()], text[word.end() :]
    match = _NUMBER.match(text)
    if match is None:
        return None, text
    worth = match["worth"]
    if worth is not None and float(worth) != 1:
        return None, text  # a score out of two or ten is not on the scale of one point for each criterion
    return float(match["number"].replace(",", ".").replace("−", "-")), text[match.end() :]


_CELL_BORDER = re.compile(r"(?<!\\)\|")
_BORDER_LINE = re.compile(r"^[\s+|=:_\-–—─┼├┤┬┴╔╗╚╝═╠╣]*$")
_OTHER_BORDERS: Final = str.maketrans("│┃｜∣║", "|||||")
_QUOTED = re.compile(r"^(?:\s*>)+\s?")
_FENCE = re.compile(r"^\s*(?:```|~~~)")

_LABEL_HEADER = re.compile(
    r"^(?:(?:grading )?criteri(?:a|on)|skills?|rubric(?: items?)?|requirements?|items?|aspects?)\b"
)
_EARNED_HEADER = re.compile(r"\b(?:earned|awarded|actual (?:points?|scores?|marks?))\b")
_POINTS_WORD = re.compile(r"\b(?:points?|scores?|marks?)\b")
_GIVEN_WORD = re.compile(r"\b(?:given|obtained|received|achieved|scored)\b")
_POINTS_HEADER = re.compile(
    r"^(?:total )?(?:points?|scores?|grades?|marks?|pts?|results?|ratings?|values?"
    r"|met|satisfied|fulfilled|achieved|pass(?:ed)?|pass fail|yes no)(?: (?:0 1|0 or 1|(?:out of|max|maximum|of) 1))?$"
)
_WORTH_HEADER = re.compile(
    r"\b(?:possible|max|maximum|available|worth|weight|out of|deducted|deductions?|lost|penalty)\b"
)
_NUMBER_HEADER = re.compile(r"^(?:no|nr|number|id|index|rank)?$")


@dataclass(slots=True)
class Table:
    """Consecutive rows, with their header if they have one."""

    header: list[str] | None
    rows: list[list[str]] = field(default_factory=list)
    any_row_closed: bool = False
    last_row_open: bool = False
    """Whether the text ends in a row that may be cut off, because it lacks the closing border of other rows."""

    def take(self, cells: list[str], line: str, *, is_header: bool, is_last: bool) -> None:
        """Add a row, and record whether it has a closing border."""
        if not is_header:
            self.rows.append(cells)
        is_closed = line.rstrip().endswith("|")
        self.last_row_open = is_last and self.any_row_closed and not is_closed
        self.any_row_closed |= is_closed


_HTML_ROW = re.compile(r"<tr[^<>]{0,99}>|</tr>", re.IGNORECASE)
_HTML_CELL = re.compile(r"<(/?)t[dh][^<>]{0,99}>", re.IGNORECASE)
_HTML_TAG = re.compile(r"</?(?:table|thead|tbody|b|i|strong|em|code)(?: [^<>]{0,99})?>", re.IGNORECASE)


def _with_pipes(text: str) -> str:
    """Convert HTML tables to rows with '|', one on each line.

    >>> _with_pipes("<table><tr><td>Shows <b>metaphor</b></td><td>1</td></tr></table>").strip()
    '| Shows metaphor | 1 |'
    """
    lines = [_HTML_TAG.sub("", part) for part in _HTML_ROW.sub("\n", text).split("\n")]
    rows = [_HTML_CELL.sub(lambda tag: " |" if tag[1] else " ", line) for line in lines]
    return "\n".join(f"|{row}" if row != line else line for row, line in zip(rows, lines, strict=True))


def _lines(text: str) -> list[str]:
    """Split a text into lines, remove '>' and normalize borders; mark both ends of quotations and fences by a break."""
    text = text.translate(_OTHER_BORDERS) if not text.isascii() else text
    text = _with_pipes(text) if "<td" in text else text
    if ">" not in text and "```" not in text and "~~~" not in text:
        return text.splitlines()
    lines: list[str] = []
    was_quoted = False
    for line in text.splitlines():
        quotation = _QUOTED.match(line) if ">" in line else None
        if (quotation is not None) != was_quoted and line.strip():
            was_quoted = not was_quoted
            lines.append(_BREAK)
        bare = line[quotation.end() :] if quotation else line
        lines.append(_BREAK if _FENCE.match(bare) else bare)
    return lines


_BREAK: Final = "\x1e"


def parts_of(text: str, *, blank_lines_end_tables: bool = False) -> Iterator[Table | str]:
    """Yield the tables and the other lines of a text, in order.

    A header or a line of text ends a table. A blank line need not end a table, because models put blank lines between
    rows.
    """
    table: Table | None = None
    lines = _lines(text)
    for number, line in enumerate(lines):
        if _says_nothing(line, in_table=table is not None, blank_counts=blank_lines_end_tables):
            continue
        cells = split_row(line) if "|" in line else []
        # The last cell is tested first because it is quick: most rows end in 0 or 1, and no header does.
        is_header = cells != [] and cells[-1] not in ("0", "1") and _is_header(cells, lines, number)
        if table and (is_header or not cells):
            yield table
            table = None
        if cells:
            table = table or Table(header=cells if is_header else None)
            table.take(cells, line, is_header=is_header, is_last=number == len(lines) - 1)
        else:
            yield line
    if table:
        yield table


def _says_nothing(line: str, *, in_table: bool, blank_counts: bool) -> bool:
    """Return whether a line can be skipped: it is blank, a rule or a break, and does not end a table."""
    if "|" in line:
        return _BORDER_LINE.match(line) is not None
    if not in_table:
        return line == _BREAK or not line.strip()
    if line == _BREAK:
        return False
    return _BORDER_LINE.match(line) is not None and (line.strip() != "" or not blank_counts)


def split_row(line: str) -> list[str]:
    r"""Split a row with or without outer borders into cells; an escaped border is text.

    >>> split_row(r"| a | b\|c |"), split_row("a | 1")
    (['a', 'b|c'], ['a', '1'])
    """
    if "\\|" in line:
        cells = [cell.strip().replace("\\|", "|") for cell in _CELL_BORDER.split(line.strip())]
    else:
        cells = [cell.strip() for cell in line.strip().split("|")]
    if len(cells) > 1 and not cells[0]:
        cells = cells[1:]
    if len(cells) > 1 and not cells[-1]:
        cells = cells[:-1]
    return cells


def label_column(table: Table) -> int | None:
    """Return the index of the column headed by a word for criteria; None unless there is exactly one."""
    columns = [column for column, cell in enumerate(table.header or ()) if names_labels(fold_name(cell))]
    return columns[0] if len(columns) == 1 else None


def names_labels(header: str) -> bool:
    """Return whether a folded header belongs to a column of criteria."""
    return _LABEL_HEADER.match(header) is not None


def names_points(header: str) -> bool:
    """Return whether a folded header belongs to a column of points."""
    return _is_earned_header(header) or _POINTS_HEADER.match(header) is not None


def value_column(table: Table, labels: int, labelled_rows: list[list[str]]) -> int | str:
    """Return the column of the points earned, or the reason why none can be chosen."""
    header = [fold_name(cell) for cell in table.header or ()]
    columns = [column for column in range(len(header)) if column != labels]
    earned = [column for column in columns if _is_earned_header(header[column])]
    found = earned or [column for column in columns if _POINTS_HEADER.match(header[column])]
    if found:
        return found[0] if len(found) == 1 else _AMBIGUOUS
    width = max(len(row) for row in labelled_rows)
    worth = {c for c, cell in enumerate(header) if _WORTH_HEADER.search(cell)}
    numbering = {c for c, cell in enumerate(header) if c < labels and _NUMBER_HEADER.match(cell)}
    with_values = {c for row in labelled_rows for c, cell in enumerate(row) if read_value(cell) is not None}
    numeric = with_values - {labels} - worth - numbering
    if len(numeric) == 1:
        return numeric.pop()
    if numeric:
        return _AMBIGUOUS
    if worth:
        return NOT_A_GRADING
    return labels + 1 if width == labels + 2 else "the table has no column of points"


def _is_earned_header(folded: str) -> bool:
    if _EARNED_HEADER.search(folded):
        return True
    points = _POINTS_WORD.search(folded)
    return points is not None and _GIVEN_WORD.search(folded, points.end()) is not None


_AMBIGUOUS: Final = "more than one column of the table could be the points"
NOT_A_GRADING: Final = "the table gives the maximum points, not the points earned"


def _is_header(cells: list[str], lines: list[str], number: int) -> bool:
    """Return whether a row is a header: it is above a rule, or all its cells name columns."""
    # A word may be a value, but "Met" may also head a column.
    if any(not cell.isalpha() and read_value(cell) is not None for cell in cells[1:]):
        return False
    following = next((line for line in lines[number + 1 : number + 3] if line.strip()), "")
    if "-" in following and _BORDER_LINE.match(following) and ("|" in following or following.count("-") > 2):
        return True
    folded = [fold_name(cell) for cell in cells]
    named = sum(names_labels(cell) or names_points(cell) for cell in folded)
    return len(cells) > 1 and named == len(cells)


_START: Final = re.compile(r"\{(?=\s*+\")|\[(?=\s*+\{)")
_MOST_ATTEMPTS: Final = 40
"""The maximum number of brackets to try as JSON, because a hostile reply may contain thousands that never close."""
_NAMES: Final = ("name", "label", "title", "id")
_LABEL: Final = "Criterion"
_BETWEEN_WORDS: Final = re.compile(r"_|(?<=[a-z])(?=[A-Z])")
_NO_CELL: Final = re.compile(r"[\s|│┃｜∣║<>`\\]+")
"""Characters that end a cell or a row. They are replaced so that a quoted text cannot move the points."""


class _Object(list[tuple[str, object]]):
    """A JSON object as a list of pairs, in which a name may occur twice."""


_DECODER: Final = json.JSONDecoder(object_pairs_hook=_Object)


def with_json_as_tables(reply: str) -> str:
    """Replace each JSON object or list in a reply by tables, and leave the rest unchanged.

    >>> print(with_json_as_tables('{"metaphor": 1, "on_topic": false}').strip())
    | Criterion | Points Earned |
    |---|---|
    | metaphor | 1 |
    | on topic | 0 |
    """
    if '"' not in reply or "{" not in reply:
        return reply
    parts: list[str] = []
    done = position = 0
    for _ in range(_MOST_ATTEMPTS):
        start = _START.search(reply, position)
        if start is None:
            break
        try:
            value, position = _DECODER.raw_decode(reply, start.start())
        except (ValueError, RecursionError):
            position = start.start() + 1
            continue
        parts += (reply[done : start.start()], "\n\n", *_tables(value), "\n")
        done = position
    return "".join((*parts, reply[done:]))


def _tables(value: object) -> Iterator[str]:
    """Yield JSON as tables: an object with points becomes a row, an object of plain values a two-column table."""
    if isinstance(value, _Object) and not _is_row(value):
        plain = [(name, item) for name, item in value if not isinstance(item, list)]
        yield from _table([_Object([(_LABEL, _words(name)), ("Points Earned", item)]) for name, item in plain])
        rows = [(name, item) for name, item in value if isinstance(item, _Object) and _is_row(item)]
        yield from _table([_Object([(_LABEL, _words(name)), *item]) for name, item in rows])
        deeper = [item for _, item in value if isinstance(item, list) and not _is_row(item)]
    else:
        items = [value] if isinstance(value, _Object) else value if isinstance(value, list) else []
        yield from _table([item for item in items if isinstance(item, _Object) and _is_row(item)])
        deeper = [item for item in items if isinstance(item, list) and not _is_row(item)]
    for item in deeper:
        yield from _tables(item)


def _is_row(value: object) -> bool:
    """Return whether a value is an object with a field for its points."""
    fields = value if isinstance(value, _Object) else ()
    return any(names_points(fold_name(_words(name))) for name, item in fields if not isinstance(item, list))


def _table(rows: list[_Object]) -> Iterator[str]:
    names = list(dict.fromkeys(name for row in rows for name, _ in row))
    if not names:
        return
    headers = [_words(name) for name in names]
    if not any(names_labels(fold_name(header)) for header in headers):
        headers = [_LABEL if header.casefold() in _NAMES else header for header in headers]
    yield from (_row(headers), _row(["---"] * len(names)).replace(" ", ""))
    for row in rows:
        cells: dict[str, list[str]] = {name: [] for name in names}
        for name, item in row:
            text = "" if item is None or isinstance(item, list) else str(int(item) if isinstance(item, bool) else item)
            cells[name].append(_NO_CELL.sub(" ", text).strip())
        # If a name has two values, they are joined, so that the cell cannot be parsed as a value.
        yield _row([" and ".join(values) for values in cells.values()])
    yield "\n"


def _row(cells: list[str]) -> str:
    return f"| {' | '.join(cells)} |\n"


def _words(name: str) -> str:
    return _NO_CELL.sub(" ", _BETWEEN_WORDS.sub(" ", name)).strip()
