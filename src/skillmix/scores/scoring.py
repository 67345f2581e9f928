"""Compute scores from a run's journal: the cells of its table, and the students that can be compared.

The table contains the rows that the experiment plans, followed by other rows found in the journal. If the current
experiment is smaller than an earlier one of the same run, a row counts the combinations of both experiments, and rows
that only the earlier one planned come next. Texts that no known experiment planned come last, in a separate setting.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import combinations
from typing import Any, Final, TypeVar

import numpy as np
from numpy.typing import NDArray

from skillmix.catalog.combinations import Combination, is_reserved
from skillmix.experiment.experiment import Experiment
from skillmix.experiment.plan import PlannedCell, RowKey, place_of, writers_and_graders
from skillmix.experiment.step_base import JOINED, label_parts
from skillmix.experiment.steps import EvaluateStep
from skillmix.grading.points import FULL_MARKS, METRICS
from skillmix.hashing import short_id
from skillmix.models.lineage import Lineage, other_partitions
from skillmix.prompts.prompt_set import load_prompts, shipped_prompt_sets
from skillmix.runs.run import Run, opened
from skillmix.runs.students import has_settings, made_students, settings_for
from skillmix.runs.texts import TextGrade, TextTable, text_table
from skillmix.scores.cells import Cell, CellKey, CellScore, largest_cells
from skillmix.scores.lineages import run_datasets, student_lineages
from skillmix.scores.text_rows import IMPORTED, counted_cells

NOT_IN_FILE: Final = "not-in-file"
"""The setting name of texts that no known experiment of the run plans."""


@dataclass(frozen=True, slots=True)
class TableRow:
    """The texts of one row of the score table, stored as indices of their grades."""

    student: str
    grader: str
    setting: str
    k: int
    numbers: NDArray[np.int32]
    """Indices into `grades`, by combination and sample; -1 if there is no text or no ballot. See also `_NO_TEXT`."""
    grades: Sequence[TextGrade]
    combinations: tuple[Combination, ...]
    unnamed: int = 0
    """The number of combinations in the journal that the current experiment does not contain."""

    def cell(self, run: str) -> Cell:
        """Convert the row to a cell with points, in which equal tuples share memory."""
        rows = self.numbers.tolist()
        if (self.numbers == _NO_TEXT).any():
            rows = [[number for number in row if number != _NO_TEXT] for row in rows]
        return Cell(
            key=CellKey(run, self.student, self.grader, self.setting, self.k),
            combinations=self.combinations,
            points=_looked_up([grade.points for grade in self.grades], rows),
            statuses=_looked_up([grade.status for grade in self.grades], rows),
            cuts=_looked_up([grade.is_cut for grade in self.grades], rows),
            woven=_looked_up([grade.is_woven for grade in self.grades], rows),
        )


_NO_TEXT: Final = -2
"""Pads rows that have fewer texts than others."""
_Value = TypeVar("_Value")


def _looked_up(values: Sequence[_Value], rows: Iterable[Iterable[int]]) -> tuple[tuple[_Value | None, ...], ...]:
    """Replace indices with values; index -1 yields None, which means a missing text."""
    known: list[_Value | None] = [*values, None]
    once: dict[tuple[_Value | None, ...], tuple[_Value | None, ...]] = {}
    found = (tuple([known[number] for number in row]) for row in rows)
    return tuple([once.setdefault(row, row) for row in found])


def table_rows(run: Run, table: TextTable) -> Iterator[TableRow]:
    """Yield the rows of a run's table: imported rows, or all rows that are planned or found in the journal."""
    if run.is_imported:
        yield from _rows_outside(run, table, [])
        return
    now, before = counted_cells(run)
    earlier: dict[RowKey, PlannedCell] = {}
    """By row, the cell with the most combinations among earlier experiments."""
    for cell in before:
        for key in _keys(cell):
            if key not in earlier or len(earlier[key].combinations) < len(cell.combinations):
                earlier[key] = cell

    def row(cell: PlannedCell, grader: str, drawn: Iterable[Combination], unnamed: int) -> TableRow:
        own = tuple(drawn)
        numbers = table.numbers(cell.student, grader, own, cell.numbers)
        return TableRow(cell.student, grader, cell.label, cell.k, numbers, table.grades, own, unnamed)

    for cell in now:
        own = {c.id for c in cell.combinations}
        for key in _keys(cell):
            # Combinations of an earlier experiment also count if they have as many texts as the current one plans.
            drawn = earlier[key].combinations if key in earlier else ()
            is_written = table.places(cell.student, drawn, cell.numbers) >= 0
            more = [c for c, texts in zip(drawn, is_written, strict=True) if c.id not in own and texts.all()]
            yield row(cell, key[1], (*cell.combinations, *more), len(more))
    named = {key for cell in now for key in _keys(cell)}
    for key, cell in earlier.items():
        is_written = table.places(cell.student, cell.combinations, cell.numbers) >= 0
        held = [c for c, texts in zip(cell.combinations, is_written, strict=True) if texts.any()]
        if key not in named and held:
            yield row(cell, key[1], held, len(held))
    yield from _rows_outside(run, table, [*run.cells, *run.earlier_cells])


