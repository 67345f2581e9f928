"""Format words, numbers and tables for the terminal, notebooks and pages."""

import re
from collections.abc import Callable, Iterable, Sequence
from difflib import SequenceMatcher
from html import escape
from itertools import zip_longest
from math import ceil
from textwrap import fill, wrap
from typing import Final, TypeVar

_INVISIBLE: Final = re.compile(
    "[\x00-\x08\x0e-\x1b\x7f-\x84\x86-\x9f"  # control characters, with which the escape sequences of a terminal start
    "\xad\u061c\u180e\u200b-\u200f\u202a-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb"  # marks without a glyph and bidi marks
    "\ud800-\udfff\U000e0000-\U000e0fff]"  # surrogate halves and tags
)
_FILLERS: Final = re.compile("[\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180f\u3164\ufe00-\ufe0f\uffa0]")
"""Characters that are invisible on their own but change neighboring characters."""
_SPACES: Final = re.compile(r"[\t-\r\x1c-\x1f\x85\u2028\u2029]")


def printable(text: str) -> str:
    r"""Remove control sequences and invisible characters.

    >>> printable("a\x1b[31mred\u202e b\nc")
    'a[31mred b c'
    """
    return _INVISIBLE.sub("", _SPACES.sub(" ", text))


def without_invisible(text: str) -> str:
    r"""Remove control sequences and characters without a glyph, but keep spaces and line ends.

    >>> without_invisible("k\u200be\ufe0fy\n")
    'key\n'
    """
    return _INVISIBLE.sub("", _FILLERS.sub("", text))


def one_line(text: str) -> str:
    r"""Make text printable on one line, with each sequence of spaces reduced to one.

    >>> one_line(" a \r\n\tb ")
    'a b'
    """
    return " ".join(printable(text).split())


def plural(count: int, noun: str) -> str:
    """Format a count with its noun in the singular or the plural.

    >>> plural(1, "word"), plural(2000, "word")
    ('1 word', '2,000 words')
    """
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


def are(count: int, noun: str, *, verb: tuple[str, str] = ("is", "are")) -> str:
    """Format a count with its noun and the matching form of a verb.

    >>> are(1, "text"), are(2, "text"), are(1, "text", verb=("has", "have"))
    ('1 text is', '2 texts are', '1 text has')
    """
    return f"{plural(count, noun)} {verb[0] if count == 1 else verb[1]}"


def listed(names: Sequence[str]) -> str:
    """Join names with commas and a final "and".

    >>> listed(["a"]), listed(["a", "b", "c"])
    ('a', 'a, b and c')
    """
    return " and ".join([", ".join(names[:-1]), names[-1]]) if len(names) > 1 else names[0]


_Number = TypeVar("_Number", int, float)


def known_sum(values: Iterable[_Number | None]) -> _Number | None:
    """Sum numbers; None if any is unknown."""
    every = list(values)
    known = [value for value in every if value is not None]
    return sum(known) if len(known) == len(every) else None


def middle_cut(name: str, *, longest: int = 30) -> str:
    """Shorten a long name in the middle, because model names differ at their starts or ends.

    >>> middle_cut("local:models/mistral-7b-instruct/step-400")
    'local:models/mi…truct/step-400'
    """
    half = longest // 2
    return name if len(name) <= longest else f"{name[:half]}…{name[half + 1 - longest :]}"


_LONGEST_QUOTE: Final = 60


def shortened(words: str) -> str:
    r"""Shorten a quotation to one line of at most sixty characters.

    >>> shortened("Sure,\nhere it is")
    'Sure, here it is'
    """
    line = " ".join(words[: 4 * _LONGEST_QUOTE].split())
    return line if len(line) <= _LONGEST_QUOTE else f"{line[: _LONGEST_QUOTE - 1]}…"


def share(value: float | None) -> str:
    """Format a score with two decimals and without a leading zero, as in the paper.

    >>> share(0.37), share(1.0), share(-0.37), share(-0.001), share(None)
    ('.37', '1.00', '−.37', '.00', '–')
    """
    if value is None:
        return "–"
    text = f"{abs(value):.2f}".removeprefix("0")
    return f"−{text}" if value < 0 and text != ".00" else text


TOO_FEW = "[too few]"
"""The remark printed instead of an interval if there are too few combinations, seeds or partitions."""


def share_with_interval(value: float | None, low: float | None, high: float | None) -> str:
    """Format a score with its 95% interval, or with a remark that there are too few combinations for an interval.

    >>> share_with_interval(0.37, 0.28, 0.47), share_with_interval(0.37, None, None)
    ('.37 [.28, .47]', '.37 [too few]')
    """
    return _with_interval(share, value, low, high)


