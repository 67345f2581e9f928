"""Who may be compared with whom: students by their lineage, on the combinations that both have complete."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from skillmix.experiment.experiment import Experiment
from skillmix.models.lineage import Lineage
from skillmix.runs.run import RunFolder
from skillmix.runs.students import settings_for
from skillmix.scores.cells import Cell, Place
from skillmix.scores.statistics.gains import Gain, gain

Cells = Mapping[Place, Cell]


@dataclass(frozen=True, slots=True)
class ComparableStudent:
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


def families(contenders: Sequence[ComparableStudent]) -> dict[tuple[str, str, str, str], list[ComparableStudent]]:
    """Students of one run that share a root, the words they are asked in, and how they draw."""
    found: dict[tuple[str, str, str, str], list[ComparableStudent]] = {}
    for contender in contenders:
        shared = (contender.run, contender.base, contender.prompts, contender.decoding)
        found.setdefault(shared, []).append(contender)
    return found


def base_of(family: Sequence[ComparableStudent]) -> ComparableStudent | None:
    """The one that was not tuned."""
    return next((c for c in family if c.lineage is None), None)


def paired(
    first: ComparableStudent, second: ComparableStudent, where: tuple[str, str, int], cells: Cells
) -> list[float]:
    """Second minus first in full marks, best of the generations, at one grader, setting and k."""
    places = [Place(c.run, c.student, *where) for c in (first, second)]
    if not all(place in cells for place in places):
        return []
    before, after = (cells[place].best("full_marks") for place in places)
    return [after[c] - before[c] for c in sorted(before.keys() & after.keys())]


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


def before_and_after(contenders: Sequence[ComparableStudent], cells: Cells) -> list[Change]:
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


def student_specs(experiment: Experiment) -> dict[str, str]:
    """What every student is, those that train steps made included."""
    trained = {step.name: f"made by step {step.name}" for step in experiment.steps if step.stage == "train"}
    return {name: s.model for name, s in experiment.students.items()} | trained


def comparable_students(
    run: RunFolder, experiment: Experiment | None, students: Iterable[str], lineages: Mapping[str, Lineage]
) -> list[ComparableStudent]:
    """Students with what decides whom they may be compared with."""
    specs = student_specs(experiment) if experiment else {}
    found = []
    for student in students:
        lineage = lineages.get(student)
        seed = lineage.seed if lineage and lineage.seed is not None else experiment.seed if experiment else 0
        partition = (lineage.partition if lineage else None) or (experiment.partition if experiment else None)
        prompts, decoding = _asked_with(experiment, student) if experiment else ("", "")
        spec = specs.get(student, student)
        found.append(
            ComparableStudent(run.name, student, spec, prompts, lineage, partition or "default", seed, decoding)
        )
    return found


def _asked_with(experiment: Experiment, student: str) -> tuple[str, str]:
    """A student's prompt set, and how it draws."""
    settings = settings_for(experiment, student)
    decoding = f"temperature {settings.temperature}, top_p {settings.top_p}, {settings.max_tokens} tokens"
    return settings.prompts or experiment.prompts, decoding
