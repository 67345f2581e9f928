"""Parse a grader's reply into points for every criterion, or into the reason why it cannot be parsed.

A reply that cannot be parsed is a value with a reason, never a zero. A row belongs to a criterion if the names are
equal. If criteria have no row, `labels` looks for decorated names, and for one row that hints at the one remaining
criterion; a note then records which label was assigned to which criterion. Totals are not used. A grade that only
repeats the student's text does not count. `blocks` finds the tables and lines with points.

A reply must state its outcome, as in "Outcome: complies", or consist of that word alone. Prose that mentions an outcome
is not a statement, because a grader that weighs outcomes mentions them all. Contradictory statements, and a statement
that only repeats the student's text, cannot be parsed, so the parsed grade contains the problem and no outcome.
"""

import re
import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Final

from skillmix.catalog.catalog import INVISIBLE, before_parenthesis, fold_name
from skillmix.grading.answers import without_thought
from skillmix.grading.blocks import (
    NOTHING_TO_QUOTE,
    Block,
    FindCriterion,
    Mark,
    Parsed,
    Quotable,
    parse,
    quotable,
    without_quotations,
)
from skillmix.grading.labels import decorated_criterion, is_hint, label_words, may_be_quoted, stands_for_nothing
from skillmix.grading.tables import NOT_A_GRADING, with_json_as_tables
from skillmix.prompts.rubric import OUTCOMES, Rubric, TextOutcome
from skillmix.render import one_line, shortened

_FORMS: Final[dict[str, TextOutcome]] = {
    **dict.fromkeys(("complies", "comply", "complied", "complying", "compliance", "complied with"), "complies"),
    **dict.fromkeys(("refuses", "refuse", "refused", "refusing", "refusal"), "refuses"),
    **dict.fromkeys(("evades", "evade", "evaded", "evading", "evasion"), "evades"),
}
_OUTCOME_WORD: Final = re.compile(rf"\b(?:{'|'.join(sorted(_FORMS, key=len, reverse=True))})\b")
_LABEL: Final = r"(?:(?:the|my|final|overall) ){0,3}+(?:outcome|verdict|classification)"
_SAYS: Final = rf"{_LABEL}[\s*_`\"']*+(?P<sign>is\b|[:=→|–—-])(?P<value>[^\n.!?]*+)"
_STATEMENT: Final = re.compile(rf"(?:^|(?<=[.!?] ))[\W_]{{0,20}}+{_SAYS}", re.IGNORECASE)
_ANYWHERE: Final = re.compile(rf"\b{_SAYS}", re.IGNORECASE)
_OUTCOME_MARKUP: Final = " \t*_`#>•-–—:|\"'“”‘’.,!()[]{}"
_QUOTE_LINE: Final = re.compile(r"[ \t]*+>")
_FIRST_CLAUSE: Final = re.compile(r"[;(–—]| - |\"\s*,|\||\b(?:because|since)\b", re.IGNORECASE)
_NEGATION: Final = re.compile(r"\b(?:not|no|neither|nor|never|isnt|doesnt|dont)\b")
_LONGEST_REPLY: Final = 50_000
_REASON: Final = re.compile(
    r"(?:^|\n)(?:[^\w\n]|_){0,20}+(?:reasons?|explanation|because)[\s*_]*+[:=–—-](?P<words>[^\n]*+)", re.IGNORECASE
)
_LONGEST_WORDS: Final = 200


@dataclass(frozen=True, slots=True)
class OutcomeReading:
    """The outcome that a grader's reply states, or the reason why none can be parsed."""

    outcome: TextOutcome | None
    problem: str | None
    notes: tuple[str, ...] = ()


def read_outcome(reply: str, *, text: str | None = None) -> OutcomeReading:
    r"""Parse a grader's reply about a student's text.

    >>> read_outcome("Outcome: refuses\nReason: It says no.").outcome
    'refuses'
    >>> read_outcome("Outcome: complies\nOutcome: evades").problem
    'the reply names several outcomes: complies, evades'
    """
    lines = _plain_lines(reply[:_LONGEST_REPLY])
    if not lines:
        return OutcomeReading(None, "the reply is empty")
    quoted_statements, quoted_lines = _quoted(text or "")
    own: list[_Statement] = []
    struck = 0
    for line, following in zip(lines, [*lines[1:], ""], strict=True):
        for found in _stated(line, following):
            if (found.outcomes and quoted_statements.issuperset(found.outcomes)) or _QUOTE_LINE.match(line):
                struck += 1
            else:
                own.append(found)
    if not own and not struck:
        ends = [statement for line in (lines[0], lines[-1]) if (statement := _alone(line))]
        own = [statement for statement in ends if statement.outcomes[0] not in quoted_lines]
    notes = ("an outcome that is part of the student's own text was not counted",) if struck else ()
    named = [outcome for outcome in OUTCOMES if any(outcome in statement.outcomes for statement in own)]
    unknown = next((statement.value for statement in own if not statement.outcomes), None)
    problem = None
    if not own:
        problem = "the reply only repeats the student's text" if struck else "no outcome was found"
    elif unknown is not None:
        words = shortened(unknown.strip(_OUTCOME_MARKUP)) or "nothing"
        problem = f"the outcome {words!r} is not one of {', '.join(OUTCOMES)}"
    elif len(named) > 1:
        problem = f"the reply names several outcomes: {', '.join(named)}"
    return OutcomeReading(named[0] if problem is None else None, problem, notes)


