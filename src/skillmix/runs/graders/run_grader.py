"""A grader as the reader of a run needs it: a model, code, both, or a person."""

from dataclasses import dataclass
from typing import Final

from skillmix.calls import is_human

PERSON: Final = "person"
"""The model of a grader that is a person, as the journal stores it."""


@dataclass(frozen=True, slots=True)
class RunGrader:
    """A grader as the reader of a run needs it."""

    name: str
    model: str
    votes: int | None = None
    """How many rounds count; None for an imported grader, whose rounds all count."""
    has_code: bool = False
    """Whether code decides the skills that have a checker."""
    asks_model: bool = True
    """Whether a model votes; False if code decides alone."""

    @property
    def is_code_alone(self) -> bool:
        """Whether code decides every point."""
        return self.has_code and not self.asks_model

    @property
    def is_human(self) -> bool:
        """Whether a person votes: on a sample of texts, once for each text, and the latest answer counts."""
        return is_human(self.name)

    def counts(self, number: int) -> bool:
        """Whether a round, numbered from 0, counts; rounds from when the grader had more of them do not.

        >>> RunGrader("judge", "m", votes=1).counts(0), RunGrader("judge", "m", votes=1).counts(1)
        (True, False)
        """
        return self.votes is None or number < self.votes
