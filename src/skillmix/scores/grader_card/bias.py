"""Where a grader gives more or fewer points than the truth: by student, length, position of the skill, and round."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final, Literal

from skillmix.scores.grader_card.families import family_of
from skillmix.scores.grader_card.units import Unit, as_units, grouped
from skillmix.scores.statistics.against_truth import UNKNOWN, Measure, difference_of_excess, truth_measures

BiasBy = Literal["all", "student", "family", "length", "position", "round"]
THIRDS: Final = ("short", "medium", "long")
OWN_FAMILY: Final = "own family"
OTHER_FAMILIES: Final = "other families"


@dataclass(frozen=True, slots=True)
class BiasRow:
    """How many more points a grader gives than the truth, in one group of criteria."""

    by: BiasBy
    group: str
    units: int
    """Criteria that the grader and the truth both decided."""
    excess: Measure
    """The share of points that the grader gives, minus the share that the truth gives."""
    agreement: Measure


@dataclass(frozen=True, slots=True)
class GraderBias:
    """The errors of a grader by group, and whether it favours students of its own family."""

    rows: tuple[BiasRow, ...]
    favours_own_family: Measure
    """The excess on students of its own family minus that on others; unknown if one of them has no label."""


def grader_bias(units: Sequence[Unit], rounds: Mapping[int, Sequence[Unit]], model: str | None) -> GraderBias:
    """The bias of a grader over its criteria; `rounds` has the same criteria as each round voted on them."""
    own, others = _families(units, family_of(model))
    rows = [
        _row("all", "all", units),
        *(_row("student", str(name), group) for name, group in sorted(grouped(units, _student).items(), key=str)),
        *([_row("family", OWN_FAMILY, own), _row("family", OTHER_FAMILIES, others)] if own and others else []),
        *(_row("length", name, group) for name, group in _by_length(units)),
        *_by_position(units),
        *_by_round(rounds),
    ]
    known = tuple(row for row in rows if row.units)
    return GraderBias(known, difference_of_excess(as_units(own), as_units(others)) if own and others else UNKNOWN)


def _student(unit: Unit) -> str:
    return unit.item.student


def _row(by: BiasBy, group: str, units: Iterable[Unit]) -> BiasRow:
    found = list(units)
    measures = truth_measures(as_units(found))
    labelled = sum(unit.earned is not None for unit in found)
    return BiasRow(by, group, labelled, measures.excess, measures.agreement)


def _families(units: Sequence[Unit], family: str | None) -> tuple[list[Unit], list[Unit]]:
    """Units on students of a family, and on students of other known families."""
    known = [(unit, family_of(unit.item.student_model)) for unit in units]
    own = [unit for unit, name in known if family is not None and name == family]
    return own, [unit for unit, name in known if family is not None and name not in (None, family)]


def _by_length(units: Sequence[Unit]) -> Iterator[tuple[str, list[Unit]]]:
    """Units of the short, the medium and the long third of the texts."""
    lengths = sorted({id(unit.item): unit.item.words for unit in units}.values())
    if not lengths or lengths[0] == lengths[-1]:
        return
    cuts = [-1, lengths[(len(lengths) - 1) // 3], lengths[2 * (len(lengths) - 1) // 3], lengths[-1]]
    for name, (above, most) in zip(THIRDS, pairwise(cuts), strict=True):
        own = [unit for unit in units if above < unit.item.words <= most]
        if own:
            shortest, longest = min(u.item.words for u in own), max(u.item.words for u in own)
            yield f"{name}, {shortest} to {longest} words", own


def _by_position(units: Sequence[Unit]) -> list[BiasRow]:
    """A row for each position of the skill in the prompt; none if every prompt has one skill."""
    skills = [unit for unit in units if unit.kind == "skill" and unit.item.k > 1]
    most = max((unit.item.k for unit in skills), default=0)
    return [
        _row("position", f"skill {index + 1}", [unit for unit in skills if unit.index == index])
        for index in range(most)
    ]


def _by_round(rounds: Mapping[int, Sequence[Unit]]) -> list[BiasRow]:
    """A row for each round; none if there is one round."""
    return [_row("round", f"round {number + 1}", own) for number, own in rounds.items()] if len(rounds) > 1 else []
