"""Who may be compared with whom: students by their lineage, on the combinations that both have complete."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from skillmix.core.cells import Cell, Place
from skillmix.core.lineage import Lineage

Cells = Mapping[Place, Cell]


@dataclass(frozen=True, slots=True)
class Contender:
    """A student with all that decides what it may be compared with."""

    run: str
    student: str
    spec: str
    """What the student is, as the experiment says."""
    prompts: str
    """The prompt set it is asked with: a base is compared with what is asked in the same words."""
    lineage: Lineage | None
    partition: str
    seed: int
    """Of the training, or of the run."""
    decoding: str = ""
    """How it draws: a student at another temperature is not the same one untuned."""

    @property
    def base(self) -> str:
        """The model at the root: its own, or the one that was tuned."""
        return self.lineage.base if self.lineage else self.spec

    @property
    def k(self) -> tuple[int, ...]:
        """What it was trained on; nothing for a base."""
        return self.lineage.k if self.lineage else ()

    @property
    def rows(self) -> int | None:
        """Conversations it was trained on."""
        return self.lineage.rows if self.lineage else None


def families(contenders: Sequence[Contender]) -> dict[tuple[str, str, str, str], list[Contender]]:
    """Students of one run that share a root, the words they are asked in, and how they draw."""
    found: dict[tuple[str, str, str, str], list[Contender]] = {}
    for contender in contenders:
        shared = (contender.run, contender.base, contender.prompts, contender.decoding)
        found.setdefault(shared, []).append(contender)
    return found


def base_of(family: Sequence[Contender]) -> Contender | None:
    """The one that was not tuned."""
    return next((c for c in family if c.lineage is None), None)


def paired(first: Contender, second: Contender, where: tuple[str, str, int], cells: Cells) -> list[float]:
    """Second minus first in full marks, best of the generations, at one grader, setting and k."""
    places = [Place(c.run, c.student, *where) for c in (first, second)]
    if not all(place in cells for place in places):
        return []
    before, after = (cells[place].best("full_marks") for place in places)
    return [after[c] - before[c] for c in sorted(before.keys() & after.keys())]