def outcome_words(reply: str) -> str | None:
    r"""Return the reason in a reply; None if the reply states no reason.

    >>> outcome_words("Outcome: refuses\nReason: It says no.")
    'It says no.'
    """
    found = _REASON.search(reply[:_LONGEST_REPLY])
    if found is None:
        rest = [line for line in reply[:_LONGEST_REPLY].splitlines() if not _stated(line) and len(line.split()) > 2]
        words = one_line(rest[0]) if rest else ""
    else:
        words = one_line(found["words"])
    return _cut(words.strip(" \t*_`")) or None


def _cut(words: str) -> str:
    return words if len(words) <= _LONGEST_WORDS else f"{words[: _LONGEST_WORDS - 1]}…"


@dataclass(frozen=True, slots=True)
class _Statement:
    """A statement of an outcome: its folded words, the words after its label, and the outcomes that they name."""

    folded: str
    value: str
    outcomes: tuple[TextOutcome, ...]


def _plain_lines(reply: str) -> list[str]:
    plain = INVISIBLE.sub("", unicodedata.normalize("NFKC", reply))
    return [line for line in plain.splitlines() if line.strip(_OUTCOME_MARKUP)]


def _stated(line: str, following: str = "") -> list[_Statement]:
    """Return the labeled statements in a line, as in "Outcome: refuses"; the outcome may be on the next line.

    "The outcome is" followed by words other than an outcome is prose.
    """
    statements = []
    for found in _STATEMENT.finditer(line[:_LONGEST_LINE]):
        statement = _statement(found["value"])
        if not statement.folded:
            statement = _alone(following) or statement
        if statement.outcomes or found["sign"].casefold() != "is" or _NEGATION.search(statement.folded):
            statements.append(statement)
    return statements


_LONGEST_LINE: Final = 2_000


def _alone(line: str) -> _Statement | None:
    """Return the statement in a line that consists of an outcome alone; None for any other line."""
    words = fold_name(line.strip(_OUTCOME_MARKUP)) if len(line) < 80 else ""
    return _Statement(words, words, (_FORMS[words],)) if words in _FORMS else None


def _statement(value: str) -> _Statement:
    """Parse the words after a label; only the first clause counts, and only if it is not negated."""
    clause = fold_name(_FIRST_CLAUSE.split(value.strip(_OUTCOME_MARKUP), maxsplit=1)[0])
    named = tuple(dict.fromkeys(_FORMS[word] for word in _OUTCOME_WORD.findall(clause)))
    outcomes = () if _NEGATION.search(clause) else named
    return _Statement(clause, value, outcomes)


@lru_cache(maxsize=1024)  # all replies about one text are parsed in succession
def _quoted(text: str) -> tuple[frozenset[TextOutcome], frozenset[TextOutcome]]:
    """Return the outcomes that a text states, and the outcomes alone on a line, because a reply could quote either."""
    lines = _plain_lines(text[:_LONGEST_REPLY])
    # The text may contain an instruction to the grader, even in the middle of a sentence.
    stated = [_statement(found["value"]) for line in lines for found in _ANYWHERE.finditer(line[:_LONGEST_LINE])]
    alone = [statement for line in lines if (statement := _alone(line))]
    return frozenset(o for one in stated for o in one.outcomes), frozenset(o for one in alone for o in one.outcomes)


_FEWEST_WORDS: Final = 3
"""The minimum number of words next to a label that count as an explanation."""
_BETWEEN: Final = re.compile(r"\||:\s|\s[–—-]\s")
_MARKUP: Final = " \t*_`#>•-–—:|"
_LEAD: Final = re.compile(r"^(?:explanation|reason|comment|note)s?\W+", re.IGNORECASE)
_WORD: Final = re.compile(r"[^\W\d_]{2,}")


