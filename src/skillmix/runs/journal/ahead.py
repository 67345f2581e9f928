"""Conversations in `ahead.jsonl` beside the journal, which dataset steps of earlier versions began but did not count.

How many there are depended on the speed of the machine, so each belongs to no data set until a step uses it. Each line
notes one conversation as begun or as tried. New runs have no such file. Only the process that holds the run's lock
adds to it.
"""

import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

from skillmix.errors import UserError

_FILE: Final = "ahead.jsonl"
StudentConversation = tuple[str, str, int]
"""Student, combination and generation."""


class ConversationsAhead:
    """The conversations of one run that began ahead, and whether a step has used them since."""

    def __init__(self, journal: Path) -> None:
        self._file = journal / _FILE
        self._is_tried: dict[StudentConversation, bool] = {}
        for event, conversation in _events(self._file):
            self._is_tried[conversation] = event == "tried" or self._is_tried.get(conversation, False)

    @property
    def untried(self) -> frozenset[StudentConversation]:
        """The conversations that belong to no data set."""
        return frozenset(conversation for conversation, is_tried in self._is_tried.items() if not is_tried)

    def note_tried(self, conversations: Iterable[StudentConversation]) -> None:
        """Note that a step uses conversations, those of them that began ahead."""
        tried = [c for c in conversations if self._is_tried.get(c) is False] if self._is_tried else []
        if not tried:
            return
        lines = "".join(json.dumps(["tried", *conversation], ensure_ascii=True) + "\n" for conversation in tried)
        try:
            with self._file.open("ab+") as file:
                file.seek(-1, 2)
                lines = lines if file.read(1) == b"\n" else "\n" + lines  # after a line that a crash cut off
                file.write(lines.encode())
        except OSError as error:
            raise UserError(
                f"{self._file} cannot be written: {error.strerror or error}.",
                hint="Check its permissions and the space on the disk; finished calls are kept.",
            ) from None
        self._is_tried |= dict.fromkeys(tried, True)


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
