"""The form that prompts ask for, read in one go: a closed table of two columns with a 0 or a 1 in every row.

Most replies have it. Whatever is the least bit different goes the long way of `core/reading.py`, which gives the same
reading for these too: a test compares the two, `bench/scoring.py` says what is gained.
"""

import re
from typing import Final, NamedTuple

from skillmix.core.point_lines import LineReader
from skillmix.core.quotations import NOTHING_TO_QUOTE
from skillmix.core.rubric import Rubric
from skillmix.core.tables import is_plain_header

_ROW = re.compile(r"^\|([^|\n]*)\|([^|\n]*)\|[ \t]*$", re.MULTILINE)
_POINT: Final = {"0": 0.0, "1": 1.0}
_SPECIAL: Final = (">", "```", "~~~", "\r", "\\|")


class PlainTable(NamedTuple):
    """Points by place, and the total where there is one."""

    points: dict[int, float]
    total: float | None


def read_plain_table(rubric: Rubric, reply: str) -> PlainTable | None:
    """The points of a reply in the plain form that grades every criterion but length once; None for any other."""
    rows = _ROW.findall(reply)
    if len(rows) < rubric.k + 4 or any(mark in reply for mark in _SPECIAL):
        return None
    start, end = reply.find("|"), reply.rfind("|")
    is_one_table = reply.count("|") == 3 * len(rows) and reply.count("\n", start, end) == len(rows) - 1
    header, rule, *rest = rows
    if not is_one_table or "".join(rule).strip("-: ") or not is_plain_header(header[0], header[1]):
        return None
    found = _points(rubric, rest)
    if found is None or len(found.points.keys() - {rubric.k + 2}) < rubric.k + 2:
        return None
    prose = [line for line in (reply[:start] + reply[end + 1 :]).splitlines() if line]
    lines = LineReader(rubric, prose, student=NOTHING_TO_QUOTE)
    return None if any(lines.marks(line) for line in prose) else found


def _points(rubric: Rubric, rows: list[tuple[str, str]]) -> PlainTable | None:
    points: dict[int, float] = {}
    total = None
    for label, cell in rows:
        label, cell = label.strip(), cell.strip()
        place = rubric.criterion_of(label) if 0 < len(label) <= rubric.longest_label else None
        if place is None:
            if total is not None or not label.casefold().startswith("total") or not cell.isdecimal():
                return None
            total = float(cell)
        elif place in points or cell not in _POINT:
            return None
        else:
            points[place] = _POINT[cell]
    return PlainTable(points, total)