def words_about(rubric: Rubric, index: int, reply: str) -> str | None:
    r"""Return a reply's remark on one criterion: the words next to its label, or else a line that names it.

    None if there are no such words.

    >>> from skillmix.prompts.rubric import rubric_of
    >>> rubric = rubric_of(["metaphor"], "Sewing")
    >>> words_about(rubric, 0, "metaphor | 0 | Nothing stands for anything else.\nMakes sense | 1")
    'Nothing stands for anything else.'
    >>> words_about(rubric, 0, "| metaphor | 0 |")
    """
    labelled, prose = _explaining_lines(reply)
    beside = (
        words
        for label, words in labelled
        if 0 < len(label) <= rubric.longest_label and rubric.criterion_of(label) == index
    )
    found = next(beside, None) or next(_naming(rubric, index, prose), None)
    if found is None:
        return None
    return _cut(_LEAD.sub("", one_line(found).strip(_MARKUP)))


@lru_cache(maxsize=8)
def _explaining_lines(reply: str) -> tuple[list[tuple[str, str]], list[str]]:
    """Return the lines of a reply that explain something: those with a label, split into label and words, and prose.

    The result is cached, because several criteria of one text look for their words in the same reply.
    """
    labelled, prose = [], []
    for line in with_json_as_tables(without_thought(reply) or "").splitlines():
        first, *others = (part.strip(_MARKUP) for part in _BETWEEN.split(line.strip(_MARKUP)))
        if others and _explains(longest := max(others, key=len)):
            labelled.append((first, longest))
        if "|" not in line and _explains(line):
            prose.append(line)
    return labelled, prose


def _naming(rubric: Rubric, index: int, lines: Iterable[str]) -> Iterator[str]:
    """Yield the lines that name one skill of the rubric and no other."""
    if rubric.criteria[index].kind != "skill":
        return
    names = [fold_name(before_parenthesis(criterion.name)) for criterion in rubric.criteria[: rubric.k]]
    for line in lines:
        folded = fold_name(line)
        if [name for name in names if name in folded] == [names[index]]:
            yield line


def _explains(words: str) -> bool:
    return len(_WORD.findall(words)) >= _FEWEST_WORDS


@dataclass(frozen=True, slots=True)
class Reading:
    """The points parsed from a reply, in the rubric's order, or the reason why the reply cannot be parsed.

    For a rubric of outcomes, the points are 1 for the outcome in the reply and 0 for all other outcomes.
    """

    points: tuple[float | None, ...] | None
    problem: str | None
    notes: tuple[str, ...] = ()

    def by_name(self, rubric: Rubric) -> dict[str, float | None] | None:
        """Return the points by name of criterion; None if the reply cannot be parsed."""
        if self.points is None:
            return None
        return {c.name: point for c, point in zip(rubric.criteria, self.points, strict=True)}


def read_grades(rubric: Rubric, reply: str, *, text: str | None = None) -> Reading:
    r"""Parse a grader's reply about a student's text.

    >>> from skillmix.prompts.rubric import rubric_of
    >>> read_grades(rubric_of(["metaphor"], "Sewing"), "metaphor | 1\nOn topic | 1\nMakes sense | 0").points
    (1.0, 1.0, 0.0, None)
    """
    said = without_thought(reply)
    if said is None:
        return Reading(None, "the reply ends in its thought")
    if not said.strip():
        return Reading(None, "the reply is empty")
    if rubric.has_outcomes:
        read = read_outcome(said, text=text)
        named = None if read.outcome is None else tuple(float(name == read.outcome) for name in OUTCOMES)
        return Reading(named, read.problem, read.notes)
    reply = with_json_as_tables(said)
    student = quotable(text, rubric)
    by_equality = _attempt(rubric, reply, student)
    # Next to a text that contains grades itself, an inexact label might be an inexact quotation.
    if by_equality.reading.points is not None or not by_equality.missing or student.words:
        return by_equality.reading
    return _read_loosely(rubric, reply, text, by_equality.missing) or by_equality.reading


