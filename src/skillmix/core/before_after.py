"""Every tuned student against its base on the same combinations, and whether the difference is more than noise."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from skillmix.core.contenders import Cells, Contender, base_of, families, paired
from skillmix.core.statistics.gains import Gain, gain

Remark = Literal["within noise", "a gain", "a loss"]


@dataclass(frozen=True, slots=True)
class Change:
    """A tuned student minus its base at one grader, setting and k, each by itself: nothing is corrected for."""

    run: str
    student: str
    base: str
    trained: tuple[int, ...]
    grader: str
    setting: str
    k: int
    gain: Gain

    @property
    def remark(self) -> Remark:
        """Within noise where the interval of the paired difference includes 0."""
        if self.gain.low <= 0 <= self.gain.high:
            return "within noise"
        return "a gain" if self.gain.mean > 0 else "a loss"

    @property
    def distance_from_noise(self) -> float:
        """How far the interval stays from 0; nothing where it includes 0."""
        return 0.0 if self.remark == "within noise" else min(abs(self.gain.low), abs(self.gain.high))


def before_and_after(contenders: Sequence[Contender], cells: Cells) -> list[Change]:
    """In the order of the cells, for whatever both students have."""
    pairs = {
        (tuned.run, tuned.student): (base, tuned)
        for family in families(contenders).values()
        if (base := base_of(family)) is not None
        for tuned in family
        if tuned.lineage is not None
    }
    changes = []
    for run, student, grader, setting, k in cells:
        if (run, student) in pairs:
            base, tuned = pairs[run, student]
            differences = paired(base, tuned, (grader, setting, k), cells)
            if differences:
                found = gain({tuned.partition: {tuned.seed: differences}})
                changes.append(Change(run, student, base.student, tuned.k, grader, setting, k, found))
    return changes


def clearest_first(changes: Sequence[Change]) -> list[Change]:
    """Differences whose intervals stay far from 0 first; among those within noise, the larger ones first."""
    return sorted(changes, key=lambda c: (c.remark == "within noise", -c.distance_from_noise, -abs(c.gain.mean)))
