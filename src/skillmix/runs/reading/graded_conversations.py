"""The read path: every conversation of a run in key order, with its text and its gradings.

A journal gives the calls of students and of graders in the same order, so that a merge-join of the two streams yields
one conversation at a time. Scores, report, export, texts and status all read this way and differ in what they keep;
`run_records` keeps texts and ballots. Data sets of a million conversations scan keys and hashes first
(`conversation_index`, `decisions`), and decide by the same rules (`deciding`).
"""

from collections.abc import Iterable, Iterator
from itertools import groupby, islice
from typing import Final, NamedTuple, TypeVar

from skillmix.calls import Call, CallKey, CallProblem, GenerateKey, GradeKey, Reply
from skillmix.catalog.combinations import Combination
from skillmix.errors import UserError
from skillmix.grading.ballots import StudentText
from skillmix.runs.journal.ahead import ConversationsAhead
from skillmix.runs.journal.journal import JournalReader
from skillmix.runs.reading.conversation_index import IdRange, combinations_of
from skillmix.runs.reading.deciding import answer_of, is_over
from skillmix.runs.reading.gradings import GradedConversation, Ungraded, read_gradings
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


def conversations(run: Run, journal: JournalReader, *, ids: IdRange | None = None) -> Iterator[GradedConversation]:
    """Every conversation that is over, in key order, with the readings of all gradings that count.

    With `ids`, only conversations of these combination ids are read.
    """
    return read_gradings(ungraded_conversations(run, journal, ids=ids), run.reply_reader)


def ungraded_conversations(run: Run, journal: JournalReader, *, ids: IdRange | None = None) -> Iterator[Ungraded]:
    """The same conversations before their gradings are read."""
    written = written_conversations(run, journal, ids=ids)
    texts = (conversation.text for conversation in written if conversation.text is not None)
    return _joined(run, texts, journal.calls("grade", ids, student=None))


def written_conversations(
    run: Run, journal: JournalReader, *, ids: IdRange | None = None, student: str | None = None
) -> Iterator[WrittenConversation]:
    """The students' side of every conversation, in key order; of some combination ids or of one student if asked for.

    Conversations that a dataset step began ahead of its waves and never tried are left out: how many there are depends
    on the speed of the machine.
    """
    turns = run.turns
    untried = ConversationsAhead(run.journal).untried
    source = _by_conversation(journal.calls("generate", ids, student=student))
    while block := list(islice(source, _AT_ONCE)):
        combinations = combinations_of(journal, {key[1] for key, _ in block}, is_complete=False)
        for key, calls in block:
            if key not in untried:
                yield WrittenConversation(key, calls, _text_of(key, calls[-1], combinations, turns))


def graded_conversations(
    run: Run,
    journal: JournalReader,
    texts: Iterable[StudentText],
    *,
    ids: IdRange | None = None,
    student: str | None = None,
) -> Iterator[GradedConversation]:
    """Texts in key order, each with its gradings; gradings of another text, of an older extraction say, are left out.

    The texts are all of the journal, or all of some combination ids or of one student.
    """
    ungraded = _joined(run, texts, journal.calls("grade", ids, student=student))
    return read_gradings(ungraded, run.reply_reader)


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
    assert isinstance(last.key, GenerateKey)
    reply = last.outcome.text if isinstance(last.outcome, Reply) else None
    problem = last.outcome.kind if isinstance(last.outcome, CallProblem) else None
    has_reply = reply is not None
    if not is_over(turn=last.key.turn, origin=last.origin, has_reply=has_reply, problem=problem, turns=turns):
        return None
    student, combination, generation = key
    if combination not in combinations:
        raise UserError(
            f"The journal does not say what combination {combination} is.",
            hint="It is damaged. Restore it from a copy.",
        )
    finish = last.outcome.finish if isinstance(last.outcome, Reply) else None
    answer = answer_of(reply, last.origin, last.key.turn)
    return StudentText(student, combinations[combination], generation, answer, finish)


def _joined(run: Run, texts: Iterable[StudentText], calls: Iterable[Call]) -> Iterator[Ungraded]:
    graders = run.known_graders
    groups = _by_conversation(calls)
    group = next(groups, None)
    for text in texts:
        key = (text.student, text.combination.id, text.generation)
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
        yield Ungraded(text, gradings)


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
