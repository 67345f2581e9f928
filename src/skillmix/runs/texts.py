"""The read path: every text of a run with its grades, streamed in key order, and a compact table of them all.

`texts_with_ballots` gives one text at a time with everything that is known about it. `text_table` keeps of each text
what scores, status and the choice of texts need: a few bytes, because a run of ten million conversations has few
different grades. Whoever needs the words of texts streams them.
"""

import re
from array import array
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from skillmix.calls import is_human
from skillmix.catalog.combinations import Combination
from skillmix.checkers.judge import Verdict
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
from skillmix.grading.reader import Reading
from skillmix.render import shortened
from skillmix.runs.journal.journal import JournalReader
from skillmix.runs.reading.deciding import Votes, ballot_of, latest_votes_of, votes_of
from skillmix.runs.reading.graded_conversations import (
    GradedConversation,
    conversations,
    grade_key,
    in_blocks,
    ungraded_conversations,
)
from skillmix.runs.rules_grader import CodeVerdict, applicable_reasons
from skillmix.runs.run import Run
from skillmix.runs.verdicts import JudgedText, judged_conversations


class TextWithBallots(NamedTuple):
    """One text of a run with the ballots on it."""

    conversation: GradedConversation
    judged: JudgedText | None
    """What code decided on the text; None if no grader has code."""
    groups: tuple[Sequence[Ballot], ...]
    """The ballots by models, by code alone, by earlier graders, and by graders that need not be asked."""

    @property
    def text(self) -> StudentText:
        """The text."""
        return self.conversation.text

    @property
    def ballots(self) -> Iterator[Ballot]:
        """The ballots of all groups."""
        return chain.from_iterable(self.groups)


def texts_with_ballots(
    run: Run,
    journal: JournalReader,
    *,
    combinations: Iterable[str] | None = None,
    with_code: bool = True,
    with_words: bool = False,
) -> Iterator[TextWithBallots]:
    """Every text in key order with the ballots on it; only a few texts are in memory at once.

    With `combinations`, only their texts are read, and the journal gives no others from then on. `with_words` adds the
    words that show each skill to what code decided.
    """
    ballots = BallotMaker(run, journal, with_code=with_code)
    if combinations is not None:
        journal.limit_calls(combinations)
    source = judged_conversations(run, conversations(run, journal), ballots.code, with_words=with_words)
    yield from in_blocks(ballots.of(*conversation) for conversation in source)


class BallotMaker:
    """Makes the ballots on the texts of a run: one for each grader that counts, whether it voted or not."""

    def __init__(self, run: Run, journal: JournalReader, *, with_code: bool = True) -> None:
        self._run = run
        self.code = run.code if with_code else None
        self._rules = run.rules()
        self._alone = [g for g in run.graders.values() if self.code is not None and g.is_code_alone]
        self._asked = sorted((g for g in run.graders.values() if g not in self._alone), key=lambda grader: grader.name)
        self._earlier: dict[tuple[str, str], set[str]] = defaultdict(set)
        """The graders that earlier experiments planned, by student and combination."""
        for cell in run.earlier_cells:
            for combination in cell.combinations:
                self._earlier[cell.student, combination.id].update(cell.graders)
        self._voters = _Voters(run)
        if run.is_imported or any(self._voters.is_unknown(name) for name in journal.graders()):
            # The ballots on a text depend on who voted on other texts, so a first pass looks for them.
            for text, calls, _ in ungraded_conversations(run, journal):
                self._voters.add(text, {grade_key(call).grader for call in calls})

    def of(self, conversation: GradedConversation, judged: JudgedText | None) -> TextWithBallots:
        """A text with all ballots on it."""
        text, votes = conversation.text, votes_by_grader(conversation)
        if self._run.is_imported:
            return TextWithBallots(conversation, judged, self._imported(text, votes))
        models = [ballot_of(text, grader, votes.get(grader.name, {}), judged) for grader in self._asked]
        code = [ballot_of(text, grader, {}, judged) for grader in self._alone]
        earlier = list(self._by_earlier_graders(text, votes, judged))
        unasked = self._unasked(text, {ballot.grader for ballot in earlier})
        return TextWithBallots(conversation, judged, (models, code, earlier, unasked))

    def _by_earlier_graders(
        self, text: StudentText, votes: Mapping[str, Votes], verdict: CodeVerdict | None
    ) -> Iterator[Ballot]:
        """Ballots of graders that the experiment does not name: those who voted, and those planned by earlier ones."""
        planned = self._earlier.get((text.student, text.combination.id), ())
        for name in sorted({*votes, *planned} - self._run.graders.keys()):
            grader = self._run.grader(name)
            if not (grader.is_code_alone and verdict is None):
                yield ballot_of(text, grader, votes.get(name, {}), verdict)

    def _unasked(self, text: StudentText, asked: Collection[str]) -> list[Ballot]:
        """Ballots on a text that earns nothing: nobody asks a grader about it."""
        if not earns_nothing(text.answer, self._rules):
            return []
        names = [name for name in self._voters.unknown(text) if name not in asked]
        return [ballot_of(text, self._run.grader(name), {}, None) for name in names]

    def _imported(self, text: StudentText, votes: Mapping[str, Votes]) -> tuple[list[Ballot], list[Ballot]]:
        """The ballots on a text of every grader of its student, and of the people who voted on it."""
        graders = [self._run.graders[name] for name in self._voters.of_import(text.student)]
        people = [self._run.grader(name) for name in sorted(filter(is_human, votes))]
        by_graders = [ballot_of(text, grader, votes.get(grader.name, {}), None) for grader in graders]
        return by_graders, [ballot_of(text, person, votes[person.name], None) for person in people]


