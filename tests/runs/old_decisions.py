"""Whole runs of graded conversations, a million if need be: which of them earned full marks, and from whom.

What a grader's votes make of a text is worked out once and kept in the run's `derived.sqlite`, under a hash of all that
it depends on: the replies, the combination, the catalogue, the rules, and the code that reads and checks.
"""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from hashlib import blake2b
from importlib.metadata import entry_points
from itertools import islice
from pathlib import Path
from typing import Final, NamedTuple

import skillmix
from skillmix.catalog.catalog import Catalog
from skillmix.catalog.combinations import Combination
from skillmix.checkers.registry import ENTRY_POINTS
from skillmix.experiment.experiment import GraderSettings
from skillmix.grading.answers import Answer, Rules, extract_answer, plain_answer
from skillmix.grading.ballots import Ballot, StudentText, counts
from skillmix.grading.points import text_score
from skillmix.grading.reader import Reading, read_grades
from skillmix.hashing import digest
from skillmix.prompts.rubric import Phrases, rubric_of
from skillmix.runs.journal.journal import JournalReader
from skillmix.runs.reading.conversation_index import (
    ConversationIndex,
    IndexedVote,
    combinations_of,
    contents,
)
from skillmix.runs.reading.conversation_index import (
    IdRange as Ids,
)
from skillmix.runs.reading.conversation_index import (
    indexed_conversations as outlines,
)
from skillmix.runs.reading.decision_cache import Decision, DecisionCache
from skillmix.runs.rules_grader import RulesGrader, reading_of, with_verdict
from skillmix.runs.run import TURNS, Run

_AT_ONCE: Final = 10_000


class Graded(NamedTuple):
    """A conversation with what each grader decided about it, in the order of the graders."""

    outline: ConversationIndex
    decisions: tuple[Decision, ...]
    """None of them if the conversation is not over."""

    @property
    def is_over(self) -> bool:
        """Whether the student has said all, or will say no more."""
        return bool(self.decisions)

    @property
    def is_ungraded(self) -> bool:
        """Whether an undecided point leaves open if it has full marks: no grader says no, and not all say yes."""
        earned = [decision.earned for decision in self.decisions]
        return bool(earned) and 0 not in earned and None in earned

    @property
    def is_kept(self) -> bool:
        """Whether every grader gives full marks."""
        return bool(self.decisions) and all(decision.earned == 1 for decision in self.decisions)


@dataclass(frozen=True)
class DecisionRules:
    """Everything that turns replies into decisions, for one run."""

    graders: Mapping[str, GraderSettings | None]
    """By name; None for a grader of an imported run."""
    phrases: Phrases
    rules: Rules
    catalog: Catalog | None
    code: RulesGrader | None

    def version(self, grader: str) -> bytes:
        """Changes when the same replies could be decided otherwise."""
        settings = self.graders[grader]
        told = self.catalog
        phrases = self.phrases
        return digest(
            "decision",
            code_version(),
            [told.content_hash(), {t: list(map(list, w)) for t, w in told.vocabulary.items()}] if told else None,
            [phrases.skill, phrases.topic, phrases.sense, phrases.length],
            [self.rules.counter, self.rules.name_rule, self.rules.missing_marker],
            None if settings is None else [settings.votes, settings.has_code, settings.asked is None],
        )

    def decide(
        self, grader: str, combination: Combination, answer: Answer, votes: Sequence[tuple[IndexedVote, str]]
    ) -> Decision:
        """One text under one grader; votes on another text (of an older extraction) do not count."""
        settings = self.graders[grader]
        text = StudentText("", combination, 0, answer)
        address = text.id
        rounds = {grader: settings.votes} if settings else None
        mine = [(v, reply) for v, reply in votes if v.text == address and counts(v.round, grader, rounds)]
        readings = self._readings(text, mine)
        is_code = settings is not None and settings.has_code
        if is_code and self.code is not None and settings is not None:
            skills = combination.skills
            verdict = self.code.verdict(answer.text, skills=skills, topic=combination.topic)
            if settings.asked is None:
                readings = {0: reading_of(verdict, skills)}
            else:
                readings = {r: found and with_verdict(found, skills, verdict) for r, found in readings.items()}
        wanted = settings.votes if settings else max(1, len(readings))
        ballot = Ballot(text, grader, wanted, tuple(readings[r] for r in sorted(readings)))
        points = ballot.points(self.rules, self.phrases)
        earned = text_score(points, "full_marks")
        told = [found.points if found else None for found in ballot.readings]
        return Decision(None if earned is None else int(earned), address, answer.status, json.dumps(told))

    def _readings(self, text: StudentText, votes: Sequence[tuple[IndexedVote, str]]) -> dict[int, Reading | None]:
        """The first readable attempt of each round."""
        rubric = rubric_of(text.combination.skills, text.combination.topic, phrases=self.phrases)
        readings: dict[int, Reading | None] = {}
        for vote, reply in votes:
            earlier = readings.get(vote.round)
            if earlier is None or earlier.points is None:
                found = read_grades(rubric, reply, text=text.answer.text) if vote.reply else None
                readings[vote.round] = found or earlier
        return readings


