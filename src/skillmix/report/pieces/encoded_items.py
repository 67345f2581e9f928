"""Conversations and votes as the JSON of a report's files, except for the numbers that only the whole report knows.

Prompts are lists of line numbers, and a vote begins with the number of its grader. A process that reads a piece of a
run does not know these numbers, so it leaves gaps. `Archive` fills the gaps in the order of the pieces, and the files
are the same however many processes there are.
"""

import json
from array import array
from collections.abc import Sequence
from typing import Final, NamedTuple

from skillmix.calls import Call, CallProblem, GradeKey, Reply
from skillmix.runs.journal.journal import JournalReader
from skillmix.runs.reading.graded_conversations import ConversationKey
from skillmix.runs.reading.gradings import GradedConversation

encode_json: Final = json.JSONEncoder(ensure_ascii=True, allow_nan=False, separators=(",", ":")).encode
_MAX_CACHED_PROMPTS: Final = 1000


class EncodedItems(NamedTuple):
    """Items of one kind in order, with gaps for numbers."""

    keys: list[ConversationKey]
    items: list[list[str | int]]
    """The JSON of each item in parts; n stands for the lines of prompt n, and ~n for grader n."""
    lines: list[str]
    """Every different line of the prompts, in order of appearance."""
    prompts: "list[array[int]]"
    """The lines of each prompt, as indices of `lines`."""
    graders: list[str]
    """In order of appearance."""


class ItemEncoder:
    """Encodes the conversations or the votes of one piece."""

    def __init__(self, journal: JournalReader) -> None:
        self._journal = journal
        self._items = EncodedItems([], [], [], [], [])
        self._line_numbers: dict[str, int] = {}
        self._prompt_numbers: dict[str, int] = {}
        self._grader_numbers: dict[str, int] = {}
        self._addresses: dict[str, tuple[str, int]] = {}

    def take(self) -> EncodedItems:
        """The items of the piece."""
        self._items.lines.extend(self._line_numbers)
        self._items.graders.extend(self._grader_numbers)
        return self._items

    def add_talk(self, key: ConversationKey, calls: Sequence[Call]) -> None:
        """Add a student's side of a conversation."""
        self._items.keys.append(key)
        self._items.items.append(self._talk(calls))

    def _talk(self, calls: Sequence[Call]) -> list[str | int]:
        last = calls[-1]
        replies = {len(c.messages): c.outcome.text for c in calls[:-1] if isinstance(c.outcome, Reply)}
        parts: list[str | int] = []
        text = f"[{encode_json(last.model)},["
        for number, address in enumerate(last.messages):
            text += "," if number else ""
            if number in replies:
                text += f'["assistant",{encode_json(replies[number])}]'
            else:
                role, prompt = self._prompt_at(address)
                parts += (f"{text}[{role},[", prompt)
                text = "]]"
        reply = last.outcome.text if isinstance(last.outcome, Reply) else None
        problem = last.outcome.reason if isinstance(last.outcome, CallProblem) else None
        parts.append(f"{text}],{encode_json(reply)},{encode_json(problem)}]")
        return parts

    def _prompt_at(self, address: str) -> tuple[str, int]:
        """The role of a prompt in JSON and its number; a prompt is read once for all generations of a combination."""
        prompt = self._addresses.get(address)
        if prompt is None:
            if len(self._addresses) >= _MAX_CACHED_PROMPTS:
                self._addresses.clear()
            message = self._journal.message(address)
            prompt = self._addresses[address] = encode_json(message.role), self._prompt(message.content)
        return prompt

    def add_ballot(self, graded: GradedConversation) -> None:
        """Add the gradings of a text."""
        self._items.keys.append(graded.text.conversation)
        self._items.items.append(self._ballot(graded))

    def _ballot(self, graded: GradedConversation) -> list[str | int]:
        """The prompts that graders saw, and then the votes, each with the number of its prompt."""
        prompts: dict[tuple[str, ...], int] = {}
        parts: list[str | int] = ["[["]
        for call in graded.calls:
            if call.messages not in prompts:
                prompts[call.messages] = len(prompts)
                parts += ("," if len(prompts) > 1 else "", *self._shown(call.messages, graded.text.answer.text))
        text = "],["
        for call, reading in zip(graded.calls, graded.readings, strict=True):
            key, outcome = call.key, call.outcome
            assert isinstance(key, GradeKey)  # conversations join grading calls only
            points = None if reading is None or reading.points is None else list(reading.points)
            problem = reading.problem if reading else (outcome.reason if isinstance(outcome, CallProblem) else None)
            rest = [
                key.round,
                key.attempt,
                prompts[call.messages],
                outcome.text if isinstance(outcome, Reply) else None,
                points,
                problem,
                list(reading.notes) if reading else [],
            ]
            parts += (f"{text}[", ~self._grader(key.grader))
            text = f",{encode_json(rest)[1:]},"
        parts.append(f"{text[:-1]}]]")
        return parts

    def _shown(self, addresses: Sequence[str], answer: str) -> list[str | int]:
        """The messages of a request, with -1 in place of the student's text."""
        parts: list[str | int] = []
        text = "["
        for number, address in enumerate(addresses):
            message = self._journal.message(address)
            text += f"{',' if number else ''}[{encode_json(message.role)},["
            before, found, after = message.content.partition(answer) if answer else (message.content, "", "")
            parts += (text, self._prompt(before))
            if found:
                parts += (",-1,", self._prompt(after))
            text = "]]"
        parts.append(f"{text}]")
        return parts

    def _prompt(self, content: str) -> int:
        """The number of a prompt; texts of a combination have the same prompts."""
        number = self._prompt_numbers.get(content)
        if number is None:
            lines = self._line_numbers
            number = self._prompt_numbers[content] = len(self._items.prompts)
            self._items.prompts.append(array("I", [lines.setdefault(line, len(lines)) for line in content.split("\n")]))
        return number

    def _grader(self, name: str) -> int:
        return self._grader_numbers.setdefault(name, len(self._grader_numbers))