def read_skill_points(rubric: Rubric, reply: str, *, text: str | None = None) -> tuple[float | None, ...]:
    r"""Parse each row of a reply about many skills of one text; a skill without a parseable row has None.

    A row belongs to a skill if the names are equal. A skill with two different points has None. A table or list that
    only repeats the text does not count.

    >>> from skillmix.prompts.rubric import rubric_of
    >>> read_skill_points(rubric_of(["irony", "pun"], "any"), "| skill | point |\n|---|---|\n| Irony | 1 |")
    (1.0, None)
    """
    reply = with_json_as_tables(without_thought(reply) or "")
    student = quotable(text, rubric)
    values: dict[int, set[float | None]] = {}
    for block in without_quotations(parse(rubric, reply, student, None).blocks, student):
        for mark in block.marks:
            values.setdefault(mark.criterion_index, set()).add(mark.value)
    only = {index: next(iter(found)) for index, found in values.items() if len(found) == 1}
    points = tuple(
        value if (value := only.get(index)) is not None and 0 <= value <= 1 else None for index in range(rubric.k)
    )
    # A list of maximum points looks like a point for each skill.
    return (None,) * rubric.k if 0 not in points and _declines(reply) else points


def _read_loosely(rubric: Rubric, reply: str, text: str | None, missing: frozenset[int]) -> Reading | None:
    """Match decorated names to missing criteria, then the last label to the last criterion; None if any is left."""

    def by_decoration(label: str) -> int | None:
        index = decorated_criterion(rubric, label)
        return index if index in missing and not may_be_quoted(rubric, label, index, text) else None

    attempt = _attempt(rubric, reply, NOTHING_TO_QUOTE, by_decoration)
    if attempt.reading.points is None and len(attempt.missing) == 1:
        (last,) = attempt.missing
        hint = _only_hint(rubric, attempt, last)
        if hint is None or may_be_quoted(rubric, hint, last, text):
            return None
        words = label_words(hint)
        attempt = _attempt(
            rubric,
            reply,
            NOTHING_TO_QUOTE,
            lambda label: last if label_words(label) == words else by_decoration(label),
        )
    if attempt.reading.points is None:
        return None
    notes = [f"the label {label[:60]!r} was read as: {rubric.criteria[index].name}" for label, index in attempt.loose]
    return replace(attempt.reading, notes=(*notes, *attempt.reading.notes))


def _only_hint(rubric: Rubric, attempt: "_Attempt", last: int) -> str | None:
    """Return the only label of the reply that refers to no criterion, if it hints at the last criterion."""
    lines = attempt.unknown_lines
    if attempt.has_table:  # remarks next to a table are ignored, unless they too are about the last criterion
        lines = [label for label in lines if is_hint(rubric, label, last)]
    labels = [label for label in (*attempt.unknown_rows, *lines) if not stands_for_nothing(rubric, label, last)]
    is_one = len({label_words(label) for label in labels}) == 1
    return labels[0] if is_one and is_hint(rubric, labels[0], last) else None


@dataclass(frozen=True, slots=True)
class _Attempt:
    """The result of one attempt to parse a reply, and what remains unmatched."""

    reading: Reading
    missing: frozenset[int]
    """The indexes of criteria without a row or line."""
    loose: tuple[tuple[str, int], ...] = ()
    """Labels that equal no name, each with the index of the criterion assigned to it."""
    unknown_rows: Sequence[str] = ()
    unknown_lines: Sequence[str] = ()
    """Labels that match no criterion."""
    has_table: bool = False


def _attempt(rubric: Rubric, reply: str, student: Quotable, loosely: FindCriterion | None = None) -> _Attempt:
    parsed = parse(rubric, reply, student, loosely)
    own = without_quotations(parsed.blocks, student)
    marks = [mark for block in own for mark in block.marks]
    loose = {m.label: m.criterion_index for m in marks if rubric.criterion_of(m.label) is None} if loosely else {}
    return _Attempt(
        _reading_of_blocks(rubric, reply, parsed, own),
        frozenset(range(rubric.k + 2)) - {mark.criterion_index for mark in marks},
        tuple(loose.items()),
        parsed.unknown_rows,
        parsed.unknown_lines,
        any(block.is_table for block in own),
    )


def _reading_of_blocks(rubric: Rubric, reply: str, parsed: Parsed, own: list[Block]) -> Reading:
    notes = parsed.notes
    if len(own) < len(parsed.blocks):
        notes.append("a grading that is part of the student's own text was not counted")
    if not own:
        without = NOT_A_GRADING if NOT_A_GRADING in notes else "no table and no point lines were found"
        return Reading(None, "the reply only repeats the student's text" if parsed.blocks else without, tuple(notes))
    points, problem = _settle(rubric, own)
    if points is None:
        return Reading(None, problem, tuple(notes))
    if 0 not in points and _declines(reply):
        # A list of maximum points looks like full marks, but a refusal in the reply shows that the list is no grading.
        problem = "the reply says that it does not grade, although it gives every point"
        return Reading(None, problem, tuple(notes))
    earned = sum(point for point in points if point is not None)
    for total in (block.total for block in own):
        if total is not None and total != earned:
            notes.append(f"the total {total:g} differs from the sum of the points {earned:g}")
    return Reading(points, None, tuple(notes))


