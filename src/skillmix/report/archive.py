"""Store the texts of a report, with votes, raw replies and prompts, in script files that a page can load."""

import json
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any, Final, TypeVar

from skillmix.calls import Call, CallProblem, Message, Reply, is_human
from skillmix.catalog.catalog import RESERVED_NAMES
from skillmix.catalog.combinations import Combination
from skillmix.grading.answers import Rules
from skillmix.grading.points import (
    FULL_MARKS,
    Ballot,
    Points,
    StudentText,
    format_reasons,
    may_be_denied,
    outcome_reasons,
    reasons_of,
)
from skillmix.grading.reader import outcome_words, words_about
from skillmix.prompts.rubric import OUTCOMES, Rubric, rubric_of
from skillmix.render import p_value, remark_on, share, signed_with_interval, whole
from skillmix.report.records import Report, by_key
from skillmix.runs.journal import JournalReader
from skillmix.runs.run import Run
from skillmix.runs.texts import ConversationKey, GradedConversation, grade_key
from skillmix.runs.verdicts import applicable_reasons
from skillmix.scores.cells import Cell, CellKey
from skillmix.scores.comparisons import PairRow
from skillmix.scores.graders import Readability
from skillmix.scores.sentences import pair_sentences

encode_json: Final = json.JSONEncoder(ensure_ascii=True, allow_nan=False, separators=(",", ":")).encode
_MOST_CACHED: Final = 1000


@dataclass(frozen=True, slots=True)
class CodeEvidence:
    """The evidence that code found in a text: the words that show each requested skill, and any unrequested skills."""

    words: tuple[str | None, ...]
    unrequested: tuple[str, ...]
    reasons: Mapping[str, Mapping[str, str]]
    """For each grader that uses code, the reasons why code denied points, by criterion."""
    masked: tuple[str | None, ...] = ()
    """The words that show each requested skill, with the words of the topic masked."""
    woven: tuple[bool | None, ...] = ()
    """Whether the text applies each requested skill to the topic; None if it does not show the skill."""


LARGEST: Final = 1_000_000
"""The maximum size of a data file in bytes."""
_ROOM: Final = LARGEST - 200
_CUT: Final = " […] truncated; the full text is in the journal"


class Chunks:
    """A writer that numbers the items of one kind and stores them in files of limited size."""

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
        """Add an item that is already encoded as JSON, and return its number."""
        if len(encoded) > _ROOM:
            # Truncate the strings until the item fits in a file. The journal still contains the full text.
            whole = json.loads(encoded)
            fitting = (encode_json(_cut(whole, longest)) for longest in (50_000, 5_000, 500, 50))
            encoded = next((shorter for shorter in fitting if len(shorter) <= _ROOM), "null")
        if self._items and self._size + len(encoded) + 1 > _ROOM:
            self.flush()
        if not self._items:
            self.starts.append(self.count)
        self._items.append(encoded)
        self._size += len(encoded) + 1
        self.count += 1
        return self.count - 1

    def flush(self) -> None:
        """Write all items that are not yet in a file."""
        if self._items:
            number = len(self.starts) - 1
            self._write(f"{self._kind}-{number}.js", script(self._kind, number, f"[{','.join(self._items)}]"))
            self._items, self._size = [], 0


def script(kind: str, number: int, encoded: str) -> str:
    """Make a script file that passes its data to the page; it is ASCII, so that its encoding does not matter."""
    return f'skillmix("{kind}",{number},{encoded});\n'


def _cut(item: object, longest: int) -> object:
    if isinstance(item, str):
        return item if len(item) <= longest else item[:longest] + _CUT
    return [_cut(part, longest) for part in item] if isinstance(item, list | tuple) else item


