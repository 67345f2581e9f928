"""Full-marks scores of single texts, corrected for the errors of the grader, beside the raw ones."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal

from skillmix.scores.grader_card.items import TextUnderGraders
from skillmix.scores.grader_card.units import Unit, as_units, full_marks_units, of_labelled_groups
from skillmix.scores.statistics.against_truth import UNKNOWN, Measure, rates_of
from skillmix.scores.statistics.effective_counts import Counts, effective_counts
from skillmix.scores.statistics.prevalence import (
    Corrected,
    LabelledPool,
    corrected_by_error_rates,
    corrected_by_labels,
)

FEWEST_LABELS: Final = 10
"""With fewer labels of an outcome in a cell, the errors at the same k in all cells are used instead."""
Method = Literal["truth", "own labels", "error rates"]
NO_LABELS: Final = "no text of this k has a label"


@dataclass(frozen=True, slots=True)
class CorrectedScore:
    """The share of single texts with full marks: as the grader says, and corrected."""

    run: str
    student: str
    setting: str
    k: int
    texts: int
    """Texts whose full marks the grader decided."""
    labelled: int
    """Those of them with a label for full marks; texts that code denies full marks need none."""
    raw: Measure
    corrected: Measure
    method: Method | None
    """truth: every text has a label; own labels: a sample of these texts; error rates: texts of the same k."""
    problem: str | None
    """Why there is no corrected score."""


def corrected_scores(items: Sequence[TextUnderGraders], grader: str, truth: str | None) -> list[CorrectedScore]:
    """The scores of each run, student, setting and k under a grader."""
    decided = [item for item in items if item.full_marks(grader) is not None]
    cells: dict[tuple[str, str, str, int], list[TextUnderGraders]] = defaultdict(list)
    for item in decided:
        for setting in item.settings:
            cells[item.run, item.student, setting, item.k].append(item)
    units = full_marks_units(decided, grader, truth)
    by_item = {id(unit.item): unit for unit in units}
    pools: dict[int, list[Unit]] = defaultdict(list)
    for unit in of_labelled_groups(units):
        pools[unit.item.k].append(unit)
    scores = []
    for key, own in sorted(cells.items()):
        open_units = [by_item[id(item)] for item in own if id(item) in by_item]
        scores.append(_score(key, own, open_units, pools[key[3]], grader))
    return scores


def _score(
    key: tuple[str, str, str, int],
    items: Sequence[TextUnderGraders],
    own: Sequence[Unit],
    pool: Sequence[Unit],
    grader: str,
) -> CorrectedScore:
    raw = _counts([item.full_marks(grader) is True for item in items], items)
    labelled = sum(unit.earned is not None for unit in own)
    method, corrected = _correct(items, own, pool)
    return CorrectedScore(
        *key,
        texts=len(items),
        labelled=labelled,
        raw=Measure(raw.share, *raw.wilson),
        corrected=corrected.share,
        method=method,
        problem=corrected.problem,
    )


def _correct(
    items: Sequence[TextUnderGraders], own: Sequence[Unit], pool: Sequence[Unit]
) -> tuple[Method | None, Corrected]:
    if all(unit.earned is not None for unit in own):
        earned = {id(unit.item) for unit in own if unit.earned}
        counts = _counts([id(item) in earned for item in items], items)
        return "truth", Corrected(Measure(counts.share, *counts.wilson))
    left_open = {id(unit.item) for unit in own}
    is_open = _counts([id(item) in left_open for item in items], items)
    if _has_enough_labels(own):
        return "own labels", corrected_by_labels(is_open, rates_of(as_units(own)))
    if not pool:
        return None, Corrected(UNKNOWN, NO_LABELS)
    corrected = corrected_by_error_rates(is_open, rates_of(as_units(own)).given, _pool(own, pool))
    return (None if corrected.problem else "error rates"), corrected


def _has_enough_labels(units: Sequence[Unit]) -> bool:
    """Whether each outcome of the grader has ten labels, or a label for each of its texts."""
    for given in (True, False):
        same = [unit for unit in units if unit.given == given]
        labelled = sum(unit.earned is not None for unit in same)
        if labelled < min(FEWEST_LABELS, len(same)):
            return False
    return True


def _pool(own: Sequence[Unit], pool: Sequence[Unit]) -> LabelledPool:
    here = {id(unit) for unit in own}
    others = [unit for unit in pool if id(unit) not in here]
    rates = rates_of(as_units(pool))
    own_share = 1 - len(others) / len(pool)
    return LabelledPool(rates_of(as_units(others)).given, own_share, rates.if_given, rates.if_denied)


def _counts(values: Sequence[bool], items: Sequence[TextUnderGraders]) -> Counts:
    return effective_counts(values, [item.combination for item in items])
