"""Count the calls of a run while they are read."""

from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field

from skillmix.calls import Call, Reply, is_human
from skillmix.runs.reading.gradings import GradedConversation
from skillmix.scores.graders import Readability


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

    def add(self, other: "CallCounter") -> None:
        """Add the counts of other calls."""
        self.calls.update(other.calls)
        self.without_reply.update(other.without_reply)
        for grader, reasons in other.reasons.items():
            self.reasons[grader].update(reasons)
        self.not_sent |= other.not_sent

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