class _Voters:
    """Graders who stand on texts without a vote of theirs: those of an import, and those that no experiment names."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._by_student: dict[str, set[str]] = defaultdict(set)
        self._gradeable: set[str] = set()
        self._unknown: dict[tuple[str, int], set[str]] = defaultdict(set)

    def is_unknown(self, grader: str) -> bool:
        """Whether no known experiment of the run names a grader; people are in no experiment, and are known."""
        return grader not in self._run.known_graders and not is_human(grader)

    def add(self, text: StudentText, graders: Iterable[str]) -> None:
        """Note who voted on a text."""
        if self._run.is_imported:
            self._by_student[text.student].update(name for name in graders if not is_human(name))
            if text.answer.text:
                self._gradeable.add(text.student)
        elif unknown := [name for name in graders if self.is_unknown(name)]:
            self._unknown[text.student, text.combination.k].update(unknown)

    def of_import(self, student: str) -> list[str]:
        """The graders under which all texts of a student stand.

        A student who earned nothing with every text was never given to a grader, and stands under each of them.
        """
        if student in self._gradeable:
            return sorted(self._by_student[student])
        return sorted(set[str]().union(*self._by_student.values()))

    def unknown(self, text: StudentText) -> list[str]:
        """The graders that no experiment names and that voted on texts of the same student and k."""
        return sorted(self._unknown.get((text.student, text.combination.k), ()))


def votes_by_grader(conversation: GradedConversation) -> dict[str, Votes]:
    """The votes of each grader on a text, by round."""
    attempts: dict[str, list[tuple[int, Reading | None]]] = {}
    for call, reading in zip(conversation.calls, conversation.readings, strict=True):
        key = grade_key(call)
        attempts.setdefault(key.grader, []).append((key.round, reading))
    return {grader: (latest_votes_of if is_human(grader) else votes_of)(own) for grader, own in attempts.items()}


def verdict_on(run: Run, ballot: Ballot) -> Verdict | None:
    """The verdict of code on a text; None under a grader without code."""
    if run.code is None or not run.grader(ballot.grader).has_code:
        return None
    combination = ballot.text.combination
    return run.code.verdict(ballot.text.answer.text, skills=combination.skills, topic=combination.topic)


def reasons_for(run: Run, ballot: Ballot, points: Points, rules: Rules, verdict: Verdict | None) -> dict[str, str]:
    """Why code denied points of a text, by criterion."""
    is_alone = run.grader(ballot.grader).is_code_alone
    by_checkers = applicable_reasons(verdict, is_alone=is_alone) if verdict else {}
    text, phrases = ballot.text, run.phrases
    if phrases.outcomes:
        return outcome_reasons(text.answer)
    skills = text.combination.skills
    given = {**by_checkers, **format_reasons(text.answer.text, len(skills), phrases.format)}
    return reasons_of(points, skills, text.answer, rules, given, is_cut=text.is_cut)


class RunRecords(NamedTuple):
    """The texts of a run in key order and all ballots on them, in memory with their words."""

    run: Run
    texts: list[StudentText]
    ballots: list[Ballot]
    """By models, then by code alone, by earlier graders and by people."""


def run_records(run: Run) -> RunRecords:
    """The texts and ballots of a run in memory."""
    with run.read() as journal:
        return records_of(run, texts_with_ballots(run, journal))


def records_of(run: Run, source: Iterable[TextWithBallots]) -> RunRecords:
    """The records of some texts."""
    texts: list[StudentText] = []
    groups: defaultdict[int, list[Ballot]] = defaultdict(list)
    for found in source:
        texts.append(found.text)
        for number, ballots in enumerate(found.groups):
            groups[number] += ballots
    return RunRecords(run, texts, [ballot for _, group in sorted(groups.items()) for ballot in group])


class TextGrade(NamedTuple):
    """One grader's result on one text, without the text; equal ones are in memory once."""

    points: Points
    status: AnswerStatus
    is_cut: bool | None
    is_woven: bool | None
    votes: int
    """The number of rounds with a vote."""
    earns_nothing: bool
    """Whether no text with this answer can earn a point, so that no grader is asked."""


