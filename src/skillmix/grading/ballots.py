"""A student's text, and a grader's ballot on it."""

from dataclasses import dataclass

from skillmix.calls import text_id, was_cut
from skillmix.catalog.combinations import Combination
from skillmix.grading.answers import Answer, Rules
from skillmix.grading.points import Points, decide_points
from skillmix.grading.reader import Reading
from skillmix.prompts.rubric import Phrases, Rubric, rubric_of


@dataclass(frozen=True, slots=True)
class StudentText:
    """The final text of a student for one generation of one combination."""

    student: str
    combination: Combination
    generation: int
    answer: Answer
    finish: str | None = None
    """Why the student stopped, in the provider's words; None if unknown."""

    def __reduce__(self) -> "tuple[type[StudentText], tuple[object, ...]]":
        """Pickle as a plain tuple: the default of such classes takes three times as long."""
        return StudentText, (self.student, self.combination, self.generation, self.answer, self.finish)

    @property
    def is_cut(self) -> bool | None:
        """Whether the reply ended at the token limit; None if unknown."""
        return was_cut(self.finish)

    @property
    def conversation(self) -> tuple[str, str, int]:
        """The key of its conversation: student, combination and generation."""
        return self.student, self.combination.id, self.generation

    @property
    def id(self) -> str:
        """The hash under which the text is graded."""
        return text_id(self.answer.text)


@dataclass(frozen=True, slots=True)
class Ballot:
    """One grader's readings of one text, by round; None where no attempt has been readable yet."""

    text: StudentText
    grader: str
    rounds: int
    readings: tuple[Reading | None, ...]
    is_woven: bool | None = None
    """Whether code finds every requested skill about the topic; None if a skill or the grader has no code."""

    def __reduce__(self) -> "tuple[type[Ballot], tuple[object, ...]]":
        """Pickle as a plain tuple: the default of such classes takes three times as long."""
        return Ballot, (self.text, self.grader, self.rounds, self.readings, self.is_woven)

    def rubric(self, phrases: Phrases) -> Rubric:
        """The rubric that the readings follow."""
        return rubric_of(self.text.combination.skills, self.text.combination.topic, phrases=phrases)

    def points(self, rules: Rules, phrases: Phrases) -> Points:
        """The points of the text, from the votes and from code."""
        return decide_points(self.rubric(phrases), self.text.answer, self.readings, rounds=self.rounds, rules=rules)