def _with_interval(
    form: Callable[[float | None], str], value: float | None, low: float | None, high: float | None
) -> str:
    if value is None:
        return form(value)
    return f"{form(value)} {TOO_FEW}" if low is None or high is None else f"{form(value)} [{form(low)}, {form(high)}]"


def signed(value: float | None) -> str:
    """Format a difference with its sign.

    >>> signed(0.05), signed(-0.4), signed(0.0)
    ('+.05', '−.40', '.00')
    """
    if value is None:
        return "–"
    text = share(abs(value))
    return text if text == ".00" else ("+" if value > 0 else "−") + text


def signed_with_interval(value: float | None, low: float | None, high: float | None) -> str:
    """Format a difference with its 95% interval, or with a remark that there are too few combinations for an interval.

    >>> signed_with_interval(0.05, -0.1, 0.2), signed_with_interval(0.05, None, None)
    ('+.05 [−.10, +.20]', '+.05 [too few]')
    """
    return _with_interval(signed, value, low, high)


def in_percent(value: float) -> str:
    """Format a share as a whole percentage, rounded as `share` rounds it.

    >>> in_percent(0.37), in_percent(-0.045), in_percent(1.0)
    ('37', '−4', '100')
    """
    number = int(f"{value:.2f}".replace(".", ""))
    return f"−{-number}" if number < 0 else str(number)


def signed_points(value: float) -> str:
    """Format a difference of shares in percentage points.

    >>> signed_points(0.667), signed_points(-0.05), signed_points(0.0)
    ('+67', '−5', '0')
    """
    text = in_percent(value)
    return text if text.startswith("−") or text == "0" else f"+{text}"


def points_interval(low: float | None, high: float | None, *, is_signed: bool = False) -> str:
    """Format the ends of an interval as whole percentages; return an empty string if there is no interval.

    >>> points_interval(0.5, 0.83), points_interval(-0.1, 0.2, is_signed=True), points_interval(None, None)
    ('50 to 83', '−10 to +20', '')
    """
    if low is None or high is None:
        return ""
    form = signed_points if is_signed else in_percent
    return f"{form(low)} to {form(high)}"


def p_value(value: float) -> str:
    """Format a p-value.

    >>> p_value(0.0004), p_value(0.0312), p_value(1.0)
    ('<.001', '.031', '1.000')
    """
    return "<.001" if value < 0.001 else f"{value:.3f}".removeprefix("0")


def expectation(value: float) -> str:
    """Format an expected count, which may be tiny.

    >>> expectation(0.1135), expectation(0.068), expectation(0.00098), expectation(3e-9)
    ('0.11', '0.068', '0.001', '3e-09')
    """
    if value >= 0.1:
        return f"{value:.2f}"
    return f"{value:.3f}" if value >= 0.0005 else f"{value:.0e}"


def whole(value: int) -> str:
    """Format a count.

    >>> whole(1234567)
    '1,234,567'
    """
    return f"{value:,}"


_WORDS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten")


def in_words(value: int) -> str:
    """Spell out a small number, and write a larger one in digits.

    >>> in_words(3), in_words(40)
    ('three', '40')
    """
    return _WORDS[value] if value < len(_WORDS) else str(value)


def dollars(value: float | None) -> str:
    """Format an amount in dollars; None is an unknown price.

    >>> dollars(12.3456), dollars(0.0), dollars(None)
    ('12.35', '0.00', 'unknown')
    """
    return "unknown" if value is None else f"{value:.2f}"


def hours(value: float | None) -> str:
    """Format a number of hours; None is unknown.

    >>> hours(15.13), hours(0.004), hours(0.0), hours(None)
    ('15.1', '< 0.1', '0', 'unknown')
    """
    if value is None:
        return "unknown"
    if value == 0:
        return "0"
    return f"{value:.1f}" if value >= 0.05 else "< 0.1"


