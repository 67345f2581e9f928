"""Decisions on whole runs, a million conversations if need be: which texts have full marks, and from which graders.

This is the read path of `graded_conversations` for runs whose replies do not fit into memory: conversations are scanned
as keys and hashes, and replies are fetched only for decisions that the run's `derived.sqlite` does not have. A decision
is stored under a hash of all it depends on: the replies, the combination, the catalogue, the rules, and the version of
the code that reads and checks. `deciding` says what counts as a text, a vote and a ballot, as it does everywhere.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import cache
from hashlib import blake2b
from importlib.metadata import entry_points
from itertools import islice
from typing import Final, NamedTuple

import skillmix
from skillmix.catalog.catalog import Catalog
from skillmix.checkers.registry import ENTRY_POINTS
from skillmix.grading.answers import Rules
from skillmix.hashing import digest
from skillmix.runs.judging.verdict_workers import Means, Question, VerdictWorkers
from skillmix.runs.judging.worker_pool import VerdictPool
from skillmix.runs.reading.conversation_index import (
    NOTHING_KNOWN,
    ConversationIndex,
    IdRange,
    KnownTexts,
    combinations_of,
    contents,
    conversations_with,
    indexed_conversations,
)
from skillmix.runs.reading.deciding import answer_of, is_over
from skillmix.runs.reading.decision_cache import Decision, DecisionCache
from skillmix.runs.run import Run, RunGrader

READER_VERSION: Final = 5
"""To be raised whenever the same replies could be decided otherwise; a test notices changed code."""
_AT_ONCE: Final = 10_000


class DecidedConversation(NamedTuple):
    """A conversation with what each grader decided about it, in the order of the graders."""

    conversation: ConversationIndex
    decisions: tuple[Decision, ...]
    """Empty if the conversation is not over."""

    @property
    def is_over(self) -> bool:
        """Whether the student has written the text, or never will."""
        return bool(self.decisions)

    @property
    def is_ungraded(self) -> bool:
        """Whether full marks are undecided: no grader denies them, and not all grant them."""
        earned = [decision.earned for decision in self.decisions]
        return bool(earned) and 0 not in earned and None in earned

    @property
    def is_kept(self) -> bool:
        """Whether every grader gives full marks."""
        return bool(self.decisions) and all(decision.earned == 1 for decision in self.decisions)


@dataclass(frozen=True)
class DecisionRules:
    """Everything that turns replies into decisions, for one run."""

    run: Run
    graders: Sequence[RunGrader]
    rules: Rules

    @property
    def names(self) -> list[str]:
        """The names of the graders."""
        return [grader.name for grader in self.graders]

    def version(self, grader: RunGrader) -> bytes:
        """A hash that changes when the same replies could be decided otherwise."""
        catalog = None if self.run.is_imported else self.run.catalog
        return digest(
            "decision",
            code_version(),
            _catalog_parts(catalog) if catalog else None,
            self.run.phrases.wording,
            [self.rules.counter, self.rules.name_rule, self.rules.missing_marker],
            [grader.votes, grader.has_code, grader.asks_model, self.run.turns],
        )

    @property
    def means(self) -> Means:
        """What turns replies and texts into decisions, in this process."""
        return Means(self.run.reply_reader, self.run.code, self.rules, self.run.phrases)


def _catalog_parts(catalog: Catalog) -> list[object]:
    """What a catalogue adds to decisions: its names, the words of its topics and, if it has any, patterns and code."""
    words = {topic: list(map(list, words)) for topic, words in catalog.vocabulary.items()}
    patterns = [[figure.name, figure.patterns] for figure in catalog.figures]
    return [
        catalog.content_hash(),
        words,
        *([patterns] if patterns else []),
        *([catalog.code.hash] if catalog.code else []),
    ]


@cache
def code_version() -> str:
    """The version of the code that reads replies and checks texts, other packages' checkers included."""
    checkers = sorted((e.name, e.value, e.dist.version if e.dist else "") for e in entry_points(group=ENTRY_POINTS))
    return digest(skillmix.__version__, READER_VERSION, checkers).hex()


def decision_rules(run: Run, *, graders: Sequence[str] | None = None, rules: str | None = None) -> DecisionRules:
    """What decides in a run: all of its graders, or those named, under its own rules or others."""
    names = run.graders if graders is None else [name for name in graders if name in run.graders]
    return DecisionRules(run, [run.graders[name] for name in names], run.rules(rules))


