"""What a report takes from the calls of a run while they are read: JSON, counts, and what graders wrote."""

import gc
import json
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Final

from skillmix.calls import Call, CallProblem, GradeKey, Reply, is_human
from skillmix.catalog.combinations import Combination
from skillmix.grading.ballots import StudentText
from skillmix.grading.grader_words import words_about
from skillmix.grading.outcomes.outcome_reader import outcome_words
from skillmix.grading.points import may_be_denied
from skillmix.prompts.rubric import Phrases, Rubric, rubric_of
from skillmix.runs.journal.journal import JournalReader
from skillmix.runs.reading.graded_conversations import ConversationKey, GradedConversation, grade_key
from skillmix.runs.rules_grader import applicable_reasons
from skillmix.runs.run import Run
from skillmix.runs.verdicts import JudgedText
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

    def _rubric_of(self, combination: Combination) -> Rubric:
        if self._rubric is None or self._rubric[0] != combination.id:
            rubric = rubric_of(combination.skills, combination.topic, phrases=self._phrases)
            self._rubric = combination.id, rubric
        return self._rubric[1]

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
        rubric = self._rubric_of(text.combination)
        words = next(filter(None, (words_about(rubric, index, reply) for reply in replies)), None)
        if words:
            self.found.setdefault(text.conversation, {})[grader, index] = words
