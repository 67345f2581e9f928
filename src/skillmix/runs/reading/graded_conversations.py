"""The read path: every conversation of a run in key order, with its text and its gradings.

A journal gives the calls of students and of graders in the same order, so that a merge-join of the two streams yields
one conversation at a time. Everything that reads a run reads this way and differs in what it keeps (`runs/texts.py`).
"""

from collections.abc import Iterable, Iterator
from itertools import groupby, islice
from typing import Final, NamedTuple, TypeVar

from skillmix.calls import Call, CallKey, CallProblem, GenerateKey, GradeKey, Reply
from skillmix.catalog.combinations import Combination
from skillmix.errors import UserError
from skillmix.grading.points import StudentText
from skillmix.grading.reader import Reading
from skillmix.runs.journal.ahead import ConversationsAhead
from skillmix.runs.journal.journal import JournalReader
from skillmix.runs.reading.deciding import answer_of, is_over
from skillmix.runs.reading.lookups import combinations_of
from skillmix.runs.reading.reply_reader import ReplyReader
from skillmix.runs.run import Run

_Item = TypeVar("_Item")
_AT_ONCE: Final = 1_000
"""Conversations whose combinations are read together, and which `in_blocks` takes at a time."""
ConversationKey = tuple[str, str, int]
"""Student, combination and generation."""


class WrittenConversation(NamedTuple):
    """A student's side of a conversation."""

    key: ConversationKey
    turns: tuple[Call, ...]
    text: StudentText | None
    """None while the conversation is not over."""


class Ungraded(NamedTuple):
    """A text and its grading calls, not read yet."""

    text: StudentText
    calls: list[Call]
    turns: tuple[Call, ...] = ()
    """The calls of the student."""


class GradedConversation(NamedTuple):
    """A text and its grading calls, each with its reading."""

    text: StudentText
    calls: list[Call]
    readings: list[Reading | None]
    """In the order of the calls; None for a call without a reply."""
    turns: tuple[Call, ...] = ()
    """The calls of the student."""


def conversations(run: Run, journal: JournalReader) -> Iterator[GradedConversation]:
    """Every conversation that is over, in key order, with the readings of all gradings that count."""
    return read_gradings(ungraded_conversations(run, journal), run.reply_reader)


def ungraded_conversations(run: Run, journal: JournalReader) -> Iterator[Ungraded]:
    """The same conversations before their gradings are read."""
    return _joined(run, written_conversations(run, journal), journal.calls("grade"))


def written_conversations(run: Run, journal: JournalReader) -> Iterator[WrittenConversation]:
    """The students' side of every conversation, in key order.

    Conversations that a dataset step of an earlier version began ahead and never counted are left out.
    """
    turns = run.turns
    untried = ConversationsAhead(run.journal).untried
    source = _by_conversation(journal.calls("generate"))
    while block := list(islice(source, _AT_ONCE)):
        combinations = combinations_of(journal, {key[1] for key, _ in block}, is_complete=False)
        for key, calls in block:
            if key not in untried:
                yield WrittenConversation(key, calls, _text_of(key, calls[-1], combinations, turns))


def graded_conversations(
    run: Run, journal: JournalReader, written: Iterable[WrittenConversation]
) -> Iterator[GradedConversation]:
    """The written conversations that are over, each with its gradings.

    Gradings of another text, of an older extraction say, are left out.
    """
    return read_gradings(_joined(run, written, journal.calls("grade")), run.reply_reader)


def conversations_with(
    run: Run, journal: JournalReader, student: str, keys: Iterable[tuple[str, int]]
) -> tuple[list[WrittenConversation], list[GradedConversation]]:
    """The conversations of a student with these combinations and generations, and those that are over graded."""
    wanted = {(student, *key) for key in keys}
    journal.limit_calls({key[1] for key in wanted})
    combinations = combinations_of(journal, {key[1] for key in wanted}, is_complete=False)
    begun = [
        WrittenConversation(key, calls, _text_of(key, calls[-1], combinations, run.turns))
        for key, calls in _by_conversation(journal.calls("generate", student=student))
        if key in wanted
    ]
    votes = journal.calls("grade", student=student)
    return begun, list(read_gradings(_joined(run, begun, votes), run.reply_reader))


def read_gradings(ungraded: Iterable[Ungraded], reader: ReplyReader) -> Iterator[GradedConversation]:
    """Read gradings in their order."""
    for text, calls, turns in ungraded:
        readings = [
            reader.read(text, c.outcome.text, grader=grade_key(c).grader) if isinstance(c.outcome, Reply) else None
            for c in calls
        ]
        yield GradedConversation(text, calls, readings, turns)


def grade_key(call: Call) -> GradeKey:
    """The key of a call of a conversation's gradings."""
    assert isinstance(call.key, GradeKey)  # conversations join grading calls only
    return call.key


def turn_of(call: Call) -> int:
    """The number of a student's turn."""
    assert isinstance(call.key, GenerateKey)  # the turns of a conversation
    return call.key.turn


def in_blocks(items: Iterable[_Item]) -> Iterator[_Item]:
    """The same items, of which a block is read before the first of them is used.

    Reading a thousand texts and then using them takes a fifth less time than one text after the other, because the
    processor does the same work for a while.
    """
    source = iter(items)
    while block := list(islice(source, _AT_ONCE)):
        yield from block


def _text_of(
    key: ConversationKey, last: Call, combinations: dict[str, Combination], turns: int | None
) -> StudentText | None:
    reply = last.outcome.text if isinstance(last.outcome, Reply) else None
    problem = last.outcome.kind if isinstance(last.outcome, CallProblem) else None
    has_reply = reply is not None
    if not is_over(turn=turn_of(last), origin=last.origin, has_reply=has_reply, problem=problem, turns=turns):
        return None
    student, combination, generation = key
    if combination not in combinations:
        raise UserError(
            f"The journal does not say what combination {combination} is.",
            hint="It is damaged. Restore it from a copy.",
        )
    finish = last.outcome.finish if isinstance(last.outcome, Reply) else None
    answer = answer_of(reply, last.origin, turn_of(last))
    return StudentText(student, combinations[combination], generation, answer, finish)


def _joined(run: Run, written: Iterable[WrittenConversation], calls: Iterable[Call]) -> Iterator[Ungraded]:
    graders = run.known_graders
    groups = _by_conversation(calls)
    group = next(groups, None)
    for key, turns, text in written:
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
        yield Ungraded(text, gradings, turns)


def _by_conversation(calls: Iterable[Call]) -> Iterator[tuple[ConversationKey, tuple[Call, ...]]]:
    """Calls grouped by conversation; a damaged index could give them out of order, and a join would lose some."""
    before: ConversationKey | None = None
    for key, group in groupby(calls, key=_conversation_key):
        if before is not None and not before < key:
            raise UserError("The journal is damaged: its calls are out of order.", hint="Restore it from a copy.")
        before = key
        yield key, tuple(group)


def _conversation_key(call: Call) -> ConversationKey:
    key: CallKey = call.key
    return key.student, key.combination, key.generation
