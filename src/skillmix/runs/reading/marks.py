"""What scores need of every text of a large run, in a few bytes for each.

A run of ten million conversations has few different marks: points, the status of the answer, whether the reply was cut.
A `MarkTable` stores each different mark once, and for every conversation and grader the number of its mark. Processes
read the conversations by ranges of combination ids, and the table is the same however many there are.
"""

import re
from array import array
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field, replace
from itertools import islice, zip_longest
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from skillmix.calls import is_human
from skillmix.catalog.combinations import Combination
from skillmix.errors import UserError
from skillmix.grading.answers import AnswerStatus, Rules
from skillmix.grading.ballots import Ballot, StudentText
from skillmix.grading.points import Points, earns_nothing
from skillmix.prompts.rubric import Phrases
from skillmix.render.wording import shortened
from skillmix.runs.helper_process import MOST_HELPERS, LostHelper, cores, in_helper, is_there_a_second_core
from skillmix.runs.judging.judged_texts import judged_conversations
from skillmix.runs.reading.conversation_index import IdRange, id_ranges
from skillmix.runs.reading.graded_conversations import conversations
from skillmix.runs.reading.run_records import RecordsBuilder, is_unknown
from skillmix.runs.run import Run

WORTH_IT: Final = 100_000
"""The number of calls above which a run is too large to keep all its texts in memory."""
_AT_ONCE: Final = 5_000
"""Conversations that a process sends together."""


class TextMark(NamedTuple):
    """One grader's result on one text, without the text."""

    points: Points
    status: AnswerStatus
    is_cut: bool | None
    is_woven: bool | None
    votes: int
    """The number of rounds with a vote."""
    earns_nothing: bool
    """Whether no text with this answer can earn a point, so that no grader is asked."""


def mark_of(ballot: Ballot, rules: Rules, phrases: Phrases, *, is_lost: bool) -> TextMark:
    """The mark of a ballot under some rules."""
    text = ballot.text
    points = ballot.points(rules, phrases)
    return TextMark(points, text.answer.status, text.is_cut, ballot.is_woven, len(ballot.readings), is_lost)


@dataclass
class MarkColumn:
    """The conversations of one student, ordered by combination and generation."""

    ids: NDArray[np.uint64]
    generations: NDArray[np.uint32]
    numbers: dict[str, NDArray[np.int32]]
    """For each grader the numbers of its marks; -1 where it has no ballot."""


class MarkTable:
    """The marks of all conversations of a run."""

    def __init__(self, marks: Sequence[TextMark], columns: dict[str, MarkColumn]) -> None:
        self.marks = marks
        """Every different mark, by number."""
        self._columns = columns

    def numbers(
        self, student: str, grader: str, combinations: Sequence[Combination], generations: Sequence[int]
    ) -> NDArray[np.int32]:
        """The numbers of marks, by combination and generation; -1 where there is no ballot."""
        places = self.places(student, combinations, generations)
        column = self._columns.get(student)
        own = column.numbers.get(grader) if column else None
        if own is None:
            return np.full(places.shape, -1, np.int32)
        return np.where(places >= 0, own[places], np.int32(-1)) if len(own) else np.full(places.shape, -1, np.int32)

    def places(
        self, student: str, combinations: Sequence[Combination], generations: Sequence[int]
    ) -> NDArray[np.int64]:
        """Where the conversations of a student are in the table, by combination and generation; -1 if not written."""
        found = np.full((len(combinations), len(generations)), -1, np.int64)
        column = self._columns.get(student)
        if column is None or not len(column.ids):
            return found
        ids = np.fromiter((number_of(c.id) for c in combinations), np.uint64, count=len(combinations))
        starts, ends = (np.searchsorted(column.ids, ids, side) for side in ("left", "right"))
        for offset in range(int((ends - starts).max(initial=0))):
            place = np.minimum(starts + offset, len(column.ids) - 1)
            is_inside = starts + offset < ends
            for index, generation in enumerate(generations):
                is_it = is_inside & (column.generations[place] == generation)
                found[is_it, index] = place[is_it]
        return found

    def outside(self, student: str, grader: str, planned: Iterable[str]) -> list[tuple[str, int, int]]:
        """The ballots of a grader on combinations that are not planned: id, generation and number of the mark."""
        column = self._columns[student]
        numbers = column.numbers.get(grader)
        if numbers is None:
            return []
        known = np.unique(np.fromiter(map(number_of, planned), np.uint64))
        chosen = np.flatnonzero((numbers >= 0) & ~np.isin(column.ids, known))
        found = zip(column.ids[chosen], column.generations[chosen], numbers[chosen], strict=True)
        return [(f"{int(key):016x}", int(generation), int(number)) for key, generation, number in found]

    def lowest_ids(self, texts: int) -> list[str]:
        """The lowest combination ids that have so many texts together, or fewer."""
        every = [column.ids for column in self._columns.values()]
        ids, counts = np.unique(np.concatenate(every), return_counts=True) if every else (np.empty(0), np.empty(0))
        return [f"{int(key):016x}" for key in ids[np.cumsum(counts) <= texts]]

    @property
    def students(self) -> list[str]:
        """The students that wrote a text."""
        return list(self._columns)

    @property
    def texts(self) -> int:
        """The number of texts."""
        return sum(len(column.ids) for column in self._columns.values())

    @property
    def pairs(self) -> list[tuple[str, str]]:
        """Every student with every grader that has a ballot on its texts."""
        return [(student, grader) for student, column in self._columns.items() for grader in sorted(column.numbers)]