class RunArchive:
    """Writes a run's conversations to the archive while reading them, and collects data for the report's tables."""

    def __init__(self, archive: "Archive", run: Run, rules: Rules, sample: frozenset[str] | None) -> None:
        self.run = run.name
        self.phrases = run.phrases
        self.rules = rules
        """The scoring rules for the displayed points."""
        self.sample = sample
        """The combinations whose texts are shown; None for all."""
        self.combinations: Mapping[str, Combination] = {}
        """The combinations of the journal or of the sample, by id."""
        self.texts: Sequence[StudentText] = ()
        self.decided: Sequence[tuple[Ballot, Points]] = ()
        """All ballots with their points."""
        self.following: frozenset[ConversationKey] = frozenset()
        """Conversations whose texts are near-copies of an example in the prompts."""
        self.evidence: dict[ConversationKey, CodeEvidence] = {}
        self.talks: dict[ConversationKey, int] = {}
        self.votes: dict[ConversationKey, int] = {}
        self.denials: dict[ConversationKey, dict[tuple[str, int], str]] = {}
        """By grader and criterion index, the grader's comment on a point that a vote denies."""
        self.not_sent: set[str] = set()
        """Parameters that providers did not accept."""
        self._archive = archive
        self._graders_with_code = run.graders_with_code
        self._prompts: dict[str, tuple[str, str]] = {}
        """The role of each prompt and the numbers of its lines, cached because texts of a combination share prompts."""
        self._rubric: tuple[str, Rubric] | None = None
        """The rubric of the last combination, cached because consecutive texts often share a combination."""
        self._calls: Counter[str] = Counter()
        self._without_reply: Counter[str] = Counter()
        self._unreadable: dict[str, Counter[str]] = defaultdict(Counter)

    def add_talk(self, conversation: ConversationKey, calls: Sequence[Call], journal: JournalReader) -> None:
        """Write a student's conversation, without the votes on its text."""
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
                message = journal.message(address)
                self._prompts[address] = encode_json(message.role), self._archive.lines(message.content)
            role, lines = self._prompts[address]
            shown.append(f"[{role},[{lines}]]")
        reply = last.outcome.text if isinstance(last.outcome, Reply) else None
        problem = last.outcome.reason if isinstance(last.outcome, CallProblem) else None
        talk = f"[{encode_json(last.model)},[{','.join(shown)}],{encode_json(reply)},{encode_json(problem)}]"
        self.talks[conversation] = self._archive.chunks["talks"].add_encoded(talk)
        self._note_not_sent(calls)

    def _note_not_sent(self, calls: Iterable[Call]) -> None:
        for call in calls:
            if isinstance(call.outcome, Reply) and call.outcome.not_sent:
                self.not_sent |= {f"{name} ({call.model})" for name in call.outcome.not_sent}

    def add_gradings(self, graded: GradedConversation, messages: Mapping[str, Message]) -> None:
        """Write the votes on a text with their prompts, count the votes, and keep comments on denied points."""
        conversation, judged = graded.text.conversation, graded.judged
        if judged is not None:
            reasons = {g.name: applicable_reasons(judged, is_alone=g.is_code_alone) for g in self._graders_with_code}
            found = CodeEvidence(judged.words, judged.unrequested, reasons, judged.masked, judged.woven)
            self.evidence[conversation] = found
        if not graded.calls:
            return
        prompts: dict[tuple[str, ...], int] = {}
        shown = []
        votes: list[list[object]] = []
        by_grader: dict[str, list[tuple[str, tuple[float | None, ...]]]] = {}
        for call, reading in zip(graded.calls, graded.readings, strict=True):
            if call.messages not in prompts:
                prompts[call.messages] = len(prompts)
                shown.append(self._shown_prompt(call.messages, graded.text.answer.text, messages))
            key, outcome = grade_key(call), call.outcome
            vote: list[object] = [
                self._archive.grader(self.run, key.grader),
                key.round,
                key.attempt,
                prompts[call.messages],
                outcome.text if isinstance(outcome, Reply) else None,
                None if reading is None or reading.points is None else list(reading.points),
                reading.problem if reading else (outcome.reason if isinstance(outcome, CallProblem) else None),
                list(reading.notes) if reading else [],
            ]
            votes.append(vote)
            if is_human(key.grader):
                continue  # a person's answer is not a call and is never unparseable
            self._calls[key.grader] += 1
            if reading is None:
                self._without_reply[key.grader] += 1
            elif reading.problem is not None:
                self._unreadable[key.grader][reading.problem] += 1
            if isinstance(outcome, Reply) and reading and reading.points:
                by_grader.setdefault(key.grader, []).append((outcome.text, reading.points))
        encoded = f"[[{','.join(shown)}],{encode_json(votes)}]"
        self.votes[conversation] = self._archive.chunks["votes"].add_encoded(encoded)
        self._note_not_sent(graded.calls)
        self._keep_denials(graded.text, by_grader)

    def _shown_prompt(self, addresses: Sequence[str], answer: str, messages: Mapping[str, Message]) -> str:
        """Encode the messages of a request, with -1 in place of the student's text."""
        parts = []
        for message in map(messages.__getitem__, addresses):
            before, found, after = message.content.partition(answer) if answer else (message.content, "", "")
            lines = self._archive.lines(before) + (f",-1,{self._archive.lines(after)}" if found else "")
            parts.append(f"[{encode_json(message.role)},[{lines}]]")
        return f"[{','.join(parts)}]"

    def _keep_denials(
        self, text: StudentText, by_grader: Mapping[str, Sequence[tuple[str, tuple[float | None, ...]]]]
    ) -> None:
        """For each point that a grader's votes may deny, keep the first comment on it in the replies."""
        found: dict[tuple[str, int], str] = {}
        for grader, votes in by_grader.items():
            if self.phrases.outcomes:
                # keep the first reason for each outcome
                for reply, points in votes:
                    if words := outcome_words(reply):
                        found.setdefault((grader, points.index(1.0)), words)
                continue
            # code decides the last criterion, the length, and provides the reason for it
            for index, points in enumerate(zip(*(points[:-1] for _, points in votes), strict=True)):
                if may_be_denied(points):
                    if self._rubric is None or self._rubric[0] != text.combination.id:
                        skills, topic = text.combination.skills, text.combination.topic
                        self._rubric = text.combination.id, rubric_of(skills, topic, phrases=self.phrases)
                    rubric = self._rubric[1]
                    replies = (reply for reply, own in votes if own[index] == 0.0)
                    denials = (words_about(rubric, index, reply) for reply in replies)
                    if words := next(filter(None, denials), None):
                        found[grader, index] = words
        if found:
            self.denials[text.conversation] = found

    def readability(self) -> list[Readability]:
        """Count the calls to each grader, the calls without a reply, and the unparseable replies by reason."""
        return [
            Readability(
                run=self.run,
                grader=grader,
                calls=self._calls[grader],
                unreadable=self._unreadable[grader].total(),
                without_reply=self._without_reply[grader],
                reasons=dict(sorted(self._unreadable[grader].items(), key=lambda item: (-item[1], item[0]))),
            )
            for grader in sorted(self._calls)
        ]

    def has_code(self, ballot: Ballot) -> bool:
        """Whether code checked a text for its grader."""
        evidence = self.evidence.get(ballot.text.conversation)
        return evidence is not None and ballot.grader in evidence.reasons

    def remarks(self, ballot: Ballot, points: Points) -> list[str | None]:
        """For each criterion, return why its point was denied, a note that the skill is off topic, or None."""
        text = ballot.text
        denials = self.denials.get(text.conversation, {})
        evidence = self.evidence.get(text.conversation) if self.has_code(ballot) else None
        if self.phrases.outcomes:
            # add the reason for a text's outcome, from code or from a grader's comment
            names: Sequence[str] = OUTCOMES
            reasons = outcome_reasons(text.answer)
            woven: tuple[bool | None, ...] = (None,) * len(names)
            remarked = [bool(point) for point in points]
            worded = remarked
        else:
            skills = text.combination.skills
            names = (*skills, *RESERVED_NAMES)
            by_checkers = evidence.reasons.get(ballot.grader, {}) if evidence else {}
            given = {**by_checkers, **format_reasons(text.answer.text, len(skills), self.phrases.format)}
            reasons = reasons_of(points, skills, text.answer, self.rules, given, is_cut=text.is_cut)
            woven = (*(evidence.woven if evidence else (None,) * len(names)), *(None,) * len(names))
            remarked = [True] * len(names)
            worded = [point is False for point in points]
        return [
            remark_on(
                reasons.get(name),
                woven=woven[index],
                grader_words=denials.get((ballot.grader, index)) if worded[index] else None,
            )
            if remarked[index]
            else None
            for index, name in enumerate(names)
        ]


