"""The texts of a report with their votes, raw replies and prompts, in script files that a page can load."""

import gc
import json
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Final

from skillmix.calls import Call, CallProblem, GradeKey, Reply, is_human
from skillmix.catalog.catalog import RESERVED_NAMES
from skillmix.catalog.combinations import Combination
from skillmix.grading.answers import Rules
from skillmix.grading.points import (
    Ballot,
    Points,
    StudentText,
    format_reasons,
    may_be_denied,
    outcome_reasons,
    reasons_of,
)
from skillmix.grading.reader import outcome_words, words_about
from skillmix.prompts.rubric import OUTCOMES, Phrases, Rubric, rubric_of
from skillmix.render import remark_on
from skillmix.report.records import ComparedStudents
from skillmix.runs.journal import JournalReader
from skillmix.runs.run import Run
from skillmix.runs.texts import ConversationKey, GradedConversation, grade_key
from skillmix.runs.verdicts import JudgedText, applicable_reasons
from skillmix.scores.cells import Cell
from skillmix.scores.graders import Readability

encode_json: Final = json.JSONEncoder(ensure_ascii=True, allow_nan=False, separators=(",", ":")).encode
_MOST_CACHED: Final = 1000


@contextmanager
def without_cycle_search() -> Iterator[None]:
    """Let the garbage collector rest: records have no cycles, and looking for some takes a tenth of the time."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


@dataclass(frozen=True, slots=True)
class CodeEvidence:
    """What code found in a text: the words that show each requested skill, and skills that were not requested."""

    words: tuple[str | None, ...]
    unrequested: tuple[str, ...]
    reasons: Mapping[str, Mapping[str, str]]
    """For each grader that uses code: why code denies a point, by criterion."""
    masked: tuple[str | None, ...] = ()
    """The words that show each requested skill, with the topic's words masked."""
    woven: tuple[bool | None, ...] = ()
    """Whether the text shows each requested skill about the topic; None if it does not show the skill."""


def evidence_of(run: Run, judged: JudgedText) -> CodeEvidence:
    """The words that show each skill, the skills that were not asked for, and why code denies points."""
    reasons = {g.name: applicable_reasons(judged, is_alone=g.is_code_alone) for g in run.graders_with_code}
    return CodeEvidence(judged.words, judged.unrequested, reasons, judged.masked, judged.woven)


class CallEncoder:
    """Puts the calls of one run into the JSON of a report's files, where numbers stand for lines and graders."""

    def __init__(
        self, journal: JournalReader, line_number: Callable[[str], int], grader_number: Callable[[str], int]
    ) -> None:
        self._journal = journal
        self._line_number = line_number
        self._grader_number = grader_number
        self._prompts: dict[str, tuple[str, str]] = {}
        """The role of each prompt and the numbers of its lines: texts of a combination have the same prompts."""

    def talk(self, calls: Sequence[Call]) -> str:
        """A student's side of a conversation."""
        last = calls[-1]
        replies = {len(c.messages): c.outcome.text for c in calls[:-1] if isinstance(c.outcome, Reply)}
        shown = []
        for number, address in enumerate(last.messages):
            if number in replies:
                shown.append(f'["assistant",{encode_json(replies[number])}]')
                continue
            if address not in self._prompts:
                if len(self._prompts) >= _MOST_CACHED:
                    self._prompts.clear()
                message = self._journal.message(address)
                self._prompts[address] = encode_json(message.role), self._lines(message.content)
            role, lines = self._prompts[address]
            shown.append(f"[{role},[{lines}]]")
        reply = last.outcome.text if isinstance(last.outcome, Reply) else None
        problem = last.outcome.reason if isinstance(last.outcome, CallProblem) else None
        return f"[{encode_json(last.model)},[{','.join(shown)}],{encode_json(reply)},{encode_json(problem)}]"

    def votes(self, graded: GradedConversation) -> str:
        """The prompts that graders of a text saw, and then the votes, each with the number of its prompt."""
        prompts: dict[tuple[str, ...], int] = {}
        shown, votes = [], []
        for call in graded.calls:
            if call.messages not in prompts:
                prompts[call.messages] = len(prompts)
                shown.append(self._shown(call.messages, graded.text.answer.text))
        for call, reading in zip(graded.calls, graded.readings, strict=True):
            key, outcome = grade_key(call), call.outcome
            vote = [
                self._grader_number(key.grader),
                key.round,
                key.attempt,
                prompts[call.messages],
                outcome.text if isinstance(outcome, Reply) else None,
                None if reading is None or reading.points is None else list(reading.points),
                reading.problem if reading else (outcome.reason if isinstance(outcome, CallProblem) else None),
                list(reading.notes) if reading else [],
            ]
            votes.append(encode_json(vote))
        return f"[[{','.join(shown)}],[{','.join(votes)}]]"

    def _shown(self, addresses: Sequence[str], answer: str) -> str:
        """The messages of a request, with -1 in place of the student's text."""
        parts = []
        for address in addresses:
            message = self._journal.message(address)
            before, found, after = message.content.partition(answer) if answer else (message.content, "", "")
            lines = f"{self._lines(before)},-1,{self._lines(after)}" if found else self._lines(before)
            parts.append(f"[{encode_json(message.role)},[{lines}]]")
        return f"[{','.join(parts)}]"

    def _lines(self, content: str) -> str:
        return ",".join([str(self._line_number(line)) for line in content.split("\n")])