def _keys(cell: PlannedCell) -> list[RowKey]:
    return [(cell.student, grader, cell.label, cell.k) for grader in cell.graders]


def _rows_outside(run: Run, table: TextTable, planned: Sequence[PlannedCell]) -> Iterator[TableRow]:
    """Yield rows of graded texts that no known experiment plans and that belong to no data set.

    Except in imported runs, a row contains only combinations that the grader voted on or did not need to vote on.
    """
    writing = {pair for e in (run.experiment, *run.earlier) for pair in writers_and_graders(e)}
    for student, grader in table.pairs:
        if run.grader(grader).is_code_alone or (student, grader) in writing:
            continue
        cells = [cell for cell in planned if cell.student == student and grader in cell.graders]
        outside = table.outside(student, grader, (c.id for cell in cells for c in cell.combinations))
        with run.read() as journal:
            known = journal.combinations_of(outside)
        for k in sorted({combination.k for combination in known.values()}):
            own = {c: numbers for c, numbers in outside.items() if known[c].k == k}
            if not run.is_imported:
                own = _graded(own, table.grades, is_known=grader in run.known_graders)
            if own:
                widest = max(map(len, own.values()))
                rows = [[*numbers, *[_NO_TEXT] * (widest - len(numbers))] for numbers in own.values()]
                setting, unnamed = (IMPORTED, 0) if run.is_imported else (NOT_IN_FILE, len(own))
                matrix, drawn = np.array(rows, np.int32), tuple(known[c] for c in own)
                yield TableRow(student, grader, setting, k, matrix, table.grades, drawn, unnamed)


def _graded(
    by_combination: Mapping[str, list[int]], grades: Sequence[TextGrade], *, is_known: bool
) -> dict[str, list[int]]:
    """Return the combinations that a grader voted on or did not need to vote on; none if it voted on no text at all."""
    texts = {c: [grades[number] for number in numbers] for c, numbers in by_combination.items()}
    voted = {c for c, own in texts.items() if any(grade.votes for grade in own)}
    if not voted:
        return {}
    wanted = voted.union(c for c, own in texts.items() if all(grade.earns_nothing for grade in own))
    # Resampled intervals depend on the order. For a grader in no experiment, combinations with votes come first.
    ordered = by_combination if is_known else sorted(by_combination, key=lambda c: c not in voted)
    return {c: by_combination[c] for c in ordered if c in wanted}


def unnamed_notes(rows: Iterable[TableRow]) -> list[str]:
    """Describe journal data outside the current experiment, in one line for each student and grader."""
    whole: dict[tuple[str, str], list[str]] = defaultdict(list)
    partly: dict[tuple[str, str], list[str]] = defaultdict(list)
    for row in rows:
        place = f"{row.setting}, k = {row.k}"
        if row.unnamed and row.unnamed == len(row.combinations):
            whole[row.student, row.grader].append(place)
        elif row.unnamed:
            partly[row.student, row.grader].append(f"{row.unnamed} of {len(row.combinations)} ({place})")
    start = "the experiment file does not include"
    return [
        *(f"{start} {s} under {g}; the run contains {'; '.join(own)}" for (s, g), own in whole.items()),
        *(
            f"{start} all combinations of {s} under {g}; the rows also count {', '.join(own)}"
            for (s, g), own in partly.items()
        ),
    ]


@dataclass(frozen=True, slots=True)
class ScoredCells:
    """The scores of a run, with the cells and rows from which they are computed."""

    scores: list[CellScore]
    cells: list[Cell]
    rows: Sequence[TableRow]


def run_scores(run: Run | str, *, rules: str | None = None, by_sets: bool = False) -> list[CellScore]:
    """Compute the scores of a run, one for each student, grader, setting, k and metric.

    The run's own rules apply unless `rules` is given. With `by_sets`, the cells on train skills are repeated in two
    parts: reserved skill sets, and skill sets that data sets may contain.
    """
    return score_run(opened(run), rules, by_sets=by_sets).scores