_MAX_REASONS: Final = 1000
"""The maximum number of reasons in the index, which must stay small."""
_POINT = {True: "1", False: "0", None: "?"}
_CUT_OFF: Final = 1
_FOLLOWS_EXAMPLE: Final = 2
MOST_PAIRS: Final = 100
"""The maximum number of pairs of students from one run on the page; `skillmix compare` compares any other pair."""


_Key = TypeVar("_Key", str, tuple[str, str])


def _number(numbers: dict[_Key, int], name: _Key) -> int:
    """Return the number of a name; a new name gets the next number."""
    return numbers.setdefault(name, len(numbers))


class Archive:
    """Writes calls to files while reading them, so that the replies of a run are never all in memory."""

    def __init__(self, write: Callable[[str, str], None]) -> None:
        self.chunks = {kind: Chunks(kind, write) for kind in ("texts", "marks", "pairs", "talks", "votes", "lines")}
        self.runs: list[RunArchive] = []
        self._write = write
        self._lines: dict[str, int] = {}
        self._students: dict[tuple[str, str], int] = {}
        self._graders: dict[tuple[str, str], int] = {}
        self._skills: dict[str, int] = {}
        self._topics: dict[str, int] = {}
        self._reasons: dict[str, int] = {}
        self._with_code: set[int] = set()
        """The numbers of graders for which code checked any text."""

    def begin(self, run: Run, rules: Rules, sample: frozenset[str] | None) -> RunArchive:
        """Start the part of the archive that belongs to a run."""
        self.runs.append(RunArchive(self, run, rules, sample))
        return self.runs[-1]

    def introduce(self, run: str, students: Iterable[str], graders: Iterable[str]) -> None:
        """Number students and graders in advance, which fixes the order in which the page lists them."""
        for student in students:
            _number(self._students, (run, student))
        for grader in graders:
            self.grader(run, grader)

    def grader(self, run: str, grader: str) -> int:
        """Return the number of a grader."""
        return _number(self._graders, (run, grader))

    def lines(self, content: str) -> str:
        """Return the numbers of a prompt's lines, separated by commas, and write the lines that are new."""
        numbers = []
        for line in content.split("\n"):
            if line not in self._lines:
                self._lines[line] = self.chunks["lines"].add(line)
            numbers.append(str(self._lines[line]))
        return ",".join(numbers)

    def close(self, report: Report, facts: Mapping[str, object]) -> None:
        """Write the texts by combination, the pairs of students, and the index."""
        texts: dict[str, list[tuple[RunArchive, StudentText, list[tuple[Ballot, Points]]]]] = {}
        for run in self.runs:
            votes: dict[int, list[tuple[Ballot, Points]]] = {}
            for ballot, points in run.decided:
                votes.setdefault(id(ballot.text), []).append((ballot, points))
            for text in sorted(run.texts, key=lambda t: (t.student, t.generation)):
                texts.setdefault(text.combination.id, []).append((run, text, votes.get(id(text), [])))
        numbers: dict[str, int] = {}
        for combination in _combination_order(report.all_cells, self.runs):
            entries = [self._text(*entry) for entry in texts.get(combination.id, ())]
            skills = [_number(self._skills, skill) for skill in combination.skills]
            topic = _number(self._topics, combination.topic)
            numbers[combination.id] = self.chunks["texts"].add([combination.id, skills, topic, entries])
            # Keep the fields of a text that filters and sorting use: everything before the text itself, without
            # remarks.
            marks = [[*head, [one[:2] for one in graded]] for *head, graded in (entry[:5] for entry in entries)]
            self.chunks["marks"].add([combination.id, skills, topic, marks])
        pairs = self._add_pairs(report, numbers)
        for chunk in self.chunks.values():
            chunk.flush()
        index = {
            **facts,
            "students": [list(key) for key in self._students],
            "graders": [list(key) for key in self._graders],
            "graders_with_code": sorted(self._with_code),
            "skills": list(self._skills),
            "topics": list(self._topics),
            "reasons": list(self._reasons),
            "cells": [
                [
                    *(_number(self._students, cell.key[:2]), self.grader(cell.key.run, cell.key.grader)),
                    *(cell.key.setting, cell.key.k),
                    _ranges(numbers[c.id] for c in cell.combinations if c.id in numbers),
                ]
                for cell in report.all_cells
            ],
            "pairs": pairs,
            "combinations": self.chunks["texts"].count,
            "starts": {name: chunk.starts for name, chunk in self.chunks.items()},
        }
        self._write("index.js", script("index", 0, encode_json(index)))

    def _text(self, run: RunArchive, text: StudentText, ballots: Sequence[tuple[Ballot, Points]]) -> list[Any]:
        conversation = text.conversation
        evidence = run.evidence.get(conversation)
        graded: list[object] = []
        for ballot, points in ballots:
            # store a grader, its points as characters and, if any criterion has a remark, the remarks on each criterion
            grader = self.grader(run.run, ballot.grader)
            entry: list[object] = [grader, "".join(_POINT[p] for p in points)]
            if run.has_code(ballot):
                self._with_code.add(grader)
            remarks = run.remarks(ballot, points)
            if any(remarks):
                # Use the number of each remark, or the remark itself once the index contains enough remarks.
                is_full = len(self._reasons) >= _MAX_REASONS
                entry.append(
                    [
                        remark
                        if remark is None or (is_full and remark not in self._reasons)
                        else _number(self._reasons, remark)
                        for remark in remarks
                    ]
                )
            graded.append(entry)
        return [
            _number(self._students, (run.run, text.student)),
            text.generation,
            text.answer.status,
            _CUT_OFF * bool(text.is_cut) + _FOLLOWS_EXAMPLE * (conversation in run.following),
            graded,
            text.answer.text,
            run.talks.get(conversation, -1),
            run.votes.get(conversation, -1),
            list(evidence.words) if evidence else 0,
            [_number(self._skills, s) for s in evidence.unrequested] if evidence else 0,
        ]

    def _add_pairs(self, report: Report, numbers: Mapping[str, int]) -> list[list[object]]:
        """Write the comparison of each pair of students in a run that share a complete combination, up to a limit."""
        cells = by_key(report.cells)
        known: dict[tuple[str, str, str], list[PairRow]] = {}
        for compared in report.comparisons:
            known.setdefault((compared.run, compared.base, compared.student), []).append(compared.row)
        listed: list[list[object]] = []
        for run in report.runs:
            students = [student for of, student in report.students if of == run.name]
            for pair in list(combinations(students, 2))[:MOST_PAIRS]:
                own = known.get((run.name, *pair))
                rows = report.compared(run.name, *pair) if own is None else own
                encoded = []
                for row in rows:
                    first, second = (cells[CellKey(run.name, name, row.grader, row.setting, row.k)] for name in pair)
                    encoded.append(self.chunks["pairs"].add(_encoded_pair(row, first, second, numbers)))
                if rows:
                    listed.append([run.name, *pair, pair_sentences(*pair, rows), encoded])
        return listed