@dataclass
class CallCounter:
    """Counts calls by grader, and by why a reply is unreadable."""

    calls: Counter[str] = field(default_factory=Counter)
    without_reply: Counter[str] = field(default_factory=Counter)
    reasons: dict[str, Counter[str]] = field(default_factory=lambda: defaultdict(Counter))
    not_sent: set[str] = field(default_factory=set)

    def add_gradings(self, conversation: GradedConversation) -> None:
        """Count the gradings of a text."""
        for call, reading in zip(conversation.calls, conversation.readings, strict=True):
            grader = str(getattr(call.key, "grader", ""))
            if is_human(grader):
                continue  # a person's answer is no call, and never unreadable
            self.calls[grader] += 1
            if reading is None:
                self.without_reply[grader] += 1
            elif reading.problem is not None:
                self.reasons[grader][reading.problem] += 1
        self.add_calls(conversation.calls)

    def add_calls(self, calls: Iterable[Call]) -> None:
        """Note the parameters that providers did not take."""
        for call in calls:
            if isinstance(call.outcome, Reply) and call.outcome.not_sent:
                self.not_sent |= {f"{name} ({call.model})" for name in call.outcome.not_sent}

    def readability(self, run: str) -> list[Readability]:
        """How many replies of each grader could be read."""
        return [
            Readability(
                run=run,
                grader=grader,
                calls=self.calls[grader],
                unreadable=self.reasons[grader].total(),
                without_reply=self.without_reply[grader],
                reasons=dict(sorted(self.reasons[grader].items(), key=lambda item: (-item[1], item[0]))),
            )
            for grader in sorted(self.calls)
        ]


Denials = dict[ConversationKey, dict[tuple[str, int], str]]
"""By grader and index of a criterion, what the grader wrote about a point that a vote denies."""


class DenialWords:
    """Collects the words of graders about the texts of one run."""

    def __init__(self, phrases: Phrases) -> None:
        self._phrases = phrases
        self._rubric: tuple[str, Rubric] | None = None
        """The rubric of the last combination, because consecutive texts share a combination."""
        self.found: Denials = {}

    def add(self, graded: GradedConversation) -> None:
        """Keep what graders wrote about the points of a text that their votes may deny; first replies come first."""
        by_grader: dict[str, list[tuple[str, tuple[float | None, ...]]]] = {}
        for call, reading in zip(graded.calls, graded.readings, strict=True):
            if not isinstance(call.key, GradeKey) or is_human(call.key.grader):
                continue
            if isinstance(call.outcome, Reply) and reading and reading.points:
                by_grader.setdefault(call.key.grader, []).append((call.outcome.text, reading.points))
        for grader, votes in by_grader.items():
            if self._phrases.outcomes:
                self._add_outcome_words(graded.text, grader, votes)
                continue
            # Code decides on length, the last criterion, and gives the reason itself.
            for index, points in enumerate(zip(*(points[:-1] for _, points in votes), strict=True)):
                if may_be_denied(points):
                    replies = [reply for reply, own in votes if own[index] == 0.0]
                    self._add_denial(graded.text, grader, index, replies)

    def _add_outcome_words(
        self, text: StudentText, grader: str, votes: Iterable[tuple[str, tuple[float | None, ...]]]
    ) -> None:
        """Keep for each outcome the first reason of a reply that names it."""
        own = self.found.setdefault(text.conversation, {})
        for reply, points in votes:
            words = outcome_words(reply)
            if words:
                own.setdefault((grader, points.index(1.0)), words)

    def _add_denial(self, text: StudentText, grader: str, index: int, replies: Iterable[str]) -> None:
        if self._rubric is None or self._rubric[0] != text.combination.id:
            rubric = rubric_of(text.combination.skills, text.combination.topic, phrases=self._phrases)
            self._rubric = text.combination.id, rubric
        rubric = self._rubric[1]
        words = next(filter(None, (words_about(rubric, index, reply) for reply in replies)), None)
        if words:
            self.found.setdefault(text.conversation, {})[grader, index] = words