def scored_cells(run: Run | str, *, rules: str | None = None) -> dict[CellKey, Cell]:
    """Return the cells of a run's table by key, with the points of their texts."""
    return largest_cells(score_run(opened(run), rules).cells)


def score_run(run: Run, rules: str | None, *, by_sets: bool = False) -> ScoredCells:
    """Score every row of a run; omit cells that an early stop skipped, unless some of their texts are scored."""
    chosen = run.rules(rules)
    rows = list(table_rows(run, text_table(run, chosen)))
    lineages = lineages_in(run, rows)
    pairs = {student: _pairs_seen(lineage) for student, lineage in lineages.items()}
    # If graders give outcomes, texts have no points; `safety.py` counts their cells.
    metrics = () if run.has_outcomes else METRICS
    scores, cells = list[CellScore](), list[Cell]()
    for row in rows:
        whole = row.cell(run.name)
        cells.append(whole)
        parts = {"all": whole}
        reserved = run.experiment.reserved if by_sets else 0.0
        if reserved and row.k >= 2 and label_parts(row.setting).setting == "train":
            parts["reserved"] = whole.only(lambda c, share=reserved: is_reserved(c.skills, share))  # type: ignore[misc]
            parts["seen"] = whole.only(lambda c, share=reserved: not is_reserved(c.skills, share))  # type: ignore[misc]
        for sets, cell in parts.items():
            trained = seen = None
            if row.student in lineages:
                lineage, own_pairs = lineages[row.student], pairs[row.student]
                trained = sum(c.id in lineage.combinations for c in cell.combinations)
                is_elsewhere = bool(_partitions_elsewhere(run, lineage, row.setting))
                seen = _count_with(own_pairs, cell) if is_elsewhere and own_pairs is not None else None
            for metric in metrics:
                scores.append(replace(score_of(cell, metric, run), sets=sets, trained_on=trained, seen_pairs=seen))
    skipped = {cell[1:] for cell in skipped_cells(run.experiment, scores)}
    kept = [s for s in scores if (s.student, s.setting, s.k) not in skipped or s.complete]
    keys = {(s.student, s.grader, s.setting, s.k) for s in kept}
    return ScoredCells(kept, [c for c in cells if run.has_outcomes or c.key[1:] in keys], rows)


def score_of(cell: Cell, metric: str, run: Run) -> CellScore:
    """Compute one metric of a cell, and add facts about the run."""
    return CellScore(**cell_facts(cell.key, run), metric=metric, written=cell.written, **asdict(cell.scores[metric]))


def cell_facts(key: CellKey, run: Run) -> dict[str, Any]:
    """Return the fields that identify a cell in output rows: the parts of its key, and facts about its run."""
    name, student, grader, setting, k = key
    _, catalog, partition = label_parts(setting)
    return {
        "run": name,
        "student": student,
        "grader": grader,
        "catalog": catalog or run.fact("catalog"),
        "partition": partition or (None if catalog else run.fact("partition")),
        "prompts": run.fact("prompts"),
        "seed": run.seed,
        "setting": setting,
        "k": k,
    }


def lineages_in(run: Run, rows: Iterable[TableRow] | Iterable[CellKey]) -> dict[str, Lineage]:
    """Return the lineages of the tuned students in the given rows; each lineage is read only once."""
    students = dict.fromkeys(row.student for row in rows)
    datasets = {facts.hash: facts for facts in run_datasets(run)}
    known = run.remember("lineages", lambda: student_lineages(run, run.known_experiment, students, datasets))
    return {student: known[student] for student in students if student in known}


_SkillPairs = frozenset[frozenset[str]]


def _pairs_of(skills: Iterable[str]) -> Iterator[frozenset[str]]:
    return map(frozenset, combinations(sorted(skills), 2))


def _pairs_seen(lineage: Lineage) -> _SkillPairs | None:
    """Return the pairs of skills that occur together in training data; None if unknown."""
    if lineage.skill_sets is None:
        return None
    return frozenset(pair for skills in lineage.skill_sets for pair in _pairs_of(skills))


def _count_with(pairs: _SkillPairs, cell: Cell) -> int:
    """Count the combinations of a cell that contain at least one of the given pairs of skills."""
    return sum(not pairs.isdisjoint(_pairs_of(c.skills)) for c in cell.combinations)


def _partitions_elsewhere(run: Run, lineage: Lineage, label: str) -> frozenset[str]:
    """Return the partitions of a student's training data, except the partition of the cells with this label."""
    if run.is_imported or not lineage.partitions:
        return frozenset()
    place = place_of(label_parts(label), run.experiment, run.catalog)
    names = {label_parts(label).catalog or run.experiment.catalog, place.catalog.name}
    return other_partitions(lineage, place.partition.name, names)


