"""The read path: every text of a run with its grades, streamed in key order, and a compact table of all texts.

A journal yields the calls of students and of graders in the same order, so a merge-join of the two streams yields one
conversation at a time. All code that reads a run uses this path, but keeps different data.

`texts_with_ballots` yields one text at a time with all data about it. `text_table` keeps only the data that is required
for scores, status and the choice of texts. This takes a few bytes per text, because even ten million conversations have
few different grades. Code that needs the words of texts streams the texts.
"""

import json
import re
from array import array
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from itertools import chain, groupby, islice
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from skillmix.calls import Call, CallProblem, GenerateKey, GradeKey, Reply, is_human
from skillmix.catalog.combinations import Combination
from skillmix.errors import UserError
from skillmix.grading.answers import AnswerStatus, Rules
from skillmix.grading.points import (
    Ballot,
    Points,
    StudentText,
    earns_nothing,
    format_reasons,
    outcome_reasons,
    reasons_of,
)
from skillmix.grading.reader import Reading, read_grades
from skillmix.hashing import short_id
from skillmix.prompts.rubric import rubric_of
from skillmix.render import shortened
from skillmix.runs.journal import JournalReader, JournalWriter
from skillmix.runs.people import read_human_answer
from skillmix.runs.rows import json_text
from skillmix.runs.run import Run
from skillmix.runs.verdicts import (
    JudgedText,
    RulesGrader,
    TextToJudge,
    Votes,
    answer_of,
    applicable_reasons,
    ballot_of,
    code_version,
    is_over,
    judged,
    latest_votes_of,
    on_all_cores,
    votes_of,
)

if TYPE_CHECKING:
    from skillmix.checkers.judge import Verdict

_AT_ONCE: Final = 100
"""The number of conversations whose combinations are read together; more would not fit into a core's cache."""
ConversationKey = tuple[str, str, int]
"""Student, combination and generation."""


class WrittenConversation(NamedTuple):
    """The student's part of a conversation."""

    key: ConversationKey
    turns: tuple[Call, ...]
    text: StudentText | None
    """The final text; None while the conversation is unfinished."""


class GradedConversation(NamedTuple):
    """A text and its grading calls, each with its parsed grade."""

    text: StudentText
    calls: list[Call]
    readings: list[Reading | None]
    """The parsed grades in the order of the calls; None for a call without a reply."""
    turns: tuple[Call, ...] = ()
    """The calls of the student."""
    judged: JudgedText | None = None
    """The code's verdict on the text; None if no grader uses code."""


def written_conversations(
    run: Run,
    journal: JournalReader,
    *,
    student: str | None = None,
    with_uncounted: bool = False,
) -> Iterator[WrittenConversation]:
    """Yield the student's part of every conversation, or of the conversations of one `student`, in key order.

    Conversations that a dataset step of an earlier version prefetched but never counted are omitted by default.
    """
    turns = run.turns
    untried = () if with_uncounted else set(journal.rows("SELECT student, combination, generation FROM uncounted"))
    source = _by_conversation(journal.calls("generate", student=student))
    while block := list(islice(source, _AT_ONCE)):
        combinations = journal.combinations_of({key[1] for key, _ in block}, is_complete=False)
        for key, calls in block:
            if key not in untried:
                yield WrittenConversation(key, calls, _text_of(key, calls[-1], combinations, turns))


def graded_conversations(
    run: Run,
    journal: JournalReader,
    written: Iterable[WrittenConversation] | None = None,
    *,
    student: str | None = None,
    is_read: bool = True,
) -> Iterator[GradedConversation]:
    """Yield the finished conversations of a run, or those among `written`, each with the gradings that count.

    Gradings of another text, such as one from an older extraction, are omitted. Without `is_read`, grades are
    not parsed.
    """
    graders = run.known_graders
    groups = _by_conversation(journal.calls("grade", student=student))
    group = next(groups, None)
    for key, turns, text in written_conversations(run, journal) if written is None else written:
        if text is None:
            continue
        while group is not None and group[0] < key:
            group = next(groups, None)
        gradings: list[Call] = []
        if group is not None and group[0] == key:
            address = text.id
            for call in group[1]:
                grade = call.key
                if isinstance(grade, GradeKey) and grade.text == address:
                    grader = graders.get(grade.grader)
                    if grader is None or grader.counts(grade.round):
                        gradings.append(call)
        readings = [_reading_of(run, text, call) for call in gradings] if is_read else []
        yield GradedConversation(text, gradings, readings, turns)


