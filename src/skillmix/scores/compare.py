"""Which students may be compared: a tuned model with its base, on the combinations that both have completed."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from skillmix.experiment.experiment import Experiment
from skillmix.experiment.step_base import JOINED
from skillmix.hashing import short_id
from skillmix.models.lineage import Lineage
from skillmix.prompts.files import load_prompts, shipped_prompt_sets
from skillmix.runs.run import Run
from skillmix.runs.students import made_students, settings_for
from skillmix.scores.cells import Cell, CellKey
from skillmix.scores.format_effect import FormatEffect, effect_between
from skillmix.scores.verdicts.judged import PairRow, compare_cells

Cells = Mapping[CellKey, Cell]
EQUAL: Final = 0.05
"""Numbers of conversations or steps that differ by no more than this share count as equal."""


@dataclass(frozen=True, slots=True)
class ComparableStudent:
    """A student with everything that decides which others it may be compared with."""

    run: str
    student: str
    spec: str
    """The student's model in the experiment."""
    prompts: str
    """Its prompt set; students with other prompts are not compared."""
    lineage: Lineage | None
    partition: str
    seed: int
    """The seed of its training or, for a base, of the run."""
    decoding: str = ""
    """Its sampling settings; students with other settings are not compared."""
    catalog: str = ""
    """The hash of the catalog of its run."""
    graders: Mapping[str, str] = field(default_factory=dict)
    """The graders of its run by name, each with a hash of everything that decides its points."""
    family: str | None = None
    """Its name in the file, if the file repeats it for seeds, partitions or values of a matrix."""

    @property
    def base(self) -> str:
        """The model at the root: the first that was tuned, or the student itself."""
        return self.lineage.base if self.lineage else self.spec

    @property
    def k(self) -> tuple[int, ...]:
        """Numbers of skills in its training texts; empty for a base."""
        return self.lineage.k if self.lineage else ()

    @property
    def rows(self) -> int | None:
        """Conversations in its training data; None if unknown."""
        return self.lineage.rows if self.lineage else None

    @property
    def steps(self) -> int | None:
        """Optimiser steps of its training; None if unknown."""
        return self.lineage.steps if self.lineage else None

    @property
    def data(self) -> tuple[str, ...]:
        """Hashes of its data sets; empty for a base."""
        return self.lineage.datasets if self.lineage else ()

    @property
    def recipe(self) -> str:
        """The hash of its recipe; empty for a base."""
        return self.lineage.recipe if self.lineage else ""

    @property
    def asks_one(self) -> bool:
        """Whether each request of its training texts names one skill, however many skills the texts show."""
        return self.lineage is not None and self.lineage.requests == "one"

    @property
    def is_composed(self) -> bool:
        """Whether it was trained on requests for two skills or more."""
        return max(self.k, default=0) >= 2 and not self.asks_one


def families(students: Sequence[ComparableStudent]) -> dict[tuple[str, str, str, str], list[ComparableStudent]]:
    """Students of one run, grouped by root, prompt set and sampling settings."""
    groups: dict[tuple[str, str, str, str], list[ComparableStudent]] = {}
    for student in students:
        shared = (student.run, student.base, student.prompts, student.decoding)
        groups.setdefault(shared, []).append(student)
    return groups


def base_of(family: Sequence[ComparableStudent]) -> ComparableStudent | None:
    """The student of a family that was not tuned."""
    return next((c for c in family if c.lineage is None), None)


def practice_of(second: ComparableStudent, family: Sequence[ComparableStudent]) -> ComparableStudent | None:
    """The student of single skills that had as many texts and steps as a composed one; None if there is none.

    The best control has the same texts, with requests that name one skill.
    """
    equal = [
        c
        for c in family
        if (c.asks_one or c.k == (1,)) and are_close(c.rows, second.rows) and are_close(c.steps, second.steps)
    ]
    best = max(equal, key=lambda c: (c.asks_one, c.seed == second.seed, c.rows or 0, c.steps or 0), default=None)
    return best if second.is_composed else None


def practice_between(students: Sequence[ComparableStudent], first: str, second: str) -> str | None:
    """The name of the student of single skills that is matched with the second, if the first is the second's base."""
    for family in families(students).values():
        base, tuned = base_of(family), next((c for c in family if c.student == second), None)
        if base is not None and base.student == first and tuned is not None:
            practice = practice_of(tuned, family)
            return practice.student if practice else None
    return None