def partition_notes(run: Run, lineages: Mapping[str, Lineage], cells: Iterable[Cell]) -> list[str]:
    """Return a line for each student trained under another partition, counting combinations with pairs that it saw."""
    notes = []
    cells = list(cells)
    for student, lineage in lineages.items():
        own = [cell for cell in cells if cell.key.student == student]
        elsewhere = {label: _partitions_elsewhere(run, lineage, label) for label in {c.key.setting for c in own}}
        names = ", ".join(sorted(frozenset[str]().union(*elsewhere.values())))
        if not names:
            continue
        pairs = _pairs_seen(lineage)
        seen = "the skills that it saw together are unknown"
        if pairs is not None:
            counts = dict.fromkeys(
                f"{_count_with(pairs, cell)} of {len(cell.combinations)} ({cell.key.setting}, k = {cell.key.k})"
                for cell in own
                if elsewhere[cell.key.setting] and _count_with(pairs, cell)
            )
            seen = f"combinations with two skills that it saw together: {', '.join(counts) or 'none'}"
        notes.append(f"{student} was trained under the partition {names}; {seen}")
    return notes


def students_without_scores(run: Run, scores: Sequence[CellScore]) -> list[str]:
    """List students, except writers of data sets, that are in no table because they have no graded texts."""
    writers = {name for step in run.experiment.steps if step.stage == "dataset" for name in step.student_names}
    with run.read() as journal:
        return sorted(journal.students() - {score.student for score in scores} - writers)


SkippedCell = tuple[str, str, str, int]
"""The step, the student, the setting and k."""


def skipped_cells(experiment: Experiment, scores: Sequence[CellScore]) -> set[SkippedCell]:
    """Find cells that an early stop omits because full marks at a smaller k are below its threshold for all graders."""
    values = {
        (s.student, s.grader, s.setting, s.k): s.value
        for s in scores
        if s.metric == FULL_MARKS and s.sets == "all" and s.value is not None
    }
    skipped: set[SkippedCell] = set()
    for step in experiment.steps:
        if not isinstance(step, EvaluateStep) or step.stop_below is None:
            continue
        for student in step.student_names:
            for setting in dict.fromkeys(cell.label for cell in step.undrawn_cells(experiment.steps)):
                is_below = False
                for k in sorted(set(step.k)):
                    if is_below:
                        skipped.add((step.name, student, setting, k))
                    found = [values.get((student, grader, setting, k)) for grader in step.graders]
                    is_below |= bool(found) and all(value is not None and value < step.stop_below for value in found)
    return skipped


EQUAL: Final = 0.05
"""The largest relative difference at which numbers of conversations or steps still count as equal."""


@dataclass(frozen=True, slots=True)
class ComparableStudent:
    """A student, with the properties that determine which other students it can be compared with."""

    run: str
    student: str
    spec: str
    """The student's model string in the experiment."""
    prompts: str
    """The student's prompt set; students with different prompts are not compared."""
    lineage: Lineage | None
    """The student's training; None for a base."""
    partition: str
    seed: int
    """The seed of the student's training or, for a base, the seed of the run."""
    decoding: str = ""
    """The student's sampling settings; students with different settings are not compared."""
    catalog: str = ""
    """The hash of the run's catalog."""
    graders: Mapping[str, str] = field(default_factory=dict)
    """The graders of the run by name, each with a hash of everything that determines its points."""
    family: str | None = None
    """The student's name in the experiment file, if the file repeats it over seeds, partitions or a matrix."""

    @property
    def base(self) -> str:
        """Return the model from which tuning started, or the student itself if it was not tuned."""
        return self.lineage.base if self.lineage else self.spec

    @property
    def training(self) -> Lineage:
        """Return the student's lineage; for a base, return an empty lineage."""
        return self.lineage or _UNTUNED

    @property
    def k(self) -> tuple[int, ...]:
        """Return the numbers of skills in the student's training texts; empty for a base."""
        return self.training.k

    @property
    def asks_one(self) -> bool:
        """Whether each training request asked for only one skill, however many skills the texts show."""
        return self.training.requests == "one"

    @property
    def is_composed(self) -> bool:
        """Whether the student was trained on requests for two or more skills."""
        return max(self.k, default=0) >= 2 and not self.asks_one


_UNTUNED: Final = Lineage(
    base="", k=(), seed=None, partition=None, datasets=(), combinations=frozenset(), skill_sets=None, rows=None,
    steps=None, is_adapter=False, identity="",
)  # fmt: skip


