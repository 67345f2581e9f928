"""Format apart from skill: whether the format of two students' texts explains their difference in full marks."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from skillmix.grading.points import FULL_MARKS
from skillmix.render.numbers import signed_with_interval
from skillmix.render.wording import plural
from skillmix.scores.cells import Cell, CellKey
from skillmix.scores.statistics.intervals import FEWEST_COMBINATIONS
from skillmix.scores.statistics.ratios import Cluster, Paired, ShareDifference, share_difference

Role = Literal["explains", "hides skill"]
"""Format explains the difference, or too few texts have a valid format to compare the skill of both students."""


@dataclass(frozen=True, slots=True)
class ValidTexts:
    """The texts of one student with a valid format and a decision on full marks."""

    valid: int
    combinations: int
    """Combinations with such a text."""
    written: int
    """Texts that have a format, valid or not."""

    @property
    def are_too_few(self) -> bool:
        """Whether full marks among these texts cannot be compared."""
        return self.combinations < FEWEST_COMBINATIONS


@dataclass(frozen=True, slots=True)
class FormatEffect:
    """How the format of the texts bears on the difference between two students."""

    first: ValidTexts
    second: ValidTexts
    among_valid: ShareDifference | None
    """Full marks among texts with a valid format, one try, second minus first; None if one has too few such texts."""
    role: Role | None
    """None if no difference in full marks is found, if the formats do not differ, or if skill differs too."""

    def words(self, first: str, second: str) -> str | None:
        """The role of format as a clause, with the names of both students; None if format has no role."""
        if self.role == "explains" and self.among_valid is not None:
            difference = signed_with_interval(*self.among_valid)
            return f"format explains it: among texts with a valid format the difference is {difference}, within noise"
        if self.role == "hides skill":
            few = [(name, t) for name, t in ((first, self.first), (second, self.second)) if t.are_too_few]
            each = [f"{name} has {plural(t.valid, 'text')} with a valid format, of {t.written}" for name, t in few]
            return f"skill cannot be compared: {' and '.join(each)}"
        return None


def effect_between(
    students: tuple[str, str],
    runs: Sequence[str],
    where: tuple[str, str, int],
    cells: Mapping[CellKey, Cell],
    found: float,
) -> FormatEffect:
    """The effect of format between two students of some runs; `where` is a grader, a setting and a k."""
    keys = [tuple(CellKey(run, student, *where) for student in students) for run in runs]
    pairs = [(cells[first], cells[second]) for first, second in keys if first in cells and second in cells]
    return format_effect(pairs, found)


def format_effect(cells: Sequence[tuple[Cell, Cell]], found: float) -> FormatEffect:
    """The effect of format on a difference in full marks; `cells` has the first and the second student of each run.

    `found` is 0 unless a difference is found. Format explains it if the share of texts with a valid format differs in
    the same direction, outside noise, and full marks among these texts differ within noise.
    """
    valid = [pair for first, second in cells for pair in _paired(first, second, by_format=False)]
    formats = [pair for first, second in cells for pair in _paired(first, second, by_format=True)]
    first = _valid_texts([p.first for p in valid], [p.first for p in formats])
    second = _valid_texts([p.second for p in valid], [p.second for p in formats])
    has_enough = not first.are_too_few and not second.are_too_few
    among_valid = share_difference(valid) if has_enough else None
    role = _role(found, share_difference(formats), among_valid) if found else None
    return FormatEffect(first, second, among_valid, role)


def _role(found: float, formats: ShareDifference | None, among_valid: ShareDifference | None) -> Role | None:
    if formats is None or formats.is_within_noise or (formats.value > 0) != (found > 0):
        return None
    if among_valid is None:
        return "hides skill"
    return "explains" if among_valid.is_within_noise else None


def _paired(first: Cell, second: Cell, *, by_format: bool) -> list[Paired]:
    """The texts of both students on the combinations that both have."""
    before, after = (c.format_clusters() if by_format else c.valid_clusters(FULL_MARKS) for c in (first, second))
    return [Paired(before[c], after[c]) for c in sorted(before.keys() & after.keys())]


def _valid_texts(valid: Sequence[Cluster], formats: Sequence[Cluster]) -> ValidTexts:
    return ValidTexts(
        valid=sum(cluster.texts for cluster in valid),
        combinations=sum(cluster.texts > 0 for cluster in valid),
        written=sum(cluster.texts for cluster in formats),
    )
