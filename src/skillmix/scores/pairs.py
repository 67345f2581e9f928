"""`skillmix compare`: two students of a run, side by side on the combinations that both have complete.

Any two students can be compared; no lineage is necessary. `compare_students` reads a run and adds the texts on which
they differ.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import chain
from typing import Final

from skillmix.catalog.combinations import Combination
from skillmix.errors import UserError
from skillmix.grading.points import FULL_MARKS, METRICS, Ballot, text_score
from skillmix.render import markdown_table, name_hint, p_value, share, signed_with_interval, whole
from skillmix.runs.run import Run, opened
from skillmix.runs.students import has_settings, settings_for, student_lineages
from skillmix.runs.texts import reasons_for, texts_with_ballots, verdict_on
from skillmix.scores.cells import Cell, CellKey
from skillmix.scores.compare import PairRow, compare_cells, practice_between
from skillmix.scores.scoring import comparable_in, scored_cells
from skillmix.scores.wording import explanations


@dataclass(frozen=True, slots=True)
class BestText:
    """The best text of a student for one combination."""

    student: str
    generation: int
    text: str
    value: float
    points: dict[str, bool | None]
    """By criterion; None is undecided."""
    evidence: dict[str, str] = field(default_factory=dict)
    """The words that show a skill, where code found them."""
    reasons: dict[str, str] = field(default_factory=dict)
    """Why code denied a point, by criterion."""
    cut: bool | None = None
    """Whether the reply ended at the token limit; None if unknown."""


@dataclass(frozen=True, slots=True)
class DifferingTexts:
    """A combination on which two students differ, with the best text of each."""

    grader: str
    setting: str
    k: int
    combination: str
    skills: tuple[str, ...]
    topic: str
    first: BestText
    second: BestText


@dataclass(frozen=True, slots=True)
class StudentComparison:
    """Two students of a run: the second minus the first."""

    run: str
    first: str
    second: str
    metric: str
    rows: tuple[PairRow, ...]
    texts: tuple[DifferingTexts, ...]
    """The combinations on which the students differ, the largest differences first."""
    notes: tuple[str, ...]
    """What else differs between the students, such as their prompts, and what they were trained on."""

    @property
    def differing(self) -> int:
        """The number of combinations on which the students differ, each counted in every row that has it."""
        return sum(row.wins + row.losses for row in self.rows)

    def __str__(self) -> str:
        return comparison_table(self, wide=True)


_NOTE: Final = (
    "Difference: {second} minus {first} in {metric}, best of the generations, on the combinations that both have "
    "complete, with its 95 % interval. p: permutation test within combinations, corrected by Holm over the rows of a "
    "grader in which 6 combinations or more differ. Verdict: a gain or a loss if the corrected p is below .05. Wins, "
    "ties and losses of {second} count combinations."
)

STILL_NEEDED: Final = "Still needed: further combinations for 80 % power at this difference."


def comparison_table(comparison: StudentComparison, *, wide: bool = False) -> str:
    """One row for each grader, setting and k, as Markdown; unless wide, only what one reads first."""
    rows = [
        {
            "grader": row.grader,
            "setting": row.setting,
            "k": str(row.k),
            comparison.first: share(row.first_value),
            comparison.second: share(row.second_value),
            "difference": signed_with_interval(row.difference, row.low, row.high),
            "p, corrected": p_value(row.p_corrected),
            "verdict": row.verdict if wide else row.verdict.removesuffix(" combinations"),
            "wins": str(row.wins),
            "ties": str(row.ties),
            "losses": str(row.losses),
            "combinations": str(row.combinations),
            "still needed": "–" if row.still_needed is None else whole(row.still_needed),
        }
        for row in comparison.rows
    ]
    hidden = set() if wide else {"combinations", "ties", "still needed", *_constant_names(comparison)}
    header = [name for name in rows[0] if name not in hidden]
    right = frozenset(i for i, name in enumerate(header) if name not in ("grader", "setting", "difference", "verdict"))
    return markdown_table(header, [[row[name] for name in header] for row in rows], right=right)


def _constant_names(comparison: StudentComparison) -> dict[str, str]:
    """The grader and the setting, where all rows have the same."""
    values = {name: {getattr(row, name) for row in comparison.rows} for name in ("grader", "setting")}
    return {name: next(iter(known)) for name, known in values.items() if len(known) == 1}


def comparison_note(comparison: StudentComparison) -> str:
    """The explanation of the table, then what else differs between the students."""
    label = METRICS[comparison.metric].label
    note = _NOTE.format(first=comparison.first, second=comparison.second, metric=label)
    return "\n".join([note, *comparison.notes])


def comparison_title(comparison: StudentComparison) -> str:
    """The two students and the metric, with the grader and the setting if all rows share them."""
    label = METRICS[comparison.metric].label
    shared = [f"{name} {value}" for name, value in _constant_names(comparison).items()]
    title = f"{label[0].upper()}{label[1:]}: {comparison.second} against {comparison.first}"
    return title + (f" ({', '.join(shared)})" if shared else "")


def compare_students(
    run: Run | str,
    first: str,
    second: str,
    *,
    metric: str = FULL_MARKS,
    rules: str | None = None,
    texts: int | None = None,
) -> StudentComparison:
    """Compare two students of a run; an error if either is unknown or they share no complete combination.

    With `texts`, the comparison has the texts of so many combinations, and the others are not read.
    """
    run = opened(run)
    if metric not in METRICS:
        raise UserError(
            f"There is no metric {metric!r}.",
            hint=name_hint(metric, METRICS, otherwise=f"Choose {', '.join(METRICS)}."),
        )
    if run.has_outcomes:
        raise UserError(
            f"The graders of the run {run.name} name outcomes and give no points.",
            hint=f"`skillmix scores {run.name}` compares its students.",
        )
    cells = scored_cells(run, rules=rules)
    students = list(dict.fromkeys(key.student for key in cells))
    known = f"Students of {run.name}: {', '.join(students)}." if students else f"{run.name} has no graded texts yet."
    for name in (first, second):
        if name not in students:
            raise UserError(
                f"The run {run.name} has no graded student {name!r}.", hint=name_hint(name, students, otherwise=known)
            )
    if first == second:
        raise UserError(f"{first} would be compared with itself.", hint=f"Name two students. {known}")
    practice = practice_between(comparable_in(run, cells), first, second)
    rows = compare_cells(run.name, first, second, cells, metric=metric, practice=practice)
    if not rows:
        raise UserError(
            f"{first} and {second} share no combination that both have complete under one grader.",
            hint=f"{_complete_of(first, cells, metric)} {_complete_of(second, cells, metric)}",
        )
    shared = [
        (cells[CellKey(run.name, first, *where)], cells[CellKey(run.name, second, *where)])
        for where in ((row.grader, row.setting, row.k) for row in rows)
    ]
    return StudentComparison(
        run=run.name,
        first=first,
        second=second,
        metric=metric,
        rows=tuple(rows),
        texts=tuple(_differing_texts(run, shared, metric, rules, texts)),
        notes=tuple([*explanations(second, rows), *_setting_notes(run, first, second), *_training_notes(run, shared)]),
    )


def _complete_of(student: str, cells: Mapping[CellKey, Cell], metric: str) -> str:
    """A sentence about the complete combinations of a student."""
    parts = [
        f"{len(cell.best(metric))} ({key.grader}, {key.setting}, k = {key.k})"
        for key, cell in cells.items()
        if key.student == student and cell.best(metric)
    ]
    return f"{student} has complete combinations: {', '.join(parts) or 'none'}."


def _differing_texts(
    run: Run, shared: Iterable[tuple[Cell, Cell]], metric: str, rules: str | None, most: int | None
) -> list[DifferingTexts]:
    """The combinations on which two cells differ, the largest differences first, with the best texts of both."""
    differing: list[tuple[float, Combination, list[tuple[CellKey, float]]]] = []
    for pair in shared:
        best = [cell.best(metric) for cell in pair]
        for own in pair[1].combinations:
            values = [by_id.get(own.id) for by_id in best]
            if None not in values and values[0] != values[1]:
                sides = [(cell.key, by_id[own.id]) for cell, by_id in zip(pair, best, strict=True)]
                differing.append((abs(sides[1][1] - sides[0][1]), own, sides))
    chosen = sorted(differing, key=lambda one: -one[0])[:most]
    ballots: dict[tuple[str, str, str], list[Ballot]] = defaultdict(list)
    if chosen:
        with run.read() as journal:
            for found in texts_with_ballots(run, journal, combinations={own.id for _, own, _ in chosen}):
                for ballot in found.ballots:
                    ballots[ballot.text.student, ballot.grader, ballot.text.combination.id].append(ballot)
    return [
        DifferingTexts(
            key.grader,
            key.setting,
            key.k,
            own.id,
            own.skills,
            own.topic,
            *(_best_text(run, ballots[k.student, k.grader, own.id], value, metric, rules) for k, value in sides),
        )
        for _, own, sides in chosen
        for key in [sides[1][0]]
    ]


def _best_text(run: Run, ballots: Iterable[Ballot], value: float, metric: str, rules: str | None) -> BestText:
    """The first text of a combination that has the value of its best text."""
    chosen = run.rules(rules)
    decided = ((ballot, ballot.points(chosen, run.phrases)) for ballot in ballots)
    ballot, points = next((b, points) for b, points in decided if text_score(points, metric) == value)
    names = [criterion.name for criterion in ballot.rubric(run.phrases).criteria]
    verdict = verdict_on(run, ballot)
    quoted = {name: verdict.quote(span) for name, span in verdict.evidence.items()} if verdict else {}
    return BestText(
        student=ballot.text.student,
        generation=ballot.text.generation,
        text=ballot.text.answer.text,
        value=value,
        points=dict(zip(names, points, strict=True)),
        evidence={name: words for name, words in quoted.items() if words},
        reasons=reasons_for(run, ballot, points, chosen, verdict),
        cut=ballot.text.is_cut,
    )


def _setting_notes(run: Run, first: str, second: str) -> list[str]:
    """A sentence about prompts and decoding that differ, because the difference may come from them."""
    if run.is_imported or not (has_settings(run, first) and has_settings(run, second)):
        return []
    settings = [settings_for(run.known_experiment, name) for name in (first, second)]
    facts = [
        {
            "prompts": one.prompts or run.experiment.prompts,
            "temperature": one.temperature,
            "max_tokens": one.max_tokens,
            "top_p": one.top_p,
            "system": one.system,
            "extra": one.extra or None,
        }
        for one in settings
    ]
    different = [f"{key} ({facts[0][key]} and {facts[1][key]})" for key in facts[0] if facts[0][key] != facts[1][key]]
    return [f"{first} and {second} also differ in {', '.join(different)}."] if different else []


def _training_notes(run: Run, shared: Iterable[tuple[Cell, Cell]]) -> list[str]:
    """A sentence for each student that was trained on combinations of the comparison."""
    compared: dict[str, set[str]] = defaultdict(set)
    for cell in chain.from_iterable(shared):
        compared[cell.key.student].update(c.id for c in cell.combinations)
    lineages = student_lineages(run, run.known_experiment, compared, {})
    return [
        f"{student} was trained on {len(ids & lineages[student].combinations)} of the {len(ids)} combinations."
        for student, ids in compared.items()
        if student in lineages and ids & lineages[student].combinations
    ]
