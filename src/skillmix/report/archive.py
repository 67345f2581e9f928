"""The drill-down of a report: every text with its votes, raw replies and prompts, in files that a page can load."""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from skillmix.calls import Call, CallProblem, GradeKey, Reply
from skillmix.catalog.catalog import RESERVED_NAMES
from skillmix.catalog.combinations import Combination
from skillmix.grading.answers import Rules
from skillmix.grading.ballots import Ballot, StudentText
from skillmix.grading.points import Points
from skillmix.grading.reasons import reasons_of
from skillmix.runs.journal.journal import JournalReader
from skillmix.runs.reading.conversations import ConversationKey, WrittenConversation
from skillmix.runs.reading.read_ahead import GradedConversation
from skillmix.scores.cells import Cell

LARGEST: Final = 1_000_000
"""Bytes of a file."""


_ROOM: Final = LARGEST - 200


_CUT: Final = " […] cut here; the whole is in the journal"


_encode = json.JSONEncoder(ensure_ascii=True, allow_nan=False, separators=(",", ":")).encode


class Chunks:
    """Numbered items of one kind in files of limited size; items that belong together can be kept together."""

    def __init__(self, kind: str, write: Callable[[str, str], None]) -> None:
        self._kind = kind
        self._write = write
        self._items: list[str] = []
        self._size = 0
        self.starts: list[int] = []
        """The number of the first item of each file."""
        self.count = 0

    def add(self, item: object) -> int:
        """Its number."""
        encoded = _encode(item)
        if len(encoded) > _ROOM:
            encoded = _fitting(item)
        if self._items and self._size + len(encoded) + 1 > _ROOM:
            self.flush()
        if not self._items:
            self.starts.append(self.count)
        self._items.append(encoded)
        self._size += len(encoded) + 1
        self.count += 1
        return self.count - 1

    def flush(self) -> None:
        """Write what is waiting."""
        if self._items:
            number = len(self.starts) - 1
            self._write(f"{self._kind}-{number}.js", script(self._kind, number, f"[{','.join(self._items)}]"))
            self._items, self._size = [], 0


def script(kind: str, number: int, encoded: str) -> str:
    """A file that hands its data to the page; ASCII only, so that its meaning depends on no encoding."""
    return f'skillmix("{kind}",{number},{encoded});\n'


def index_script(index: object) -> str:
    """The file that says where everything is."""
    return script("index", 0, _encode(index))


def _fitting(item: object) -> str:
    """An item cut down until it fits: nobody reads a megabyte of one reply, and the journal keeps it."""
    for most in (50_000, 5_000, 500, 50):
        encoded = _encode(_cut(item, most))
        if len(encoded) <= _ROOM:
            return encoded
    return _encode(None)


def _cut(item: object, most: int) -> object:
    if isinstance(item, str):
        return item if len(item) <= most else item[:most] + _CUT
    return [_cut(part, most) for part in item] if isinstance(item, list | tuple) else item


_MOST_KNOWN: Final = 1000
"""Prompts kept in memory."""
_MOST_REASONS: Final = 1000
"""Reasons kept in the index, so that it stays small."""
_POINT = {True: "1", False: "0", None: "?"}


class Names:
    """Strings by number."""

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {}

    def number(self, name: str) -> int:
        """The number of a name, a new one if it is new."""
        return self._numbers.setdefault(name, len(self._numbers))

    @property
    def all(self) -> list[str]:
        """In the order of their numbers."""
        return list(self._numbers)


@dataclass(frozen=True, slots=True)
class CodeEvidence:
    """What code found in a text: the words that show each wanted skill, and skills that nobody asked for."""

    words: tuple[str | None, ...]
    unrequested: tuple[str, ...]
    reasons: Mapping[str, Mapping[str, str]]
    """For each grader of which code is a part: why code denies a point, by criterion."""


@dataclass
class RunArchive:
    """Where the conversations of one run lie."""

    run: str
    talks: dict[ConversationKey, int] = field(default_factory=dict)
    votes: dict[ConversationKey, int] = field(default_factory=dict)