def families(students: Sequence[ComparableStudent]) -> dict[tuple[str, str, str, str], list[ComparableStudent]]:
    """Group the students of one run by base model, prompt set and sampling settings."""
    groups: dict[tuple[str, str, str, str], list[ComparableStudent]] = {}
    for student in students:
        shared = (student.run, student.base, student.prompts, student.decoding)
        groups.setdefault(shared, []).append(student)
    return groups


def base_of(family: Sequence[ComparableStudent]) -> ComparableStudent | None:
    """Return the student of a family that was not tuned."""
    return next((c for c in family if c.lineage is None), None)


def practice_of(second: ComparableStudent, family: Sequence[ComparableStudent]) -> ComparableStudent | None:
    """Return the single-skill student with as many texts and steps as a composed one; None if there is none.

    The best control was trained on the same texts, with requests that ask for only one skill.
    """
    equal = [
        c
        for c in family
        if second.is_composed
        and (c.asks_one or c.k == (1,))
        and are_close(c.training.rows, second.training.rows)
        and are_close(c.training.steps, second.training.steps)
    ]
    return max(
        equal,
        key=lambda c: (c.asks_one, c.seed == second.seed, c.training.rows or 0, c.training.steps or 0),
        default=None,
    )


def practice_between(students: Sequence[ComparableStudent], first: str, second: str) -> str | None:
    """If the first student is the second's base, return the single-skill student that matches the second."""
    for family in families(students).values():
        base, tuned = base_of(family), next((c for c in family if c.student == second), None)
        if base is not None and base.student == first and tuned is not None:
            practice = practice_of(tuned, family)
            return practice.student if practice else None
    return None


def are_close(number: int | None, other: int | None) -> bool:
    """Whether two numbers of conversations or steps count as equal; unknown numbers never do."""
    return number is not None and other is not None and abs(number - other) <= EQUAL * max(number, other)


def student_specs(experiment: Experiment) -> dict[str, str]:
    """Return the model string of every student or, if a train step makes it, a description of the step."""
    trained = {n: s if s.startswith(JOINED) else f"made by step {n}" for n, s in made_students(experiment).items()}
    return {name: s.model for name, s in experiment.students.items()} | trained


def comparable_in(run: Run, cells: Iterable[CellKey]) -> list[ComparableStudent]:
    """Return the students of the given cells for comparisons; empty if the run's graders give outcomes."""
    cells = list(cells)
    students = [name for name in dict.fromkeys(key.student for key in cells) if has_settings(run, name)]
    return [] if run.has_outcomes else comparable_students(run, run.known_experiment, students, lineages_in(run, cells))


def comparable_students(
    run: Run, experiment: Experiment, students: Iterable[str], lineages: Mapping[str, Lineage]
) -> list[ComparableStudent]:
    """Return students of a run for comparisons, each with its prompts, sampling settings, training, seed and partition.

    A student without a lineage is a base. Joined students are omitted.
    """
    specs = student_specs(experiment)
    graders: dict[str, str] = {}
    if not run.is_imported:
        # Hash each grader's settings, prompts and rules, but not speed and waiting times, which do not affect points.
        own_prompts = run.fact("prompts_hash") or experiment.prompts
        if own_prompts in shipped_prompt_sets():
            own_prompts = load_prompts(own_prompts).content_hash()
        rules = [experiment.rules, experiment.answer.model_dump(mode="json"), own_prompts]
        for name, grader in experiment.graders.items():
            document = grader.model_dump(mode="json", exclude={"concurrency", "timeout"})
            graders[name] = short_id("grader", document, rules)
    comparable = []
    for student in students:
        prompts = decoding = ""
        if specs:
            settings = settings_for(experiment, student)
            if settings.joined:
                continue
            prompts = settings.prompts or experiment.prompts
            decoding = f"temperature {settings.temperature}, top_p {settings.top_p}, {settings.max_tokens} tokens"
            decoding = ", ".join(filter(None, [decoding, settings.additions]))
        lineage, variant = lineages.get(student), experiment.variants.get(student)
        seeds = (lineage.seed if lineage else None, variant.seed if variant else None, experiment.seed)
        partition = (lineage and lineage.partition) or (variant and variant.partition) or experiment.partition
        comparable.append(
            ComparableStudent(
                run=run.name,
                student=student,
                spec=specs.get(student, student),
                prompts=prompts,
                lineage=lineage,
                partition=partition or "default",
                seed=next(seed for seed in seeds if seed is not None),
                decoding=decoding,
                catalog=run.fact("catalog_hash") or run.fact("catalog") or "",
                graders=graders,
                family=variant.family if variant else None,
            )
        )
    return comparable