def _reading_of(run: Run, text: StudentText, call: Call) -> Reading | None:
    """Parse a grading, which is text from a model or a JSON document from a person."""
    if not isinstance(call.outcome, Reply):
        return None
    rubric = rubric_of(text.combination.skills, text.combination.topic, phrases=run.phrases)
    if is_human(grade_key(call).grader):
        return read_human_answer(rubric, call.outcome.text)
    return read_grades(rubric, call.outcome.text, text=text.answer.text)


def grade_key(call: Call) -> GradeKey:
    """Return the key of one of a conversation's grading calls."""
    assert isinstance(call.key, GradeKey)  # a conversation's gradings contain only grading calls
    return call.key


def turn_of(call: Call) -> int:
    """Return the turn number of a student's call."""
    assert isinstance(call.key, GenerateKey)  # a conversation's turns contain only students' calls
    return call.key.turn


def _text_of(
    key: ConversationKey, last: Call, combinations: dict[str, Combination], turns: int | None
) -> StudentText | None:
    reply = last.outcome if isinstance(last.outcome, Reply) else None
    problem = last.outcome.kind if isinstance(last.outcome, CallProblem) else None
    if not is_over(turn=turn_of(last), origin=last.origin, has_reply=bool(reply), problem=problem, turns=turns):
        return None
    student, combination, generation = key
    if combination not in combinations:
        raise UserError(
            f"The journal lacks the combination {combination}.",
            hint="It is damaged. Restore it from a backup.",
        )
    answer = answer_of(reply.text if reply else None, last.origin, turn_of(last))
    return StudentText(student, combinations[combination], generation, answer, reply.finish if reply else None)


def _by_conversation(calls: Iterable[Call]) -> Iterator[tuple[ConversationKey, tuple[Call, ...]]]:
    """Group calls by conversation; raise an error if they are out of order, because a join would then lose calls."""
    before: ConversationKey | None = None
    for key, group in groupby(calls, key=lambda call: (call.key.student, call.key.combination, call.key.generation)):
        if before is not None and not before < key:
            raise UserError("The journal is damaged: its calls are out of order.", hint="Restore it from a backup.")
        before = key
        yield key, tuple(group)


def judged_conversations(
    run: Run,
    source: Iterable[GradedConversation],
    code: RulesGrader | None,
    *,
    with_words: bool = False,
    workers: int | None = None,
) -> Iterator[GradedConversation]:
    """Yield the conversations in order, each with the code's verdict; without code, yield them unchanged."""
    if code is None:
        yield from source
        return
    waiting: deque[GradedConversation] = deque()

    def texts() -> Iterator[TextToJudge]:
        for graded in source:
            waiting.append(graded)
            combination = graded.text.combination
            yield TextToJudge(graded.text.answer.text, combination.skills, combination.topic)

    for found in on_all_cores(partial(judged, with_words=with_words), texts(), run.catalog, code, workers=workers):
        yield waiting.popleft()._replace(judged=found)


class TextWithBallots(NamedTuple):
    """One text of a run with its ballots."""

    conversation: GradedConversation
    groups: tuple[Sequence[Ballot], ...]
    """The ballots from models, from code alone, from earlier graders, and from graders that need not be called."""

    @property
    def text(self) -> StudentText:
        """Return the text."""
        return self.conversation.text

    @property
    def ballots(self) -> Iterator[Ballot]:
        """Return the ballots of all groups."""
        return chain.from_iterable(self.groups)


def texts_with_ballots(
    run: Run,
    journal: JournalReader,
    *,
    combinations: Iterable[str] | None = None,
    with_code: bool = True,
    with_words: bool = False,
    written: Iterable[WrittenConversation] | None = None,
) -> Iterator[TextWithBallots]:
    """Yield every text in key order with its ballots, with only a few texts in memory at once.

    With `combinations`, only texts of these combinations are read, and from then on the journal yields no other calls.
    `with_words` adds the words that show each skill to the code's verdict. Conversations that were already read can be
    passed as `written`.
    """
    code = run.code if with_code else None
    ballots_on = (_imported_ballots if run.is_imported else _planned_ballots)(run, journal, code)
    if combinations is not None:
        journal.limit_calls(combinations)
    source = judged_conversations(run, graded_conversations(run, journal, written), code, with_words=with_words)
    for conversation in source:
        yield TextWithBallots(conversation, ballots_on(conversation))


_BallotsOn = Callable[[GradedConversation], tuple[Sequence[Ballot], ...]]