@cache
def code_version() -> str:
    """A hash of the code that reads replies and checks texts, other packages' checkers included."""
    package = Path(skillmix.__file__).parent
    files = [
        path
        for part in ("catalog", "prompts", "grading", "checkers")
        for path in sorted((package / part).rglob("*.py"))
    ]
    files += [package / name for name in ("hashing.py", "runs/reading/decisions.py", "runs/rules_grader.py")]
    brought = sorted((e.name, e.value, e.dist.version if e.dist else "") for e in entry_points(group=ENTRY_POINTS))
    content = blake2b(digest_size=16)
    for path in files:
        content.update(path.read_bytes())
    return digest(skillmix.__version__, content.hexdigest(), brought).hex()


def deciding_for(run: Run, *, graders: Sequence[str] | None = None, rules: str | None = None) -> DecisionRules:
    """What decides in a run: its own graders, or some of them, under its own rules or others."""
    wanted = list(run.graders) if graders is None else [g for g in graders if g in run.graders]
    settings = None if run.is_imported else run.experiment.graders
    chosen = {name: settings[name] if settings else None for name in wanted}
    catalog = None if run.is_imported else run.catalog
    code = run.code if any(run.graders[name].has_code for name in wanted) else None
    return DecisionRules(chosen, run.phrases, run.rules(rules), catalog, code)


def graded_conversations(
    run: Run, deciding: DecisionRules, *, students: Iterable[str] | None = None, ids: Ids | None = None
) -> Iterator[Graded]:
    """Every conversation of a run, decided; in the order of its key; of these students and ids if any are named."""
    versions = {grader: deciding.version(grader) for grader in deciding.graders}
    with run.read() as journal, DecisionCache(run.derived) as derived:
        source = outlines(journal, students=students, ids=ids)
        while chunk := list(islice(source, _AT_ONCE)):
            yield from _decided(chunk, deciding, versions, journal, derived)


def _decided(
    chunk: Sequence[ConversationIndex],
    deciding: DecisionRules,
    versions: Mapping[str, bytes],
    journal: JournalReader,
    derived: DecisionCache,
) -> list[Graded]:
    over = [outline if _is_over(outline) else None for outline in chunk]
    keys = [[_key(versions[g], g, outline) for g in versions] if outline else [] for outline in over]
    known = derived.find([key for own in keys for key in own])
    missing = [
        (outline, grader, key)
        for outline, own in zip(over, keys, strict=True)
        if outline
        for grader, key in zip(versions, own, strict=True)
        if key not in known
    ]
    if missing:
        new = list(_worked_out(missing, deciding, journal))
        derived.keep(new)
        known.update(new)
    return [Graded(outline, tuple(known[key] for key in own)) for outline, own in zip(chunk, keys, strict=True)]


def _is_over(outline: ConversationIndex) -> bool:
    """Both turns said, or a refusal, which is the student's own outcome."""
    last = outline.turns[-1]
    if last.problem is not None:
        return last.problem == "final"
    return last.reply is not None and (last.number >= TURNS or last.origin != "call")


def _key(version: bytes, grader: str, outline: ConversationIndex) -> bytes:
    last = outline.turns[-1]
    content = blake2b(version, digest_size=16)
    content.update(f"{outline.combination}{last.reply}{last.origin == 'imported-text'}".encode())
    for vote in outline.votes:
        if vote.grader == grader:
            content.update(f"{vote.round} {vote.attempt} {vote.text}{vote.reply}".encode())
    return content.digest()


def _worked_out(
    missing: Sequence[tuple[ConversationIndex, str, bytes]], deciding: DecisionRules, journal: JournalReader
) -> Iterator[tuple[bytes, Decision]]:
    said = [outline.turns[-1].reply for outline, _, _ in missing]
    voted = [vote.reply for outline, _, _ in missing for vote in outline.votes]
    words = contents(journal, [address for address in (*said, *voted) if address is not None])
    meant = combinations_of(journal, [outline.combination for outline, _, _ in missing])
    for outline, grader, key in missing:
        last = outline.turns[-1]
        answer = Answer("", "refused") if last.reply is None else answer_of(words[last.reply], last.origin)
        votes = [(v, words[v.reply] if v.reply else "") for v in outline.votes if v.grader == grader]
        yield key, deciding.decide(grader, meant[outline.combination], answer, votes)


def answer_of(reply: str, origin: str) -> Answer:
    """The graded text of a last reply."""
    return plain_answer(reply) if origin == "imported-text" else extract_answer(reply)
