"""Count the conversations of a dataset step that workers make, and have them decided when they come back."""

from collections.abc import Iterable, Iterator, Sequence

from skillmix.datasets.writing.decided_texts import DecidedTexts
from skillmix.runs.leases.lease import LentConversation
from skillmix.runs.scheduler import CallCounts


class LentConversations:
    """The conversations that workers have or will get; waves see them as they see the calls of a scheduler."""

    slots = 0
    """Workers have no slots that must be kept filled with conversations that may be in vain."""

    def __init__(self, decided: DecidedTexts, counts: CallCounts) -> None:
        self._decided = decided
        self._counts = counts
        self.in_flight = 0
        """Conversations that have not come back."""

    def counted(self, source: Iterable[LentConversation | None]) -> Iterator[LentConversation | None]:
        """The conversations of a source, which are on their way from now on."""
        for conversation in source:
            self.in_flight += conversation is not None
            yield conversation

    def come_back(self, conversations: Sequence[LentConversation]) -> None:
        """Have conversations decided: they are over, unless a stop brings them back earlier."""
        self.in_flight -= len(conversations)
        if self._counts.stopped is None:
            for conversation in conversations:
                self._decided.add((conversation.combination.id, conversation.generation))

    def abandon(self) -> None:
        """Do nothing: every conversation that was lent is needed."""