def _encoded_pair(row: PairRow, first: Cell, second: Cell, numbers: Mapping[str, int]) -> dict[str, object]:
    """Encode a row for the page, with each student's best text for every combination on which they differ.

    `differences` lists second minus first, followed by first minus second.
    """
    before, after = first.best(FULL_MARKS), second.best(FULL_MARKS)
    tries = [dict(zip((c.id for c in of.combinations), of.values(FULL_MARKS), strict=True)) for of in (first, second)]
    won: list[list[int]] = []
    lost: list[list[int]] = []
    for name in (c.id for c in second.combinations):
        if name in numbers and name in before and name in after and before[name] != after[name]:
            best = [own[name].index(values[name]) for own, values in zip(tries, (before, after), strict=True)]
            (won if after[name] > before[name] else lost).append([numbers[name], *best])
    low, high = row.low, row.high
    backward = (None if high is None else -high, None if low is None else -low)
    return {
        "grader": row.grader,
        "setting": row.setting,
        "k": row.k,
        "values": [share(row.first_value), share(row.second_value)],
        "differences": [
            signed_with_interval(row.difference, low, high),
            signed_with_interval(-row.difference, *backward),
        ],
        "bounds": [row.difference, low, high],
        "p": p_value(row.p),
        "corrected": p_value(row.p_corrected),
        "clear": (row.found > 0) - (row.found < 0),
        "verdict": row.words,
        "wins": row.wins,
        "ties": row.ties,
        "losses": row.losses,
        "combinations": row.combinations,
        "needed": "–" if row.still_needed is None else whole(row.still_needed),
        "won": won,
        "lost": lost,
    }


def _combination_order(cells: Sequence[Cell], runs: Sequence[RunArchive]) -> list[Combination]:
    """Order combinations cell by cell, then all others, so that the page loads few files for a cell."""
    order: dict[str, Combination] = {}
    samples = {run.run: run.sample for run in runs}
    for cell in cells:
        sample = samples.get(cell.key.run)
        for combination in cell.combinations:
            if sample is None or combination.id in sample:
                order.setdefault(combination.id, combination)
    rest = {text.combination.id: text.combination for run in runs for text in run.texts}
    for combination in sorted(rest.values(), key=lambda c: (c.k, c.id)):
        order.setdefault(combination.id, combination)
    return list(order.values())


def _ranges(numbers: Iterable[int]) -> list[list[int]]:
    """Group numbers into ranges, each given by its first and last number.

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