def duration(seconds: float) -> str:
    """Format a duration in a suitable unit.

    >>> duration(0.4), duration(75), duration(200), duration(7800)
    ('1 s', '75 s', '3 min', '2 h 10 min')
    """
    if seconds < 90:
        return f"{max(1, round(seconds))} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 90 else f"{minutes // 60} h {minutes % 60} min"


def percent(share: float) -> str:
    """Format a share as a whole percentage, rounded down, so that 100% means that everything is done.

    >>> percent(0.0), percent(0.427), percent(0.999), percent(1.0)
    ('0%', '42%', '99%', '100%')
    """
    return f"{int(100 * share + 1e-9)}%"


_LEAST_ALIKE: Final = 0.65
"""The minimum similarity, from 0 to 1, at which a name is suggested."""
_CLEAR: Final = 0.85
"""The minimum similarity of a clear suggestion; names that share a word have at least this similarity."""


def nearest(name: str, known: Iterable[str], *, most: int = 3) -> list[str]:
    """Find known names that resemble a name or share a word with it, with the closest name first.

    >>> nearest("hedgin", ["metaphor", "hedging", "red herring"])
    ['hedging']
    >>> nearest("herring", ["metaphor", "hedging", "red herring"])
    ['red herring']
    """

    def likeness(other: str) -> float:
        one, two = (" ".join(text.casefold().replace("_", " ").replace("-", " ").split()) for text in (name, other))
        if one == two:
            return 1.0
        by_letters = SequenceMatcher(None, one, two, autojunk=False).ratio()
        return max(by_letters, _CLEAR if set(one.split()) & set(two.split()) else 0.0)

    alike = sorted(((likeness(other), other) for other in dict.fromkeys(known)), key=lambda pair: -pair[0])
    close = [other for likeness, other in alike if likeness >= _LEAST_ALIKE]
    # If one name is much closer than the others, it is the intended name.
    if alike and alike[0][0] >= _CLEAR and (len(alike) == 1 or alike[1][0] < _CLEAR):
        return close[:1]
    return close[:most]


def name_hint(name: str, known: Iterable[str], *, otherwise: str) -> str:
    """Make a hint that starts by suggesting a close name, if there is one.

    >>> name_hint("quikstart", ["quickstart", "smoke"], otherwise="Runs here: quickstart, smoke.")
    'Did you mean "quickstart"? Runs here: quickstart, smoke.'
    >>> name_hint("x", ["quickstart", "smoke"], otherwise="Runs here: quickstart, smoke.")
    'Runs here: quickstart, smoke.'
    """
    question = did_you_mean(name, known)
    return f"{question} {otherwise}".rstrip() if question else otherwise


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Ask whether a close name was meant; return an empty string if no known name is close.

    >>> did_you_mean("ful_marks", ["full_marks", "all_skills"])
    'Did you mean "full_marks"?'
    """
    close = [f'"{other}"' for other in nearest(name, known)]
    return f"Did you mean {' or '.join([', '.join(close[:-1]), close[-1]][not close[:-1] :])}?" if close else ""


def markdown_table(header: Sequence[str], rows: Sequence[Sequence[str]], *, right: frozenset[int] = frozenset()) -> str:
    r"""Format a Markdown table.

    Columns in `right` are right-aligned; scores with intervals are aligned at their decimal points.

    >>> rows = [["a|b", "1", ".50 [.10, .90]"], ["c", "12", "1.00 [.44, 1.00]"]]
    >>> print(markdown_table(["name", "n", "score"], rows, right=frozenset({1})))
    | name |  n | score            |
    |:-----|---:|:-----------------|
    | a\|b |  1 |  .50 [.10, .90]  |
    | c    | 12 | 1.00 [.44, 1.00] |
    """
    # Model output can contain line breaks, borders and control characters.
    visible = [["".join(c if c.isprintable() else " " for c in cell) for cell in row] for row in (header, *rows)]
    shown = [[" ".join(cell.split()).replace("|", "\\|") for cell in row] for row in visible]
    columns = []
    for index, (name, *column) in enumerate(zip(*shown, strict=True)):
        ends = [match.end() for match in map(_SCORE.match, column) if match]
        if ends and len(ends) == len(column):  # for scores, pad the first number of each cell
            column = [" " * (max(ends) - end) + cell for end, cell in zip(ends, column, strict=True)]
        width = max(2, *map(len, (name, *column)))
        own = [cell.rjust(width) if index in right else cell.ljust(width) for cell in (name, *column)]
        columns.append([own[0], ("-" * width + "-:" if index in right else ":-" + "-" * width), *own[1:]])
    first, rule, *others = zip(*columns, strict=True)
    return "\n".join([f"| {' | '.join(first)} |", f"|{'|'.join(rule)}|", *(f"| {' | '.join(row)} |" for row in others)])


_SCORE: Final = re.compile(r"[+−]?\d?\.\d\d(?= \[|$)|–$")


WIDTH: Final = 100
"""The maximum width of terminal output, in columns."""


def wrapped(text: str, *, indent: int = 0) -> str:
    """Wrap a text to `WIDTH` columns; keep its line breaks, and indent continuation lines.

    >>> print(wrapped("word " * 25 + "end", indent=2))
    word word word word word word word word word word word word word word word word word word word word
      word word word word word end
    """
    lines = text.split("\n")
    return "\n".join(
        fill(line, WIDTH, subsequent_indent=" " * indent, break_long_words=False, break_on_hyphens=False)
        for line in lines
    )


def side_by_side(left: Sequence[str], right: Sequence[str], *, marked: Sequence[bool] = ()) -> str:
    """Format pairs of paragraphs side by side in two columns, with a star before each marked pair.

    >>> print(side_by_side(["tuned", "+ topic"], ["base", "- topic: no word of it"], marked=[False, True]))
      tuned                                             base
    * + topic                                           - topic: no word of it
    """
    lines = []
    for number, pair in enumerate(zip(left, right, strict=True)):
        first, second = (wrap(text, _HALF, subsequent_indent="  ") or [""] for text in pair)
        for level, (one, two) in enumerate(zip_longest(first, second, fillvalue="")):
            is_marked = not level and number < len(marked) and marked[number]
            lines.append(f"{'*' if is_marked else ' '} {one:<{_HALF}}  {two}".rstrip())
    return "\n".join(lines)


_HALF: Final = (WIDTH - 4) // 2


def panels(header: Sequence[str], rows: Sequence[Sequence[str]], *, names: int, right: frozenset[int]) -> str:
    """Format a table for the terminal.

    A table that is too wide is split into several tables of similar width. The first `names` columns are repeated in
    each table.

    >>> row = ["a", *["x" * 40] * 3]
    >>> print(panels(["name", "one", "two", "three"], [row], names=1, right=frozenset()))
    | name | one                                      | two                                      |
    |:-----|:-----------------------------------------|:-----------------------------------------|
    | a    | xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx | xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx |
    <BLANKLINE>
    | name | three                                    |
    |:-----|:-----------------------------------------|
    | a    | xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx |
    """
    tables: list[str] = []
    others = range(names, len(header))
    for count in range(1, len(others) + 1):
        size = ceil(len(others) / count)
        starts = range(names, len(header), size)
        tables = []
        for start in starts:
            columns = [*range(names), *others[start - names : start - names + size]]
            own = frozenset(index for index, column in enumerate(columns) if column in right)
            cells = [[row[column] for column in columns] for row in rows]
            tables.append(markdown_table([header[column] for column in columns], cells, right=own))
        if all(len(line) <= WIDTH for table in tables for line in table.splitlines()):
            break
    return "\n\n".join(tables)


def html_table(header: Sequence[str], rows: Sequence[Sequence[str]], *, right: frozenset[int] = frozenset()) -> str:
    """Format an HTML table, with every cell escaped and the columns in `right` aligned to the right.

    >>> html_table(["name"], [["<b>"]])
    '<table><thead><tr><th>name</th></tr></thead><tbody><tr><td>&lt;b&gt;</td></tr></tbody></table>'
    """

    def line(row: Sequence[str], tag: str) -> str:
        styles = [' style="text-align: right"' if column in right else "" for column in range(len(row))]
        cells = zip(row, styles, strict=True)
        return "".join(f"<{tag}{style}>{escape(one_line(cell))}</{tag}>" for cell, style in cells)

    body = "".join(f"<tr>{line(row, 'td')}</tr>" for row in rows)
    return f"<table><thead><tr>{line(header, 'th')}</tr></thead><tbody>{body}</tbody></table>"


SIGNS: Final = {True: "+", False: "-", None: "?"}
"""The symbols for an earned, a denied and an undecided point."""
CUT: Final = "the token limit cut the reply"


def grounds(
    evidence: str | None, reason: str | None, *, woven: bool | None = None, grader_words: str | None = None
) -> str:
    """Return the words that show a skill, the reason for a denied point, or both.

    A text that shows a skill can be denied the point because it also mentions the skill's name. If a skill earns its
    point but is not about the topic, a remark is added. If code gives no reason, the words of the grader are used
    instead.

    >>> grounds("as hard as a bench", 'it names the skill "simile"')
    '“as hard as a bench”; it names the skill "simile"'
    >>> grounds(None, None, grader_words="No comparison is made.")
    'the grader: “No comparison is made.”'
    """
    remark = remark_on(reason, woven=woven if evidence else None, grader_words=grader_words)
    return "; ".join([*([f"“{one_line(evidence)}”"] if evidence else []), *([remark] if remark else [])])


def remark_on(reason: str | None, *, woven: bool | None = None, grader_words: str | None = None) -> str | None:
    """Return the reason for a denied point, a note that the skill is off topic, or the grader's comment, if any.

    >>> remark_on(None, woven=False)
    'not about the topic'
    """
    if reason:
        return one_line(reason)
    if woven is False:
        return "not about the topic"
    return f"the grader: “{one_line(grader_words)}”" if grader_words else None


def point_line(name: str, point: bool | None, words: str) -> str:
    """Format a criterion with the symbol for its point and the grounds for the decision.

    >>> point_line("length", False, "it has 3 sentences where 1 is allowed")
    '- length: it has 3 sentences where 1 is allowed'
    """
    return f"{SIGNS[point]} {name}" + (f": {words}" if words else "")