class Archive:
    """Takes in calls as they are read, and writes them away at once: replies are never all in memory."""

    def __init__(self, write: Callable[[str, str], None]) -> None:
        self._write = write
        self._talks = Chunks("talks", write)
        self._votes = Chunks("votes", write)
        self._texts = Chunks("texts", write)
        self._lines = Chunks("lines", write)
        self._line_numbers: dict[str, int] = {}
        self._prompts: dict[str, list[object]] = {}
        self._known: dict[str, list[int]] = {}
        self._students: dict[tuple[str, str], int] = {}
        self._graders: dict[tuple[str, str], int] = {}
        self._skills, self._topics = Names(), Names()
        self._reasons: dict[str, int] = {}

    def introduce(self, run: str, students: Iterable[str], graders: Iterable[str]) -> None:
        """Fix the order in which the page lists them."""
        for student in students:
            self._student(run, student)
        for grader in graders:
            self._grader(run, grader)

    def add_talk(self, written: WrittenConversation, journal: JournalReader, numbers: RunArchive) -> None:
        """Write a student's side of a conversation."""
        numbers.talks[written.key] = self._talks.add(self._talk(written.turns, journal))

    def _talk(self, calls: Sequence[Call], journal: JournalReader) -> list[object]:
        last = calls[-1]
        own = {len(call.messages) for call in calls[:-1] if isinstance(call.outcome, Reply)}
        said = {len(c.messages): c.outcome.text for c in calls[:-1] if isinstance(c.outcome, Reply)}
        messages: list[list[object]] = []
        for number, address in enumerate(last.messages):
            if number in own:
                messages.append(["assistant", said[number]])
            else:
                messages.append(self._asked(address, journal))
        reply = last.outcome.text if isinstance(last.outcome, Reply) else None
        problem = last.outcome.reason if isinstance(last.outcome, CallProblem) else None
        return [last.model, messages, reply, problem]

    def _asked(self, address: str, journal: JournalReader) -> list[object]:
        """A prompt by its lines, fetched once for all generations of a combination."""
        known = self._prompts.get(address)
        if known is None:
            if len(self._prompts) >= _MOST_KNOWN:
                self._prompts.clear()
            message = journal.message(address)
            known = self._prompts[address] = [message.role, self._numbered(message.content)]
        return known

    def add_votes(self, graded: GradedConversation, journal: JournalReader, numbers: RunArchive) -> None:
        """Write the gradings of a text, if there are any."""
        if graded.calls:
            numbers.votes[graded.text.conversation] = self._votes.add(self._ballot(graded, journal, numbers.run))

    def _ballot(self, graded: GradedConversation, journal: JournalReader, run: str) -> list[object]:
        prompts: dict[tuple[str, ...], int] = {}
        shown: list[object] = []
        votes: list[object] = []
        for call, reading in zip(graded.calls, graded.readings, strict=True):
            key, outcome = call.key, call.outcome
            assert isinstance(key, GradeKey)  # conversations join grading calls only
            if call.messages not in prompts:
                prompts[call.messages] = len(prompts)
                shown.append([self._prompt(a, graded.text.answer.text, journal) for a in call.messages])
            points = None if reading is None or reading.points is None else list(reading.points)
            problem = reading.problem if reading else (outcome.reason if isinstance(outcome, CallProblem) else None)
            votes.append(
                [
                    self._grader(run, key.grader),
                    key.round,
                    key.attempt,
                    prompts[call.messages],
                    outcome.text if isinstance(outcome, Reply) else None,
                    points,
                    problem,
                    list(reading.notes) if reading else [],
                ]
            )
        return [shown, votes]

    def _prompt(self, address: str, answer: str, journal: JournalReader) -> list[object]:
        """Lines by number, with a hole where the student's text stands."""
        message = journal.message(address)
        before, text, after = message.content.partition(answer) if answer else (message.content, "", "")
        if not text:
            return [message.role, self._numbered(message.content)]
        return [message.role, [*self._numbered(before), -1, *self._numbered(after)]]

    def _numbered(self, content: str) -> list[int]:
        """Lines by number; texts of one combination come one after the other, and have the same prompts around them."""
        known = self._known.get(content)
        if known is None:
            if len(self._known) >= _MOST_KNOWN:
                self._known.clear()
            known = self._known[content] = list(map(self._line_number, content.split("\n")))
        return known

    def _line_number(self, line: str) -> int:
        number = self._line_numbers.get(line)
        if number is None:
            number = self._line_numbers[line] = self._lines.add(line)
        return number

    def _student(self, run: str, student: str) -> int:
        return self._students.setdefault((run, student), len(self._students))

    def _grader(self, run: str, grader: str) -> int:
        return self._graders.setdefault((run, grader), len(self._graders))

    def close(self, runs: Sequence["ArchivedRun"], cells: Sequence[Cell], facts: Mapping[str, object]) -> None:
        """Write the texts by combination, and the index."""
        order = _combination_order(cells, runs)
        texts = _texts_by_combination(runs)
        numbers: dict[str, int] = {}
        for combination in order:
            entries = [self._text(*found) for found in texts.get(combination.id, ())]
            skills = [self._skills.number(skill) for skill in combination.skills]
            topic = self._topics.number(combination.topic)
            numbers[combination.id] = self._texts.add([combination.id, skills, topic, entries])
        for chunks in (self._texts, self._talks, self._votes, self._lines):
            chunks.flush()
        index = {
            **facts,
            "students": [list(key) for key in self._students],
            "graders": [list(key) for key in self._graders],
            "skills": self._skills.all,
            "topics": self._topics.all,
            "reasons": list(self._reasons),
            "cells": [self._cell(cell, numbers) for cell in cells],
            "combinations": self._texts.count,
            "starts": {
                "texts": self._texts.starts,
                "talks": self._talks.starts,
                "votes": self._votes.starts,
                "lines": self._lines.starts,
            },
        }
        self._write("index.js", index_script(index))

    def _cell(self, cell: Cell, numbers: Mapping[str, int]) -> list[object]:
        run, student, grader, setting, k = cell.key
        ranges = _ranges(numbers[c.id] for c in cell.combinations if c.id in numbers)
        return [self._student(run, student), self._grader(run, grader), setting, k, ranges]

    def _text(self, run: "ArchivedRun", text: StudentText, ballots: Sequence[tuple[Ballot, Points]]) -> list[object]:
        conversation = text.conversation
        found = run.found.get(conversation)
        return [
            self._student(run.place.run, text.student),
            text.generation,
            text.answer.status,
            text.answer.text,
            [self._points(run, b, points) for b, points in ballots],
            run.place.talks.get(conversation, -1),
            run.place.votes.get(conversation, -1),
            list(found.words) if found else 0,
            [self._skills.number(s) for s in found.unrequested] if found else 0,
        ]

    def _points(self, run: "ArchivedRun", ballot: Ballot, points: Points) -> list[object]:
        """A grader, its points by sign and, if code denied any of them, the reasons by place."""
        entry: list[object] = [self._grader(run.place.run, ballot.grader), "".join(_POINT[p] for p in points)]
        reasons = run.reasons(ballot, points)
        if reasons:
            names = (*ballot.text.combination.skills, *RESERVED_NAMES)
            entry.append([self._reason(reasons[name]) if name in reasons else None for name in names])
        return entry

    def _reason(self, reason: str) -> int | str:
        """A reason by its number; itself once there are so many that the index would grow too large."""
        if reason in self._reasons or len(self._reasons) < _MOST_REASONS:
            return self._reasons.setdefault(reason, len(self._reasons))
        return reason