def _planned_ballots(run: Run, journal: JournalReader, code: RulesGrader | None) -> _BallotsOn:
    """Return a function that makes a text's ballots, one for each grader that counts, whether it has voted or not."""
    alone = [grader for grader in run.graders.values() if code is not None and grader.is_code_alone]
    asked = sorted((g for g in run.graders.values() if g not in alone), key=lambda grader: grader.name)
    rules = run.rules()
    planned: dict[tuple[str, str], set[str]] = defaultdict(set)
    """The graders that earlier experiments planned, by student and combination."""
    for cell in run.earlier_cells:
        for combination in cell.combinations:
            planned[cell.student, combination.id].update(cell.graders)
    voters: dict[tuple[str, int], set[str]] = defaultdict(set)
    """The graders that no experiment names, by the student and k of the texts that they graded."""
    unnamed = {name for name in journal.graders() if name not in run.known_graders and not is_human(name)}
    for one in graded_conversations(run, journal, is_read=False) if unnamed else ():
        voters[one.text.student, one.text.combination.k] |= unnamed & {grade_key(call).grader for call in one.calls}

    def ballots_on(one: GradedConversation) -> tuple[Sequence[Ballot], ...]:
        text, votes, verdict = one.text, votes_by_grader(one), one.judged
        others = sorted({*votes, *planned.get((text.student, text.combination.id), ())} - run.graders.keys())
        earlier = [grader for name in others if not ((grader := run.grader(name)).is_code_alone and verdict is None)]
        # No grader is called for a text that cannot earn a point.
        unasked = voters.get((text.student, text.combination.k), set()) if earns_nothing(text.answer, rules) else set()
        return (
            [ballot_of(text, grader, votes.get(grader.name, {}), verdict) for grader in asked],
            [ballot_of(text, grader, {}, verdict) for grader in alone],
            [ballot_of(text, grader, votes.get(grader.name, {}), verdict) for grader in earlier],
            [ballot_of(text, run.grader(name), {}, None) for name in sorted(unasked - {g.name for g in earlier})],
        )

    return ballots_on


def _imported_ballots(run: Run, journal: JournalReader, code: RulesGrader | None) -> _BallotsOn:
    """Return a function that makes an imported text's ballots: one from each grader of its student, and from people.

    If all texts of a student are empty, no grader was called for them, so each of them has a ballot from every grader.
    """
    graders: dict[str, set[str]] = defaultdict(set)
    gradeable: set[str] = set()
    for one in graded_conversations(run, journal, is_read=False):
        graders[one.text.student].update(run.graders.keys() & {grade_key(call).grader for call in one.calls})
        gradeable.update([one.text.student] if one.text.answer.text else [])
    every = set[str]().union(*graders.values())

    def ballots_on(one: GradedConversation) -> tuple[Sequence[Ballot], ...]:
        text, votes = one.text, votes_by_grader(one)
        names = graders[text.student] if text.student in gradeable else every
        people = sorted(filter(is_human, votes))
        return tuple(
            [ballot_of(text, run.grader(name), votes.get(name, {}), None) for name in own]
            for own in (sorted(names), people)
        )

    return ballots_on


def votes_by_grader(conversation: GradedConversation) -> dict[str, Votes]:
    """Return the votes of each grader on a text, by round."""
    attempts: dict[str, list[tuple[int, Reading | None]]] = {}
    for call, reading in zip(conversation.calls, conversation.readings, strict=True):
        key = grade_key(call)
        attempts.setdefault(key.grader, []).append((key.round, reading))
    return {grader: (latest_votes_of if is_human(grader) else votes_of)(own) for grader, own in attempts.items()}


def verdict_on(run: Run, ballot: Ballot) -> "Verdict | None":
    """Return the code's verdict on a ballot's text; None for a grader without code."""
    if run.code is None or not run.grader(ballot.grader).has_code:
        return None
    combination = ballot.text.combination
    return run.code.verdict(ballot.text.answer.text, skills=combination.skills, topic=combination.topic)


def reasons_for(run: Run, ballot: Ballot, points: Points, rules: Rules, verdict: "Verdict | None") -> dict[str, str]:
    """Return the reasons that code gives for a text's denied points, by criterion."""
    is_alone = run.grader(ballot.grader).is_code_alone
    by_checkers = applicable_reasons(verdict, is_alone=is_alone) if verdict else {}
    text, phrases = ballot.text, run.phrases
    if phrases.outcomes:
        return outcome_reasons(text.answer)
    skills = text.combination.skills
    given = {**by_checkers, **format_reasons(text.answer.text, len(skills), phrases.format)}
    return reasons_of(points, skills, text.answer, rules, given, is_cut=text.is_cut)


class RunRecords(NamedTuple):
    """All texts of a run in key order, and all their ballots, in memory."""

    run: Run
    texts: list[StudentText]
    ballots: list[Ballot]
    """The ballots from models, then from code alone, from earlier graders and from people."""


