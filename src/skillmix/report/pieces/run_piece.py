"""One piece of a run for a report: the conversations of a student with some combination ids."""

import pickle
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from skillmix.grading.answers import Rules
from skillmix.grading.points import Points
from skillmix.report.pieces.call_counter import CallCounter
from skillmix.report.pieces.denial_words import Denials, DenialWords
from skillmix.report.pieces.encoded_items import EncodedItems, ItemEncoder
from skillmix.runs.journal.journal import JournalReader
from skillmix.runs.judging.judged_texts import JudgedText, judged_with_words
from skillmix.runs.reading.conversation_index import KeyRange
from skillmix.runs.reading.graded_conversations import ConversationKey, graded_conversations, written_conversations
from skillmix.runs.reading.run_records import RecordsBuilder, RecordsPart
from skillmix.runs.rules_grader import RulesGrader, applicable_reasons
from skillmix.runs.run import Run


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

    def __reduce__(self) -> "tuple[type[CodeEvidence], tuple[object, ...]]":
        """Pickle as a plain tuple: the default of such classes takes three times as long."""
        return CodeEvidence, (self.words, self.unrequested, self.reasons, self.masked, self.woven)


class RunPiece(NamedTuple):
    """What a report needs of some conversations; the replies are in it as JSON only."""

    talks: EncodedItems
    votes: bytes
    """The pickled `EncodedItems` of the votes, which wait on disk; empty if there are none."""
    records: RecordsPart
    points: list[list[Points]]
    """Under each of the rules, the points of all ballots of `records` in order."""
    denials: Denials
    evidence: dict[ConversationKey, CodeEvidence]
    counter: CallCounter


class PieceReader:
    """Reads pieces of one run."""

    def __init__(self, run: Run, journal: JournalReader, code: RulesGrader | None, rules: Sequence[Rules]) -> None:
        self._run = run
        self._journal = journal
        self._code = code
        self._rules = rules
        self._records = RecordsBuilder(run, code)

    def read(self, keys: KeyRange, chosen: Sequence[str] | None) -> RunPiece:
        """Read the conversations of a range; with `chosen`, only those of these combinations."""
        run, journal = self._run, self._journal
        if chosen is not None:
            journal.limit_calls(chosen)
        talks, votes = ItemEncoder(journal), ItemEncoder(journal)
        counter, words = CallCounter(), DenialWords(run.phrases)
        evidence: dict[ConversationKey, CodeEvidence] = {}
        texts = []
        for written in written_conversations(run, journal, ids=keys.ids, student=keys.student):
            talks.add_talk(written.key, written.turns)
            counter.add_calls(written.turns)
            texts += [written.text] if written.text else []
        for graded in graded_conversations(run, journal, texts, ids=keys.ids, student=keys.student):
            if graded.calls:
                votes.add_ballot(graded)
                words.add(graded)
            counter.add_gradings(graded)
            judged = judged_with_words(self._code, graded.text) if self._code is not None else None
            self._records.add(graded, judged)
            if judged is not None:
                evidence[graded.text.conversation] = _evidence(run, judged)
        records = self._records.take()
        points = [[ballot.points(rules, run.phrases) for ballot in records.all_ballots] for rules in self._rules]
        return RunPiece(talks.take(), _packed(votes.take()), records, points, words.found, evidence, counter)


def _packed(votes: EncodedItems) -> bytes:
    return pickle.dumps(votes, pickle.HIGHEST_PROTOCOL) if votes.items else b""


def _evidence(run: Run, judged: JudgedText) -> CodeEvidence:
    """The words that show each skill, the skills that were not asked for, and why code denies points."""
    reasons = {g.name: applicable_reasons(judged, is_alone=g.is_code_alone) for g in run.graders_with_code}
    return CodeEvidence(judged.words, judged.unrequested, reasons, judged.masked, judged.woven)