def number_of(combination: str) -> int:
    """The id of a combination, which is a hash of eight bytes in hexadecimal digits, as a number."""
    if not _ID.fullmatch(combination):
        raise UserError(
            f"The journal is damaged: {shortened(combination)!r} is not the id of a combination.",
            hint="Restore it from a copy.",
        )
    return int(combination, 16)


_ID: Final = re.compile("[0-9a-f]{16}")


class _StudentMarks(NamedTuple):
    """Marks of one student in the order of their conversations, as they cross process borders."""

    ids: "array[int]"
    generations: "array[int]"
    numbers: "dict[str, array[int]]"


@dataclass
class MarksBuilder:
    """Collects marks from conversations that come in the order of their keys."""

    run: Run
    rules: Rules
    with_code: bool = True
    marks: dict[TextMark, int] = field(default_factory=dict)
    students: dict[str, _StudentMarks] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._own_rules = self.run.rules()
        self._phrases = self.run.phrases

    def add(self, text: StudentText, ballots: Iterable[Ballot]) -> None:
        """Take in the ballots on one text; those of people count in no score."""
        own = self.students.get(text.student)
        if own is None:
            own = self.students[text.student] = _StudentMarks(array("Q"), array("I"), {})
        count = len(own.ids)
        own.ids.append(number_of(text.combination.id))
        own.generations.append(text.generation)
        is_lost = earns_nothing(text.answer, self._own_rules)
        for ballot in ballots:
            if not is_human(ballot.grader):
                mark = mark_of(ballot, self.rules, self._phrases, is_lost=is_lost)
                numbers = own.numbers.setdefault(ballot.grader, array("i"))
                numbers.extend([-1] * (count - len(numbers)))
                numbers.append(self.marks.setdefault(mark, len(self.marks)))

    def table(self) -> MarkTable:
        """The marks that were added."""
        columns = {}
        for student, own in sorted(self.students.items()):
            numbers = {
                grader: np.concatenate((np.array(known, np.int32), np.full(len(own.ids) - len(known), -1, np.int32)))
                for grader, known in own.numbers.items()
            }
            columns[student] = MarkColumn(np.array(own.ids, np.uint64), np.array(own.generations, np.uint32), numbers)
        return MarkTable(list(self.marks), columns)

    def join(self, parts: Sequence["MarksBuilder"]) -> None:
        """Add the marks of builders that have ranges of ids, the lowest range first."""
        for student in sorted({student for part in parts for student in part.students}):
            own = self.students[student] = _StudentMarks(array("Q"), array("I"), {})
            for part in parts:
                more = part.students.pop(student, None)
                if more is not None:
                    self._extend(own, more, [self.marks.setdefault(mark, len(self.marks)) for mark in part.marks])

    def _extend(self, own: _StudentMarks, more: _StudentMarks, numbers: Sequence[int]) -> None:
        count = len(own.ids)
        own.ids.extend(more.ids)
        own.generations.extend(more.generations)
        for grader, known in more.numbers.items():
            mine = own.numbers.setdefault(grader, array("i"))
            mine.extend([-1] * (count - len(mine)))
            mine.extend([numbers[number] if number >= 0 else -1 for number in known])


def is_large(run: Run) -> bool:
    """Whether a run should be scored by its marks: it has many calls, and every grader is one that it knows."""
    if run.is_imported:
        return False
    with run.read() as journal:
        return journal.size() >= WORTH_IT and not any(is_unknown(run, name) for name in journal.graders())


def run_marks(run: Run, rules: Rules, *, with_code: bool = True) -> MarkTable:
    """The marks of a run under some rules, read on all cores; without code if its catalogue is another one now."""
    whole = MarksBuilder(run, rules, with_code)
    if is_there_a_second_core():
        with suppress(LostHelper):
            whole.join(_marks_by_helpers(whole))
            return whole.table()
    for _ in _added(whole, None):
        pass
    return whole.table()


def _marks_by_helpers(empty: MarksBuilder) -> list[MarksBuilder]:
    with ExitStack() as stack:
        ranges = id_ranges(min(cores(), MOST_HELPERS))
        parts = [replace(empty, marks={}, students={}) for _ in ranges]
        received = [
            stack.enter_context(in_helper(_marks_there, part, ids)) for part, ids in zip(parts, ranges, strict=True)
        ]
        for sent in zip_longest(*received):
            for part, (marks, students) in ((p, s) for p, s in zip(parts, sent, strict=True) if s is not None):
                part.marks.update((mark, number) for number, mark in enumerate(marks, start=len(part.marks)))
                for student, more in students.items():
                    own = part.students.setdefault(student, _StudentMarks(array("Q"), array("I"), {}))
                    part._extend(own, more, range(len(part.marks)))
    return parts


def _marks_there(builder: MarksBuilder, ids: IdRange) -> Iterator[tuple[list[TextMark], dict[str, _StudentMarks]]]:
    """The marks of a range of ids; each part has the marks that are new in it."""
    known = 0
    source = _added(builder, ids)
    while sum(1 for _ in islice(source, _AT_ONCE)):
        yield list(islice(builder.marks, known, None)), builder.students
        known = len(builder.marks)
        builder.students = {}


def _added(builder: MarksBuilder, ids: IdRange | None) -> Iterator[None]:
    """Add every conversation of a range to a builder, one at a time."""
    run = builder.run
    code = run.code if builder.with_code else None
    ballots = RecordsBuilder(run, code)
    with run.read() as journal:
        source = conversations(run, journal, ids=ids)
        for conversation, judged in judged_conversations(run, source, code):
            builder.add(conversation.text, ballots.ballots_on(conversation, judged))
            yield
