"""Conversations that a dataset step began ahead of its waves, in `ahead.jsonl` beside the journal.

The journal keeps the calls of these conversations, but how many there are depends on the speed of the machine. A
conversation belongs to no data set until a wave or another step tries it. Each line notes one conversation as begun or
as tried. Only the process that holds the run's lock writes the file.
"""

import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final, Literal

from skillmix.errors import UserError

_FILE: Final = "ahead.jsonl"
StudentConversation = tuple[str, str, int]
"""Student, combination and generation."""


class ConversationsAhead:
    """The conversations of one run that began ahead of a wave, and whether a wave or a step has tried them since."""

    def __init__(self, journal: Path) -> None:
        self._file = journal / _FILE
        self._is_tried: dict[StudentConversation, bool] = {}
        for event, conversation in _events(self._file):
            self._is_tried[conversation] = event == "tried" or self._is_tried.get(conversation, False)

    @property
    def untried(self) -> frozenset[StudentConversation]:
        """The conversations that belong to no data set."""
        return frozenset(conversation for conversation, is_tried in self._is_tried.items() if not is_tried)

    def begin(self, conversations: Iterable[StudentConversation]) -> None:
        """Note conversations before their first calls; one that was noted earlier stays as it is."""
        self._note("begun", [c for c in conversations if c not in self._is_tried])

    def note_tried(self, conversations: Iterable[StudentConversation]) -> None:
        """Note that a wave or a step tries conversations, those of them that began ahead."""
        if self._is_tried:
            self._note("tried", [c for c in conversations if self._is_tried.get(c) is False])

    def _note(self, event: Literal["begun", "tried"], conversations: list[StudentConversation]) -> None:
        if not conversations:
            return
        lines = "".join(json.dumps([event, *conversation], ensure_ascii=True) + "\n" for conversation in conversations)
        try:
            with self._file.open("ab+") as file:
                if file.tell():
                    file.seek(-1, 2)
                    lines = lines if file.read(1) == b"\n" else "\n" + lines  # after a line that a crash cut off
                file.write(lines.encode())
        except OSError as error:
            raise UserError(
                f"{self._file} cannot be written: {error.strerror or error}.",
                hint="Check its permissions and the space on the disk; finished calls are kept.",
            ) from None
        self._is_tried |= dict.fromkeys(conversations, event == "tried")


def _events(file: Path) -> Iterator[tuple[str, StudentConversation]]:
    """The events of a file in order; a line that a crash cut off was followed by no call."""
    try:
        lines = file.read_bytes().splitlines()
    except FileNotFoundError:
        return
    except OSError as error:
        raise UserError(
            f"{file} cannot be read: {error.strerror or error}.", hint="Nothing was changed. Check its permissions."
        ) from None
    for line in lines:
        try:
            event, student, combination, generation = json.loads(line)
        except (ValueError, TypeError, RecursionError):
            continue
        if event in ("begun", "tried") and isinstance(generation, int):
            yield event, (str(student), str(combination), generation)
