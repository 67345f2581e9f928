"""What graders wrote about the points that their votes deny, or about the outcomes that they name."""

from collections.abc import Iterable

from skillmix.calls import GradeKey, Reply, is_human
from skillmix.catalog.combinations import Combination
from skillmix.grading.ballots import StudentText
from skillmix.grading.grader_words import words_about
from skillmix.grading.outcomes.outcome_reader import outcome_words
from skillmix.grading.points import may_be_denied
from skillmix.prompts.rubric import Phrases, Rubric, rubric_of
from skillmix.runs.reading.graded_conversations import ConversationKey
from skillmix.runs.reading.gradings import GradedConversation

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