def decided_conversations(
    rules: DecisionRules, *, students: Iterable[str] | None = None, ids: IdRange | None = None
) -> Iterator[DecidedConversation]:
    """Every conversation of a run in key order, decided; of these students and ids if any are named."""
    with OpenDecisions(rules) as opened:
        source = indexed_conversations(opened.journal, students=students, ids=ids)
        while chunk := list(islice(source, _AT_ONCE)):
            yield from opened.decide(chunk)


class OpenDecisions(AbstractContextManager["OpenDecisions"]):
    """A run's journal and its cache of decisions, both open, so that a few more conversations cost only themselves."""

    def __init__(self, rules: DecisionRules, elsewhere: Callable[[], VerdictPool | None] = lambda: None) -> None:
        self._rules = rules
        self._versions = {grader: rules.version(grader) for grader in rules.graders}
        # First, because a catalogue whose code is not trusted is refused here, with nothing open yet.
        self._workers = VerdictWorkers(None if rules.run.code is None else rules.run.catalog, elsewhere)
        self.journal = rules.run.read()
        self._cache = DecisionCache(rules.run.derived)

    def __exit__(self, *problem: object) -> None:
        self._workers.close()
        self.journal.close()
        self._cache.close()

    @property
    def names(self) -> list[str]:
        """The names of the graders that decide."""
        return self._rules.names

    def of(self, student: str, keys: Iterable[tuple[str, int]]) -> list[DecidedConversation]:
        """The conversations of a student with these combinations and generations, as far as they have begun."""
        return self.decide(list(conversations_with(self.journal, student, keys)))

    def decide(
        self, conversations: Sequence[ConversationIndex], known: KnownTexts = NOTHING_KNOWN
    ) -> list[DecidedConversation]:
        """Decide conversations, in their order; texts that are not known are read from the journal."""
        turns = self._rules.run.turns
        over = [index if _is_over(index, turns) else None for index in conversations]
        keys = [
            [_key(version, grader.name, index) for grader, version in self._versions.items()] if index else []
            for index in over
        ]
        decisions = self._cache.find([key for own in keys for key in own])
        missing = [
            (index, grader, key)
            for index, own in zip(over, keys, strict=True)
            if index
            for grader, key in zip(self._versions, own, strict=True)
            if key not in decisions
        ]
        if missing:
            new = self._worked_out(missing, known)
            self._cache.keep(new)
            decisions.update(new)
        return [
            DecidedConversation(index, tuple([decisions[key] for key in own]))
            for index, own in zip(conversations, keys, strict=True)
        ]

    def _worked_out(
        self, missing: Sequence[tuple[ConversationIndex, RunGrader, bytes]], known: KnownTexts
    ) -> list[tuple[bytes, Decision]]:
        replies = [index.turns[-1].reply for index, _, _ in missing]
        votes = [vote.reply for index, _, _ in missing for vote in index.votes]
        words = contents(self.journal, [address for address in (*replies, *votes) if address is not None], known)
        combinations = combinations_of(self.journal, [index.combination for index, _, _ in missing], known)
        questions = []
        for index, grader, _ in missing:
            last = index.turns[-1]
            answer = answer_of(None if last.reply is None else words[last.reply], last.origin, last.number)
            own = [(v, words[v.reply] if v.reply else "") for v in index.votes if v.grader == grader.name]
            questions.append(Question(grader, combinations[index.combination], answer, own))
        decisions = self._workers.decide(questions, self._rules.means)
        return [(key, decision) for (_, _, key), decision in zip(missing, decisions, strict=True)]


def _is_over(index: ConversationIndex, turns: int | None) -> bool:
    last = index.turns[-1]
    has_reply = last.reply is not None
    return is_over(turn=last.number, origin=last.origin, has_reply=has_reply, problem=last.problem, turns=turns)


def _key(version: bytes, grader: str, index: ConversationIndex) -> bytes:
    last = index.turns[-1]
    content = blake2b(version, digest_size=16)
    content.update(f"{index.combination}{last.reply}{last.origin == 'imported-text'}".encode())
    content.update(b"" if last.number else b"the only turn")
    for vote in index.votes:
        if vote.grader == grader:
            content.update(f"{vote.round} {vote.attempt} {vote.text}{vote.reply}".encode())
    return content.digest()
