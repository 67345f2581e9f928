"""Full-marks scores of single texts, corrected for the errors of the grader, beside the raw ones."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal

from skillmix.scores.grader_card.items import TextUnderGraders
from skillmix.scores.grader_card.units import Unit, as_units, criterion_units, full_marks_units, of_labelled_groups
from skillmix.scores.graders import KINDS
from skillmix.scores.statistics.against_truth import UNKNOWN, Measure, rates_of
from skillmix.scores.statistics.effective_counts import Counts, effective_counts
from skillmix.scores.statistics.prevalence import (
    Corrected,
    Decisions,
    KindErrors,
    LabelledPool,
    corrected_by_criteria,
    corrected_by_error_rates,
    corrected_by_labels,
)

FEWEST_LABELS: Final = 10
"""With fewer labels of an outcome in a cell, the errors at the same k in all cells are used instead."""
Method = Literal["truth", "own labels", "criteria", "error rates"]
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
    """truth: every text has a label; own labels: a sample of these texts; criteria and error rates: other texts."""
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
    criteria = _Criteria.of(criterion_units(decided, grader, truth))
    scores = []
    for key, own in sorted(cells.items()):
        open_units = [by_item[id(item)] for item in own if id(item) in by_item]
        scores.append(_score(key, own, open_units, pools[key[3]], grader, criteria))
    return scores


@dataclass(frozen=True, slots=True)
class _Criteria:
    """The grader's decisions on the criteria of each text, and how it errs on each kind of criterion."""

    decisions: Mapping[int, Decisions]
    """By the identity of the text, the number of points given and denied for each kind."""
    rates: Mapping[int, tuple[KindErrors, ...]]
    """By k, the error rates of each kind."""

    @classmethod
    def of(cls, units: Sequence[Unit]) -> "_Criteria":
        decisions: dict[int, list[list[int]]] = defaultdict(lambda: [[0, 0] for _ in KINDS])
        labelled: dict[tuple[int, str | None, bool], list[Unit]] = defaultdict(list)
        for unit in units:
            decisions[id(unit.item)][KINDS.index(unit.kind)][not unit.given] += 1
            if unit.earned is not None:
                labelled[unit.item.k, unit.kind, unit.earned].append(unit)
        rates = {
            k: tuple(KindErrors(*(_given(labelled[k, kind, earned]) for earned in (True, False))) for kind in KINDS)
            for k in {unit.item.k for unit in units}
        }
        return cls({text: tuple((g, d) for g, d in found) for text, found in decisions.items()}, rates)

    def correct(self, is_open: Counts, items: Sequence[TextUnderGraders]) -> Corrected | None:
        """The corrected share of texts that code leaves open; None if some kind of criterion lacks labels."""
        texts = [self.decisions.get(id(item), ((0, 0),) * len(KINDS)) for item in items]
        rates = self.rates.get(items[0].k, ())
        used = [kind for kind in range(len(rates)) if any(text[kind] != (0, 0) for text in texts)]
        if not used or not all(rates[kind].is_known for kind in used):
            return None
        chosen = [tuple(text[kind] for kind in used) for text in texts]
        return corrected_by_criteria(is_open, chosen, [i.combination for i in items], [rates[kind] for kind in used])


def _given(units: Sequence[Unit]) -> Counts:
    return effective_counts(
        [unit.given for unit in units], [unit.item.combination for unit in units], [unit.weight for unit in units]
    )


def _score(
    key: tuple[str, str, str, int],
    items: Sequence[TextUnderGraders],
    own: Sequence[Unit],
    pool: Sequence[Unit],
    grader: str,
    criteria: _Criteria,
) -> CorrectedScore:
    raw = _counts([item.full_marks(grader) is True for item in items], items)
    labelled = sum(unit.earned is not None for unit in own)
    method, corrected = _correct(items, own, pool, criteria)
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
    items: Sequence[TextUnderGraders], own: Sequence[Unit], pool: Sequence[Unit], criteria: _Criteria
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
    by_criteria = criteria.correct(is_open, [unit.item for unit in own])
    if by_criteria is not None:
        return (None if by_criteria.problem else "criteria"), by_criteria
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