def are_close(number: int | None, other: int | None) -> bool:
    """Whether two numbers of conversations or steps count as equal; unknown numbers do not."""
    if number is None or other is None:
        return False
    return abs(number - other) <= EQUAL * max(number, other)


@dataclass(frozen=True, slots=True)
class Change:
    """A tuned student minus its base at one grader, setting and k."""

    run: str
    student: str
    base: str
    trained: tuple[int, ...]
    row: PairRow
    format: FormatEffect | None = None
    """How the format of the texts bears on the difference; None if unknown."""

    @property
    def format_words(self) -> str | None:
        """The role of format as a clause; None if format has no role."""
        return self.format.words(self.base, self.student) if self.format else None


def before_and_after(students: Sequence[ComparableStudent], cells: Cells) -> list[Change]:
    """Every tuned student compared with its base, in the order of the cells, where both have a cell."""
    changes: dict[CellKey, Change] = {}
    for family in families(students).values():
        base = base_of(family)
        for tuned in family:
            if base is not None and tuned.lineage is not None:
                changes |= {
                    CellKey(c.run, c.student, c.row.grader, c.row.setting, c.row.k): c
                    for c in _changes(base, tuned, practice_of(tuned, family), cells)
                }
    return [changes[key] for key in cells if key in changes]


def _changes(
    base: ComparableStudent, tuned: ComparableStudent, practice: ComparableStudent | None, cells: Cells
) -> Iterator[Change]:
    both = base.student, tuned.student
    for row in compare_cells(tuned.run, *both, cells, practice=practice.student if practice else None):
        effect = effect_between(both, (tuned.run,), (row.grader, row.setting, row.k), cells, row.found)
        yield Change(tuned.run, tuned.student, base.student, tuned.k, row, effect)


def student_specs(experiment: Experiment) -> dict[str, str]:
    """The model of every student; that of a train step is described by its step."""
    trained = {n: s if s.startswith(JOINED) else f"made by step {n}" for n, s in made_students(experiment).items()}
    return {name: s.model for name, s in experiment.students.items()} | trained


def comparable_students(
    run: Run, experiment: Experiment, students: Iterable[str], lineages: Mapping[str, Lineage]
) -> list[ComparableStudent]:
    """The students of a run, ready for comparison; without a lineage, a student is a base. None is joined by code."""
    specs = student_specs(experiment)
    comparable = []
    for student in students:
        if specs and settings_for(experiment, student).joined:
            continue
        lineage = lineages.get(student)
        variant = experiment.variants.get(student)
        seeds = (lineage.seed if lineage else None, variant.seed if variant else None, experiment.seed)
        partition = (lineage and lineage.partition) or (variant and variant.partition) or experiment.partition
        prompts, decoding = _prompts_and_decoding(experiment, student) if specs else ("", "")
        spec = specs.get(student, student)
        comparable.append(
            ComparableStudent(
                run=run.name,
                student=student,
                spec=spec,
                prompts=prompts,
                lineage=lineage,
                partition=partition or "default",
                seed=next(seed for seed in seeds if seed is not None),
                decoding=decoding,
                catalog=run.fact("catalog_hash") or run.fact("catalog") or "",
                graders=_graders(run, experiment),
                family=variant.family if variant else None,
            )
        )
    return comparable


def _graders(run: Run, experiment: Experiment) -> dict[str, str]:
    """A hash of each grader's settings, the prompts and the scoring rules; speed and waiting times decide no points."""
    if run.is_imported:
        return {}
    rules = [
        experiment.rules,
        experiment.answer.model_dump(mode="json"),
        run.fact("prompts_hash") or _hash_of_shipped(experiment.prompts),
    ]
    return {
        name: short_id("grader", settings.model_dump(mode="json", exclude={"concurrency", "timeout"}), rules)
        for name, settings in experiment.graders.items()
    }


def _hash_of_shipped(prompts: str) -> str:
    """The hash of shipped prompts, for runs that stored no hash; the name of other prompts."""
    return load_prompts(prompts).content_hash() if prompts in shipped_prompt_sets() else prompts


def _prompts_and_decoding(experiment: Experiment, student: str) -> tuple[str, str]:
    """A student's prompt set, and its sampling settings in words."""
    settings = settings_for(experiment, student)
    decoding = f"temperature {settings.temperature}, top_p {settings.top_p}, {settings.max_tokens} tokens"
    decoding = ", ".join(filter(None, [decoding, settings.additions]))
    return settings.prompts or experiment.prompts, decoding