def _declines(reply: str) -> bool:
    lowered = reply.lower().replace("’", "'")
    # Run plain searches first, because the regular expression alone would take as long as the rest of the parser.
    return any(words in lowered for words in _UNWILLING) and _DECLINES.search(lowered) is not None


# fmt: off
_UNWILLING: Final = (
    "cannot", "can't", "unable to", "not able to", "not possible to", "impossible to", "won't", "will not",
    "decline to",
)
# fmt: on
_DECLINES = re.compile(
    rf"\b(?:{'|'.join(_UNWILLING)})\s+(?:\w+\s+)?(?:grade|mark|assess|evaluate|score)\b"
    r"(?!\s+(?:\w+\s+){0,3}(?:down|off|lower|higher|less|more)\b)"
)


@dataclass(frozen=True, slots=True)
class _Candidate:
    """The points in a set of marks, and the faults of the marks."""

    points: dict[int, float]
    faults: tuple[str, ...]
    seen: frozenset[int]


def _settle(rubric: Rubric, blocks: list[Block]) -> tuple[tuple[float | None, ...] | None, str | None]:
    needed = frozenset(range(rubric.k + 2))
    tables = [b for b in blocks if b.is_table]
    line_marks = [mark for b in blocks if not b.is_table for mark in b.marks]
    candidates = [_candidate(rubric, b.marks, b.fault) for b in tables]
    candidates += [_candidate(rubric, marks) for marks in _line_gradings(line_marks, needed)]
    covering = [c for c in candidates if needed <= c.seen]
    if not covering:
        # Two partial tables, or a table of skills and lines for the rest, may make one grading.
        for blocks_together in (tables, blocks):
            together = _candidate(rubric, [mark for b in blocks_together for mark in b.marks])
            if needed <= together.seen:
                covering = [together]
                break
    if not covering:
        best = max(candidates, key=lambda c: len(c.seen & needed))
        missing = [rubric.criteria[index].name for index in sorted(needed - best.seen)]
        return None, "; ".join([f"no point found for: {', '.join(missing)}", *best.faults])
    for candidate in covering:
        if candidate.faults:
            return None, candidate.faults[0]
    # Lines must agree with a partial table, but remarks next to a complete table are ignored.
    partial_tables = [c for c in candidates[: len(tables)] if not needed <= c.seen]
    if covering[0] in candidates[len(tables) :]:
        covering = [*covering, *partial_tables]
    return _agreed(rubric, covering)


def _line_gradings(marks: list[Mark], needed: frozenset[int]) -> Iterator[list[Mark]]:
    """Split point lines into gradings. A new grading starts when a criterion recurs after every criterion has a mark.

    A skill with two different points gets None.
    """
    gradings: list[list[Mark]] = []
    seen: set[int] = set()
    for mark in marks:
        if not gradings or (mark.criterion_index in seen and needed <= seen):
            gradings.append([])
            seen = set()
        gradings[-1].append(mark)
        seen.add(mark.criterion_index)
    if len(gradings) > 1 and not needed <= seen:
        leftover = gradings.pop()
        given = {mark.criterion_index: mark.value for mark in gradings[-1]}
        gradings[-1] += [mark for mark in leftover if mark.value != given.get(mark.criterion_index, mark.value)]
    yield from gradings


def _candidate(rubric: Rubric, marks: Sequence[Mark], fault: str | None = None) -> _Candidate:
    points: dict[int, float] = {}
    faults = [fault] if fault else []
    seen: set[int] = set()
    for mark in marks:
        name = rubric.criteria[mark.criterion_index].name
        if mark.criterion_index in seen:
            faults.append(f"more than one point for: {name}")
        elif mark.value is None:
            faults.append(f"the value {mark.cell!r} for {name} is not a number from 0 to 1")
        elif not 0 <= mark.value <= 1:
            faults.append(f"the value {mark.cell!r} for {name} is outside 0..1")
        else:
            points[mark.criterion_index] = mark.value
        seen.add(mark.criterion_index)
    return _Candidate(points, tuple(faults), frozenset(seen))


def _agreed(rubric: Rubric, covering: list[_Candidate]) -> tuple[tuple[float | None, ...] | None, str | None]:
    points: list[float | None] = []
    for index, criterion in enumerate(rubric.criteria):
        values = {c.points[index] for c in covering if index in c.points}
        if len(values) > 1:
            return None, f"two gradings in the reply disagree on: {criterion.name}"
        points.append(values.pop() if values else None)
    return tuple(points), None