def run_records(run: Run) -> RunRecords:
    """Read the texts and ballots of a run into memory."""
    with run.read() as journal:
        return records_of(run, texts_with_ballots(run, journal))


def records_of(run: Run, source: Iterable[TextWithBallots]) -> RunRecords:
    """Collect texts and their ballots in memory."""
    texts: list[StudentText] = []
    groups: defaultdict[int, list[Ballot]] = defaultdict(list)
    for found in source:
        texts.append(found.text)
        for number, ballots in enumerate(found.groups):
            groups[number] += ballots
    return RunRecords(run, texts, [ballot for _, group in sorted(groups.items()) for ballot in group])


class TextGrade(NamedTuple):
    """One grader's result for one text, without the text itself. Equal results share memory."""

    points: Points
    status: AnswerStatus
    is_cut: bool | None
    is_woven: bool | None
    votes: int
    """The number of rounds with a vote."""
    earns_nothing: bool
    """Whether a text with this answer can earn no point, so that no grader is called."""


@dataclass(frozen=True, slots=True)
class TextColumn:
    """The conversations of one student, in the order of their keys."""

    ids: NDArray[np.uint64]
    generations: NDArray[np.uint32]
    numbers: dict[str, NDArray[np.int32]]
    """For each grader, the index of each text's grade; -1 for a text without a ballot from the grader."""


class TextTable:
    """The grades of all texts of a run under one set of rules. People's grades of a sample are not included."""

    def __init__(self, grades: Sequence[TextGrade], columns: dict[str, TextColumn]) -> None:
        self.grades = grades
        """The distinct grades, by index."""
        self._columns = columns

    @classmethod
    def of_json(cls, text: str) -> "TextTable":
        """Make a table from the output of `as_json`."""
        grades, columns = json.loads(text)
        return cls(
            [TextGrade(tuple(points), *others) for points, *others in grades],
            {
                student: TextColumn(
                    np.array(ids, np.uint64),
                    np.array(generations, np.uint32),
                    {grader: np.array(own, np.int32) for grader, own in numbers.items()},
                )
                for student, (ids, generations, numbers) in columns.items()
            },
        )

    def as_json(self) -> str:
        """Encode the table as the JSON text that a run stores."""
        columns = {
            student: [c.ids.tolist(), c.generations.tolist(), {name: own.tolist() for name, own in c.numbers.items()}]
            for student, c in self._columns.items()
        }
        return json_text([self.grades, columns])

    def numbers(
        self, student: str, grader: str, combinations: Sequence[Combination], generations: Sequence[int]
    ) -> NDArray[np.int32]:
        """Return the index of the grade for each combination and sample; -1 if there is no ballot."""
        places = self.places(student, combinations, generations)
        column = self._columns.get(student)
        own = column.numbers.get(grader) if column else None
        if own is None or not len(own):
            return np.full(places.shape, -1, np.int32)
        return np.where(places >= 0, own[places], np.int32(-1))

    def places(
        self, student: str, combinations: Sequence[Combination], generations: Sequence[int]
    ) -> NDArray[np.int64]:
        """Return the row of a student's text for each combination and sample; -1 for a missing text."""
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

    def outside(self, student: str, grader: str, planned: Iterable[str]) -> dict[str, list[int]]:
        """Map each combination that is not planned to the indexes of a grader's grades for its samples."""
        column = self._columns[student]
        known = np.unique(np.fromiter(map(number_of, planned), np.uint64))
        own = column.numbers[grader]
        chosen = np.flatnonzero((own >= 0) & ~np.isin(column.ids, known))
        found: dict[str, list[int]] = {}
        for key, number in zip(column.ids[chosen].tolist(), own[chosen].tolist(), strict=True):
            found.setdefault(f"{key:016x}", []).append(number)
        return found

    def lowest_ids(self, texts: int) -> list[str]:
        """Return the lowest combination ids that have at most this many texts in total."""
        every = [column.ids for column in self._columns.values()]
        ids, counts = np.unique(np.concatenate(every), return_counts=True) if every else (np.empty(0), np.empty(0))
        return [f"{int(key):016x}" for key in ids[np.cumsum(counts) <= texts]]

    @property
    def students(self) -> list[str]:
        """Return the students that generated a text."""
        return list(self._columns)

    @property
    def texts(self) -> int:
        """Return the number of texts."""
        return sum(len(column.ids) for column in self._columns.values())

    @property
    def pairs(self) -> list[tuple[str, str]]:
        """Return each pair of a student and a grader with a ballot on the student's texts."""
        return [(student, grader) for student, column in self._columns.items() for grader in sorted(column.numbers)]