LARGEST: Final = 1_000_000
"""The largest size of a file in bytes."""
_ROOM: Final = LARGEST - 200
_CUT: Final = " […] cut here; the whole is in the journal"


class Chunks:
    """Numbered items of one kind, written to files of limited size."""

    def __init__(self, kind: str, write: Callable[[str, str], None]) -> None:
        self._kind = kind
        self._write = write
        self._items: list[str] = []
        self._size = 0
        self.starts: list[int] = []
        """The number of the first item of each file."""
        self.count = 0

    def add(self, item: object) -> int:
        """Add an item and return its number."""
        return self.add_encoded(encode_json(item))

    def add_encoded(self, encoded: str) -> int:
        """Add an item in JSON and return its number."""
        if len(encoded) > _ROOM:
            encoded = _fitting(json.loads(encoded))
        if self._items and self._size + len(encoded) + 1 > _ROOM:
            self.flush()
        if not self._items:
            self.starts.append(self.count)
        self._items.append(encoded)
        self._size += len(encoded) + 1
        self.count += 1
        return self.count - 1

    def flush(self) -> None:
        """Write the items that are not in a file yet."""
        if self._items:
            number = len(self.starts) - 1
            self._write(f"{self._kind}-{number}.js", script(self._kind, number, f"[{','.join(self._items)}]"))
            self._items, self._size = [], 0


def script(kind: str, number: int, encoded: str) -> str:
    """The text of a file that hands its data to the page, in ASCII so that no encoding can change it."""
    return f'skillmix("{kind}",{number},{encoded});\n'


def index_script(index: object) -> str:
    """The text of the file that lists students, graders and cells, and the first number of each chunk."""
    return script("index", 0, encode_json(index))


def _fitting(item: object) -> str:
    """An item whose strings are cut until it fits in a file; the journal has the whole."""
    for longest in (50_000, 5_000, 500, 50):
        encoded = encode_json(_cut(item, longest))
        if len(encoded) <= _ROOM:
            return encoded
    return encode_json(None)


def _cut(item: object, longest: int) -> object:
    if isinstance(item, str):
        return item if len(item) <= longest else item[:longest] + _CUT
    return [_cut(part, longest) for part in item] if isinstance(item, list | tuple) else item


_MAX_REASONS: Final = 1000
"""Reasons in the index, which must stay small."""
_POINT = {True: "1", False: "0", None: "?"}
_CUT_OFF: Final = 1
_FOLLOWS_EXAMPLE: Final = 2


class Names:
    """Strings, each with a number."""

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {}

    def number(self, name: str) -> int:
        """The number of a name, a new one if it is new."""
        return self._numbers.setdefault(name, len(self._numbers))

    @property
    def all(self) -> list[str]:
        """Every name, in the order of the numbers."""
        return list(self._numbers)


@dataclass
class RunArchive:
    """The numbers under which the conversations of one run are archived."""

    run: str
    phrases: Phrases = field(default_factory=Phrases)
    """The criteria of the run's prompts in words."""
    talks: dict[ConversationKey, int] = field(default_factory=dict)
    votes: dict[ConversationKey, int] = field(default_factory=dict)
    denials: Denials = field(default_factory=dict)