@dataclass
class TextColumn:
    """The conversations of one student, in the order of their keys."""

    ids: NDArray[np.uint64]
    generations: NDArray[np.uint32]
    numbers: dict[str, NDArray[np.int32]]
    """For each grader the numbers of its grades; -1 where it has no ballot."""


class TextTable:
    """The grades of all texts of a run under some rules; those of people, who read a sample, are not among them."""

    def __init__(self, grades: Sequence[TextGrade], columns: dict[str, TextColumn]) -> None:
        self.grades = grades
        """Every different grade, by number."""
        self._columns = columns

    def numbers(
        self, student: str, grader: str, combinations: Sequence[Combination], generations: Sequence[int]
    ) -> NDArray[np.int32]:
        """The numbers of grades, by combination and generation; -1 where there is no ballot."""
        places = self.places(student, combinations, generations)
        column = self._columns.get(student)
        own = column.numbers.get(grader) if column else None
        if own is None or not len(own):
            return np.full(places.shape, -1, np.int32)
        return np.where(places >= 0, own[places], np.int32(-1))

    def places(
        self, student: str, combinations: Sequence[Combination], generations: Sequence[int]
    ) -> NDArray[np.int64]:
        """Where the texts of a student are in the table, by combination and generation; -1 if not written."""
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
        """The numbers of a grader's grades by combination, by generation, without combinations that are planned."""
        column = self._columns[student]
        known = np.unique(np.fromiter(map(number_of, planned), np.uint64))
        own = column.numbers[grader]
        chosen = np.flatnonzero((own >= 0) & ~np.isin(column.ids, known))
        found: dict[str, list[int]] = {}
        for key, number in zip(column.ids[chosen].tolist(), own[chosen].tolist(), strict=True):
            found.setdefault(f"{key:016x}", []).append(number)
        return found

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


@dataclass
class TableBuilder:
    """Makes a table from texts that come in the order of their keys."""

    run: Run
    _grades: dict[TextGrade, int] = field(default_factory=dict)
    _students: "dict[str, tuple[array[int], array[int], dict[str, array[int]]]]" = field(default_factory=dict)

    def add(self, text: StudentText, decided: Iterable[tuple[Ballot, Points]]) -> None:
        """Take in a text, and the ballots on it with their points."""
        ids, generations, numbers = self._students.setdefault(text.student, (array("Q"), array("I"), {}))
        count = len(ids)
        ids.append(number_of(text.combination.id))
        generations.append(text.generation)
        is_lost = earns_nothing(text.answer, self.run.rules())
        for ballot, points in decided:
            if not is_human(ballot.grader):
                grade = TextGrade(
                    points, text.answer.status, text.is_cut, ballot.is_woven, len(ballot.readings), is_lost
                )
                own = numbers.setdefault(ballot.grader, array("i"))
                own.extend([-1] * (count - len(own)))
                own.append(self._grades.setdefault(grade, len(self._grades)))

    def table(self) -> TextTable:
        """The table of the texts that were added."""
        columns = {}
        for student, (ids, generations, numbers) in sorted(self._students.items()):
            whole = {}
            for grader, own in numbers.items():
                own.extend([-1] * (len(ids) - len(own)))
                whole[grader] = np.array(own, np.int32)
            columns[student] = TextColumn(np.array(ids, np.uint64), np.array(generations, np.uint32), whole)
        return TextTable(list(self._grades), columns)


def text_table(run: Run, rules: Rules, *, with_code: bool = True) -> TextTable:
    """The table of a run under some rules; it is made once, unless this process is writing to the run.

    Without code, checkers decide nothing: the catalogue that they belong to is another one now.
    """

    def made() -> TextTable:
        builder = TableBuilder(run)
        with run.read() as journal:
            for found in texts_with_ballots(run, journal, with_code=with_code):
                builder.add(found.text, ((ballot, ballot.points(rules, run.phrases)) for ballot in found.ballots))
        return builder.table()

    return run.remember(table_name(rules, with_code=with_code), made)


def table_name(rules: Rules, *, with_code: bool = True) -> str:
    """The name under which a run remembers its table."""
    return f"texts by {rules}{'' if with_code else ' without code'}"