@dataclass(frozen=True)
class ArchivedRun:
    """A run as the archive needs it, once all is decided."""

    place: RunArchive
    texts: Sequence[StudentText]
    decided: Sequence[tuple[Ballot, Points]]
    found: Mapping[ConversationKey, CodeEvidence]
    rules: Rules
    """Under which the points were decided."""

    def reasons(self, ballot: Ballot, points: Points) -> dict[str, str]:
        """Why code denied points of a text, by criterion."""
        text = ballot.text
        found = self.found.get(text.conversation)
        by_checkers = found.reasons.get(ballot.grader, {}) if found else {}
        return reasons_of(points, text.combination.skills, text.answer, self.rules, by_checkers)


def _combination_order(cells: Sequence[Cell], runs: Sequence[ArchivedRun]) -> list[Combination]:
    """Those of one cell together, so that a cell's page loads few files; then the rest."""
    order: dict[str, Combination] = {}
    for cell in cells:
        for combination in cell.combinations:
            order.setdefault(combination.id, combination)
    rest = {text.combination.id: text.combination for run in runs for text in run.texts}
    for combination in sorted(rest.values(), key=lambda c: (c.k, c.id)):
        order.setdefault(combination.id, combination)
    return list(order.values())


_Entry = tuple[ArchivedRun, StudentText, list[tuple[Ballot, Points]]]


def _texts_by_combination(runs: Sequence[ArchivedRun]) -> dict[str, list[_Entry]]:
    texts: dict[str, list[_Entry]] = {}
    for run in runs:
        votes: dict[int, list[tuple[Ballot, Points]]] = {}
        for ballot, points in run.decided:
            votes.setdefault(id(ballot.text), []).append((ballot, points))
        for text in sorted(run.texts, key=lambda t: (t.student, t.generation)):
            texts.setdefault(text.combination.id, []).append((run, text, votes.get(id(text), [])))
    return texts


def _ranges(numbers: Iterable[int]) -> list[list[int]]:
    """Numbers as runs of first and last.

    >>> _ranges([3, 4, 5, 9])
    [[3, 5], [9, 9]]
    """
    ranges: list[list[int]] = []
    for number in numbers:
        if ranges and number == ranges[-1][1] + 1:
            ranges[-1][1] = number
        else:
            ranges.append([number, number])
    return ranges
