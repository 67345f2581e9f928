"""The input of a grader card: texts with the points that each grader gave them.

A label is the points of one more grader. A person is a grader `human:NAME`, code is the grader that is `rules:`, and a
calibration set with known labels gives them under any name, such as `labels`:

    item = TextUnderGraders(
        run="calibration", student="set", combination="metaphor/1", generation=0, skills=("metaphor",), words=31,
        points={"gpt": (True, True, True, True), "labels": (True, None, None, None)},
    )
    card = grader_card([item, ...], "gpt", "labels")

Points stand in the order skills, topic, sense, length. None is unknown: a rater was unsure, a reply was unreadable, or
the label does not say. A text without an entry for the truth is graded and has no label; such texts still tell how
often the grader gives a point, and scores of them can be corrected.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from skillmix.calls import PEOPLE, is_human
from skillmix.grading.points import FULL_MARKS, Points, text_score

Vote = tuple[float | None, ...]
"""The points of one round as the grader gave them, in the order of `Points`."""


@dataclass(frozen=True, slots=True)
class TextUnderGraders:
    """One text, and the points that graders gave it."""

    run: str
    student: str
    combination: str
    """The id of the combination; texts of one combination are not independent of each other."""
    generation: int
    skills: tuple[str, ...]
    """In the order of the prompt."""
    words: int
    """The length of the text in words."""
    points: Mapping[str, Points]
    """By grader; a grader that never voted on the text has no entry."""
    votes: Mapping[str, tuple[Vote | None, ...]] = field(default_factory=dict)
    """By grader, the vote of each round; None if no reply of the round could be read."""
    settings: tuple[str, ...] = ()
    """The settings whose cells contain the text."""
    student_model: str | None = None
    """The spec of the student's model; None if unknown."""
    by_code: frozenset[int] = frozenset()
    """Criteria that code decides under every grader: the length, and skills that the text names."""

    @property
    def k(self) -> int:
        """The number of skills."""
        return len(self.skills)

    @property
    def group(self) -> tuple[str, str, int]:
        """The run, the student and k: texts of one group differ in nothing that the experiment decides."""
        return self.run, self.student, self.k

    def full_marks(self, grader: str | None) -> bool | None:
        """Whether a grader gives full marks; None if it did not decide."""
        points = self.points.get(grader or "")
        score = text_score(points, FULL_MARKS) if points else None
        return None if score is None else score == 1.0

    def decides(self, grader: str | None) -> bool:
        """Whether a grader decided a criterion that code leaves open."""
        points = self.points.get(grader or "", ())
        return any(point is not None and index not in self.by_code for index, point in enumerate(points))

    @property
    def is_denied_by_code(self) -> bool:
        """Whether code alone denies full marks, so that no error of a grader can change them."""
        decided = ({points[index] for points in self.points.values()} - {None} for index in self.by_code)
        return any(values == {False} for values in decided)


def people_in(items: Iterable[TextUnderGraders]) -> list[str]:
    """The people who rated some text, by name."""
    return sorted({grader for item in items for grader in item.points if is_human(grader)})


def with_people(items: Sequence[TextUnderGraders]) -> list[TextUnderGraders]:
    """The same texts with the majority of people as one more grader, `people`."""
    return [replace(item, points={**item.points, **_majority(item)}) for item in items]


def _majority(item: TextUnderGraders) -> dict[str, Points]:
    rated = [points for grader, points in item.points.items() if is_human(grader)]
    return {PEOPLE: tuple(map(_more_than_half, zip(*rated, strict=True)))} if rated else {}


def _more_than_half(points: Sequence[bool | None]) -> bool | None:
    """The answer of more than half of the people; None for a tie, and where too many are unsure."""
    for answer in (True, False):
        if 2 * points.count(answer) > len(points):
            return answer
    return None