class Archive:
    """Writes calls to files while they are read, so that the replies of a run are never all in memory."""

    def __init__(self, write: Callable[[str, str], None]) -> None:
        self._write = write
        self._talks = Chunks("talks", write)
        self._votes = Chunks("votes", write)
        self._texts = Chunks("texts", write)
        self._marks = Chunks("marks", write)
        self._pairs = Chunks("pairs", write)
        self._lines = Chunks("lines", write)
        self._line_numbers: dict[str, int] = {}
        self._students: dict[tuple[str, str], int] = {}
        self._graders: dict[tuple[str, str], int] = {}
        self._skills, self._topics = Names(), Names()
        self._reasons: dict[str, int] = {}
        self._graders_with_code: set[int] = set()

    def introduce(self, run: str, students: Iterable[str], graders: Iterable[str]) -> None:
        """Fix the order in which the page lists students and graders."""
        for student in students:
            self._student(run, student)
        for grader in graders:
            self._grader(run, grader)

    def encoder(self, run: str, journal: JournalReader) -> CallEncoder:
        """Puts the calls of a run into JSON, with the archive's numbers of lines and graders."""
        return CallEncoder(journal, self._line_number, lambda grader: self._grader(run, grader))

    def add_talk(self, encoded: str) -> int:
        """Write a student's side of a conversation and return its number."""
        return self._talks.add_encoded(encoded)

    def add_votes(self, encoded: str) -> int:
        """Write the gradings of a text and return their number."""
        return self._votes.add_encoded(encoded)

    def _line_number(self, line: str) -> int:
        number = self._line_numbers.get(line)
        if number is None:
            number = self._line_numbers[line] = self._lines.add(line)
        return number

    def _student(self, run: str, student: str) -> int:
        return self._students.setdefault((run, student), len(self._students))

    def _grader(self, run: str, grader: str) -> int:
        return self._graders.setdefault((run, grader), len(self._graders))

    def close(
        self,
        runs: Sequence["ArchivedRun"],
        cells: Sequence[Cell],
        pairs: Sequence[ComparedStudents],
        facts: Mapping[str, object],
    ) -> None:
        """Write the texts by combination, the pairs of students, and the index."""
        order = _combination_order(cells, runs)
        texts: dict[str, list[_Entry]] = {}
        for run in runs:
            votes: dict[int, list[tuple[Ballot, Points]]] = {}
            for ballot, points in run.decided:
                votes.setdefault(id(ballot.text), []).append((ballot, points))
            for text in sorted(run.texts, key=lambda t: (t.student, t.generation)):
                texts.setdefault(text.combination.id, []).append((run, text, votes.get(id(text), [])))
        numbers: dict[str, int] = {}
        for combination in order:
            entries = [self._text(*entry) for entry in texts.get(combination.id, ())]
            skills = [self._skills.number(skill) for skill in combination.skills]
            topic = self._topics.number(combination.topic)
            numbers[combination.id] = self._texts.add([combination.id, skills, topic, entries])
            self._marks.add([combination.id, skills, topic, [_marks_of(entry) for entry in entries]])
        listed_pairs = [
            [*pair.names, pair.sentences, [self._pairs.add(cell.encoded(numbers)) for cell in pair.cells]]
            for pair in pairs
        ]
        chunks = {
            "texts": self._texts,
            "marks": self._marks,
            "pairs": self._pairs,
            "talks": self._talks,
            "votes": self._votes,
            "lines": self._lines,
        }
        for kind in chunks.values():
            kind.flush()
        index = {
            **facts,
            "students": [list(key) for key in self._students],
            "graders": [list(key) for key in self._graders],
            "graders_with_code": sorted(self._graders_with_code),
            "skills": self._skills.all,
            "topics": self._topics.all,
            "reasons": list(self._reasons),
            "cells": [self._cell(cell, numbers) for cell in cells],
            "pairs": listed_pairs,
            "combinations": self._texts.count,
            "starts": {name: kind.starts for name, kind in chunks.items()},
        }
        self._write("index.js", index_script(index))

    def _cell(self, cell: Cell, numbers: Mapping[str, int]) -> list[object]:
        run, student, grader, setting, k = cell.key
        ranges = _ranges(numbers[c.id] for c in cell.combinations if c.id in numbers)
        return [self._student(run, student), self._grader(run, grader), setting, k, ranges]

    def _text(self, run: "ArchivedRun", text: StudentText, ballots: Sequence[tuple[Ballot, Points]]) -> list[object]:
        conversation = text.conversation
        evidence = run.evidence.get(conversation)
        return [
            self._student(run.numbers.run, text.student),
            text.generation,
            text.answer.status,
            _CUT_OFF * bool(text.is_cut) + _FOLLOWS_EXAMPLE * (conversation in run.following),
            [self._points(run, b, points) for b, points in ballots],
            text.answer.text,
            run.numbers.talks.get(conversation, -1),
            run.numbers.votes.get(conversation, -1),
            list(evidence.words) if evidence else 0,
            [self._skills.number(s) for s in evidence.unrequested] if evidence else 0,
        ]

    def _points(self, run: "ArchivedRun", ballot: Ballot, points: Points) -> list[object]:
        """A grader, its points as characters and, if there is a remark on any of them, the remark on each criterion."""
        grader = self._grader(run.numbers.run, ballot.grader)
        entry: list[object] = [grader, "".join(_POINT[p] for p in points)]
        if run.has_code(ballot):
            self._graders_with_code.add(grader)
        remarks = run.remarks(ballot, points)
        if any(remarks):
            entry.append([None if remark is None else self._reason(remark) for remark in remarks])
        return entry

    def _reason(self, reason: str) -> int | str:
        """The number of a reason, or the reason itself once the index has enough of them."""
        if reason in self._reasons or len(self._reasons) < _MAX_REASONS:
            return self._reasons.setdefault(reason, len(self._reasons))
        return reason