_COMBINATION_ID: Final = re.compile("[0-9a-f]{16}")


def number_of(combination: str) -> int:
    """Convert the id of a combination, which is an eight-byte hash in hexadecimal digits, to a number."""
    if not _COMBINATION_ID.fullmatch(combination):
        raise UserError(
            f"The journal is damaged: {shortened(combination)!r} is not the id of a combination.",
            hint="Restore it from a backup.",
        )
    return int(combination, 16)


class TableBuilder:
    """Builds a `TextTable` from texts that are added in key order."""

    def __init__(self, run: Run) -> None:
        self._rules = run.rules()
        self._grades: dict[TextGrade, int] = {}
        self._students: dict[str, tuple[array[int], array[int], dict[str, array[int]]]] = {}

    def add(self, text: StudentText, decided: Iterable[tuple[Ballot, Points]]) -> None:
        """Add a text and its ballots with their points."""
        ids, generations, numbers = self._students.setdefault(text.student, (array("Q"), array("I"), {}))
        count = len(ids)
        ids.append(number_of(text.combination.id))
        generations.append(text.generation)
        is_lost = earns_nothing(text.answer, self._rules)
        for ballot, points in decided:
            if not is_human(ballot.grader):
                grade = TextGrade(
                    points, text.answer.status, text.is_cut, ballot.is_woven, len(ballot.readings), is_lost
                )
                own = numbers.setdefault(ballot.grader, array("i"))
                own.extend([-1] * (count - len(own)))
                own.append(self._grades.setdefault(grade, len(self._grades)))

    def table(self) -> TextTable:
        """Return the table of the added texts."""
        columns = {}
        for student, (ids, generations, numbers) in sorted(self._students.items()):
            for own in numbers.values():
                own.extend([-1] * (len(ids) - len(own)))
            whole = {grader: np.array(own, np.int32) for grader, own in numbers.items()}
            columns[student] = TextColumn(np.array(ids, np.uint64), np.array(generations, np.uint32), whole)
        return TextTable(list(self._grades), columns)


def text_table(run: Run, rules: Rules, *, with_code: bool = True) -> TextTable:
    """Return the table of a run under the given rules. The table is cached until this process changes the run.

    Without code, no checker is applied, because the catalog has changed since the run was made.
    """
    name = table_name(rules, with_code=with_code)

    def made() -> TextTable:
        builder = TableBuilder(run)
        with run.read() as journal:
            for (stored,) in journal.rows(_KEPT_TABLE, (name, _table_inputs(run, journal))):
                return TextTable.of_json(stored)
            for found in texts_with_ballots(run, journal, with_code=with_code):
                builder.add(found.text, ((ballot, ballot.points(rules, run.phrases)) for ballot in found.ballots))
        return builder.table()

    return run.remember(name, made)


def table_name(rules: Rules, *, with_code: bool = True) -> str:
    """Return the cache key of a run's table."""
    return f"texts by {rules}{'' if with_code else ' without code'}"


_KEPT_TABLE: Final = "SELECT content FROM graded WHERE name = ? AND inputs = ?"


def keep_table(run: Run) -> None:
    """Store the table under the run's own rules, so that a finished run can show its scores without reading its calls.

    Grades from a catalog's own code are not stored, because the code may change and because reading them requires
    trust.
    """
    if run.fact("catalog") is not None and run.catalog.code is not None:
        return
    rules, name = run.rules(), table_name(run.rules())
    with run.read() as journal:
        inputs = _table_inputs(run, journal)
        is_kept = any(journal.rows(_KEPT_TABLE, (name, inputs)))
    if not is_kept:
        content = text_table(run, rules).as_json()
        # If another process is writing, the table is not stored.
        with suppress(UserError), JournalWriter(run.file) as writer, writer.transaction():
            writer.connection.execute("INSERT OR REPLACE INTO graded VALUES (?, ?, ?)", (name, inputs, content))


def _table_inputs(run: Run, journal: JournalReader) -> str:
    """Hash everything that determines the grades of a run."""
    query = "SELECT (SELECT count(*) FROM call), (SELECT max(id) FROM attempt), (SELECT count(*) FROM uncounted)"
    versions = [(version.version, version.yaml) for version in run.state.versions]
    excluded = {step: sorted(ids) for step, ids in run.excluded.items()}
    catalog = run.unchanged_catalog.content_hash() if run.unchanged_catalog else None
    rows = [*journal.extent(), *next(journal.rows(query))]
    return short_id("graded texts", code_version(), rows, versions, excluded, catalog, run.phrases.as_document())
