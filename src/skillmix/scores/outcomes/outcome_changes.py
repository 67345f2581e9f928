"""Differences in outcomes between two students on the same combinations, such as before and after fine-tuning."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from skillmix.models.lineage import Lineage
from skillmix.prompts.rubric import OUTCOMES, TextOutcome
from skillmix.runs.run import Run, opened
from skillmix.runs.students import has_settings, student_lineages
from skillmix.scores.cells import CellKey
from skillmix.scores.compare import base_of, comparable_students, families
from skillmix.scores.outcomes.outcome_scores import OutcomeCell, Topics, run_outcome_cells
from skillmix.scores.statistics.differences import holm, paired_difference


@dataclass(frozen=True, slots=True)
class OutcomeChange:
    """A student minus another one in the share of an outcome, over the combinations that both have complete."""

    run: str
    student: str
    base: str
    is_tuned: bool
    """Whether the student was tuned from the base; otherwise the base is the first student of the run."""
    grader: str
    setting: str
    k: int
    topics: Topics
    outcome: TextOutcome
    difference: float
    low: float | None
    """None, as is `high`, if the students share too few combinations for an interval."""
    high: float | None
    p: float
    p_corrected: float
    """Holm's correction over the rows of the two students with these topics and this outcome."""
    combinations: int


def run_outcome_changes(run: Run | str) -> list[OutcomeChange]:
    """What changed in a run: tuned students against their bases, or else each student against the first one."""
    run = opened(run)
    cells = run_outcome_cells(run)
    students = list(dict.fromkeys(cell.key.student for cell in cells))
    lineages = run.remember("lineages", lambda: student_lineages(run, run.known_experiment, students, {}))
    return outcome_changes(run, cells, lineages)


def outcome_changes(run: Run, cells: Sequence[OutcomeCell], lineages: Mapping[str, Lineage]) -> list[OutcomeChange]:
    """The same from cells and lineages that are read already."""
    students = list(dict.fromkeys(cell.key.student for cell in cells))
    by_key = {(cell.key, cell.topics): cell for cell in cells}
    changes: list[OutcomeChange] = []
    for student, base, is_tuned in _pairs(run, students, lineages):
        changes += _corrected(list(_rows(student, base, by_key, is_tuned=is_tuned)))
    return changes


def _corrected(rows: Sequence[OutcomeChange]) -> list[OutcomeChange]:
    """Correct p over the k, settings and graders of each outcome; the outcomes of a text decide each other."""
    families: dict[tuple[Topics, TextOutcome], list[OutcomeChange]] = {}
    for row in rows:
        families.setdefault((row.topics, row.outcome), []).append(row)
    corrected = {key: iter(holm([row.p for row in family])) for key, family in families.items()}
    return [replace(row, p_corrected=next(corrected[row.topics, row.outcome])) for row in rows]


def _pairs(run: Run, students: Sequence[str], lineages: Mapping[str, Lineage]) -> list[tuple[str, str, bool]]:
    known = [name for name in students if has_settings(run, name)]
    comparable = comparable_students(run, run.known_experiment, known, lineages)
    tuned = [
        (member.student, base.student, True)
        for family in families(comparable).values()
        if (base := base_of(family)) is not None
        for member in family
        if member.lineage is not None
    ]
    return tuned or [(student, students[0], False) for student in students[1:]]


def _rows(
    student: str, base: str, cells: Mapping[tuple[CellKey, Topics], OutcomeCell], *, is_tuned: bool
) -> Iterator[OutcomeChange]:
    for cell in cells.values():
        before = cells.get((cell.key._replace(student=base), cell.topics))
        if cell.key.student != student or before is None:
            continue
        for outcome in OUTCOMES:
            found = paired_difference(before.by_combination(outcome), cell.by_combination(outcome))
            if found is not None:
                yield OutcomeChange(
                    run=cell.key.run,
                    student=student,
                    base=base,
                    is_tuned=is_tuned,
                    grader=cell.key.grader,
                    setting=cell.key.setting,
                    k=cell.key.k,
                    topics=cell.topics,
                    outcome=outcome,
                    difference=found.mean,
                    low=found.low,
                    high=found.high,
                    p=found.p,
                    p_corrected=found.p,
                    combinations=found.combinations,
                )