@dataclass(frozen=True)
class ArchivedRun:
    """A run as the archive needs it, with every point decided."""

    numbers: RunArchive
    texts: Sequence[StudentText]
    decided: Sequence[tuple[Ballot, Points]]
    evidence: Mapping[ConversationKey, CodeEvidence]
    rules: Rules
    """The rules under which the points were decided."""

    following: frozenset[ConversationKey] = frozenset()
    """Texts that follow an example of the prompts."""
    sample: frozenset[str] | None = None
    """The combinations whose texts are shown; None for all."""

    def has_code(self, ballot: Ballot) -> bool:
        """Whether code checked a text for its grader."""
        evidence = self.evidence.get(ballot.text.conversation)
        return evidence is not None and ballot.grader in evidence.reasons

    def remarks(self, ballot: Ballot, points: Points) -> list[str | None]:
        """Why each point was lost, by code or in the words of the grader, and which skills are not about the topic."""
        if self.numbers.phrases.outcomes:
            return self._outcome_remarks(ballot, points)
        reasons = self.reasons(ballot, points)
        names = (*ballot.text.combination.skills, *RESERVED_NAMES)
        denials = self.numbers.denials.get(ballot.text.conversation, {})
        evidence = self.evidence.get(ballot.text.conversation) if self.has_code(ballot) else None
        woven = (*(evidence.woven if evidence else (None,) * len(names)), *(None,) * len(names))
        return [
            remark_on(
                reasons.get(name),
                woven=woven[index],
                grader_words=denials.get((ballot.grader, index)) if points[index] is False else None,
            )
            for index, name in enumerate(names)
        ]

    def _outcome_remarks(self, ballot: Ballot, points: Points) -> list[str | None]:
        """Why a text has its outcome: by code, or in the words of a grader that named it."""
        reasons = outcome_reasons(ballot.text.answer)
        words = self.numbers.denials.get(ballot.text.conversation, {})
        return [
            remark_on(reasons.get(name), grader_words=words.get((ballot.grader, index))) if points[index] else None
            for index, name in enumerate(OUTCOMES)
        ]

    def reasons(self, ballot: Ballot, points: Points) -> dict[str, str]:
        """Why code denied points of a text, by criterion."""
        text = ballot.text
        evidence = self.evidence.get(text.conversation)
        by_checkers = evidence.reasons.get(ballot.grader, {}) if evidence else {}
        skills = text.combination.skills
        given = {**by_checkers, **format_reasons(text.answer.text, len(skills), self.numbers.phrases.format)}
        return reasons_of(points, skills, text.answer, self.rules, given, is_cut=text.is_cut)


def _marks_of(entry: list[object]) -> list[object]:
    """What filters and sorting need of a text: everything before the text itself, without remarks."""
    *head, graded = entry[:5]
    assert isinstance(graded, list)
    return [*head, [one[:2] for one in graded]]


def _combination_order(cells: Sequence[Cell], runs: Sequence[ArchivedRun]) -> list[Combination]:
    """Combinations cell by cell, so that the page of a cell loads few files; then the rest."""
    order: dict[str, Combination] = {}
    samples = {run.numbers.run: run.sample for run in runs}
    for cell in cells:
        sample = samples.get(cell.key.run)
        for combination in cell.combinations:
            if sample is None or combination.id in sample:
                order.setdefault(combination.id, combination)
    rest = {text.combination.id: text.combination for run in runs for text in run.texts}
    for combination in sorted(rest.values(), key=lambda c: (c.k, c.id)):
        order.setdefault(combination.id, combination)
    return list(order.values())


_Entry = tuple[ArchivedRun, StudentText, list[tuple[Ballot, Points]]]


def _ranges(numbers: Iterable[int]) -> list[list[int]]:
    """Numbers as ranges of first and last.

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
