"""Simulated texts, raters and graders with known error rates, and how often intervals of cards hold the truth.

`python -m tests.scores.grader_card.simulated_graders [TRIALS]` prints the coverage of every measure over the grid.
"""

import sys
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from skillmix.calls import PEOPLE
from skillmix.scores.graders import (
    TextUnderGraders,
    corrected_scores,
    criterion_units,
    full_marks_units,
    with_people,
)
from skillmix.scores.statistics.against_truth import OUTSIDE, Measure, truth_measures

SIZES = (50, 200, 1000)
ERRORS = ((0.7, 0.95), (0.9, 0.9), (0.98, 0.8))
"""Sensitivity and specificity."""
SHARES = (0.05, 0.2, 0.5, 0.8, 0.95)
RATER_ERROR = 0.05


class World(NamedTuple):
    """What is true in a simulation."""

    share: float
    """Texts that earn full marks."""
    sensitivity: float
    specificity: float


Check = tuple[str, Measure, float]
"""The name of a measure, its estimate with an interval, and its true value."""
Simulation = Callable[[World, int, np.random.Generator], Iterator[Check]]


def item(number: int, points: Mapping[str, tuple[bool | None, ...]], *, student: str = "s") -> TextUnderGraders:
    """A text with one skill."""
    return TextUnderGraders(
        run="r",
        student=student,
        combination=f"c{number}",
        generation=0,
        skills=("metaphor",),
        words=20,
        points=points,
        settings=("all",),
        by_code=frozenset({3}),
    )


def decisions(
    world: World, n: int, generator: np.random.Generator
) -> tuple[np.ndarray[tuple[int], np.dtype[np.bool_]], np.ndarray[tuple[int], np.dtype[np.bool_]]]:
    """Whether each text earns the point, and whether the grader gives it."""
    earned = generator.random(n) < world.share
    rates = np.where(earned, world.sensitivity, 1 - world.specificity)
    return earned, generator.random(n) < rates


def values_of(world: World) -> dict[str, float]:
    """The true value of every measure."""
    share, sensitivity, specificity = world
    hits, false_alarms = share * sensitivity, (1 - share) * (1 - specificity)
    given = hits + false_alarms
    agreement = hits + (1 - share) * specificity
    chance = given * share + (1 - given) * (1 - share)
    mean = (given + share) / 2
    return {
        "earned": share,
        "agreement": agreement,
        "sensitivity": sensitivity,
        "specificity": specificity,
        "kappa": (agreement - chance) / (1 - chance),
        "alpha": 1 - (1 - agreement) / (2 * mean * (1 - mean)),
        "excess": given - share,
    }


def point(is_earned: bool) -> tuple[bool, bool, bool, bool]:
    """Points of a text with one skill whose other criteria are met."""
    return is_earned, True, True, True


def every_text_has_a_label(world: World, n: int, generator: np.random.Generator) -> Iterator[Check]:
    """A calibration set of n texts."""
    earned, given = decisions(world, n, generator)
    items = [
        item(i, {"judge": point(g), "labels": point(t)})
        for i, (t, g) in enumerate(zip(earned.tolist(), given.tolist(), strict=True))
    ]
    measures = truth_measures(full_marks_units(items, "judge", "labels"))
    for name, value in values_of(world).items():
        yield name, getattr(measures, name), value


def people_rate_a_sample(world: World, n: int, generator: np.random.Generator) -> Iterator[Check]:
    """Three people rate n texts of a run of two equal students, half of them with full marks by the grader."""
    yield from _rated_sample(world, world, n, generator)


def people_rate_students_who_differ(world: World, n: int, generator: np.random.Generator) -> Iterator[Check]:
    """The same with a second student who earns full marks as often as the first one misses them."""
    other = World(1 - world.share, world.sensitivity, world.specificity)
    yield from _rated_sample(world, other, n, generator)


def _rated_sample(first: World, second: World, n: int, generator: np.random.Generator) -> Iterator[Check]:
    error = 3 * RATER_ERROR**2 - 2 * RATER_ERROR**3
    students = {"first": first, "second": second}
    items = _rated_run(students, max(300, n), n, generator)
    rated = {student: _as_rated(world, error) for student, world in students.items()}
    measures = truth_measures(full_marks_units(items, "judge", PEOPLE))
    for name, value in values_of(_mixture(list(rated.values()))).items():
        yield name, getattr(measures, name), value
    for score in corrected_scores(items, "judge", PEOPLE):
        assert score.problem is None, score
        yield f"corrected, {score.method}", score.corrected, rated[score.student].share


def labels_of_another_student(world: World, n: int, generator: np.random.Generator) -> Iterator[Check]:
    """A student without labels, corrected by the errors on n texts of another one."""
    _, given = decisions(world, 300, generator)
    labelled, judged = decisions(World(0.5, world.sensitivity, world.specificity), n, generator)
    items = [item(i, {"judge": point(g)}) for i, g in enumerate(given.tolist())]
    items += [
        item(300 + i, {"judge": point(g), "labels": point(t)}, student="calibration")
        for i, (t, g) in enumerate(zip(labelled.tolist(), judged.tolist(), strict=True))
    ]
    (score,) = (s for s in corrected_scores(items, "judge", "labels") if s.student == "s")
    held = Measure(None, 1.0, 0.0) if score.problem == OUTSIDE else score.corrected
    yield "corrected, error rates", held, world.share


def text_of_three_skills(
    number: int,
    student: str,
    skill: float,
    error: tuple[float, float],
    generator: np.random.Generator,
    *,
    labelled: bool,
) -> TextUnderGraders:
    """A text whose criteria are earned independently, under a grader with constant rates of misses and inventions."""
    earned = generator.random(5) < np.array([skill, skill, skill, 0.95, 0.93])
    missed, invented = error
    given = generator.random(5) < np.where(earned, 1 - missed, invented)
    points = {"judge": (*given.tolist(), True), **({"labels": (*earned.tolist(), True)} if labelled else {})}
    return TextUnderGraders(
        "r",
        student,
        f"{student}{number}",
        0,
        ("a", "b", "c"),
        20,
        points,
        settings=("all",),
        by_code=frozenset({5}),
    )


def labels_of_a_better_student(
    labelled: float, scored: float, n: int, trials: int, error: tuple[float, float] = (0.05, 0.2)
) -> tuple[float, float]:
    """How often the interval of an unlabelled student's score holds the truth, and the mean corrected score."""
    generator = np.random.default_rng([n, trials])
    held, values = [], []
    for _ in range(trials):
        items = [text_of_three_skills(i, "labelled", labelled, error, generator, labelled=True) for i in range(n)]
        items += [text_of_three_skills(i, "scored", scored, error, generator, labelled=False) for i in range(n)]
        (score,) = (s for s in corrected_scores(items, "judge", "labels") if s.student == "scored")
        if score.corrected.value is not None:
            assert score.corrected.low is not None and score.corrected.high is not None
            held.append(score.corrected.low <= scored**3 * 0.95 * 0.93 <= score.corrected.high)
            values.append(score.corrected.value)
    return float(np.mean(held)), float(np.mean(values))


def criteria_of_a_text_share_its_errors(world: World, n: int, generator: np.random.Generator) -> Iterator[Check]:
    """Three skills a text and two texts a combination; the grader is lenient on some texts and harsh on others."""
    skills = ("a", "b", "c")
    ease = generator.beta(4 * world.share, 4 * (1 - world.share), size=n // 2)
    hits = generator.beta(8 * world.sensitivity, 8 * (1 - world.sensitivity), size=(n // 2, 2))
    passes = generator.beta(8 * world.specificity, 8 * (1 - world.specificity), size=(n // 2, 2))
    earned = generator.random((n // 2, 2, 3)) < ease[:, None, None]
    given = generator.random(earned.shape) < np.where(earned, hits[..., None], 1 - passes[..., None])
    items = [
        TextUnderGraders(
            run="r",
            student="s",
            combination=f"c{c}",
            generation=g,
            skills=skills,
            words=20,
            points={"judge": (*given[c, g].tolist(), *[None] * 3), "labels": (*earned[c, g].tolist(), *[None] * 3)},
        )
        for c in range(n // 2)
        for g in range(2)
    ]
    measures = truth_measures(criterion_units(items, "judge", "labels"))
    for name, value in values_of(world).items():
        yield f"clustered {name}", getattr(measures, name), value


def _rated_run(
    students: Mapping[str, World], texts: int, n: int, generator: np.random.Generator
) -> list[TextUnderGraders]:
    items = []
    for place, (student, world) in enumerate(students.items()):
        earned, given = decisions(world, texts, generator)
        rated = set[int]()
        for outcome in (True, False):
            candidates = np.flatnonzero(given == outcome)
            size = min(len(candidates), n // 4)
            rated |= set(generator.choice(candidates, size, replace=False).tolist())
        answers = earned[:, None] ^ (generator.random((texts, 3)) < RATER_ERROR)
        for i in range(texts):
            people = {f"human:{j}": point(bool(answers[i, j])) for j in range(3)} if i in rated else {}
            items.append(item(place * texts + i, {"judge": point(bool(given[i])), **people}, student=student))
    return with_people(items)


def _as_rated(world: World, error: float) -> World:
    """The same world with the answers of people for the truth."""
    share, sensitivity, specificity = world
    rated = share * (1 - error) + (1 - share) * error
    hits = share * (1 - error) * sensitivity + (1 - share) * error * (1 - specificity)
    passes = share * error * (1 - sensitivity) + (1 - share) * (1 - error) * specificity
    return World(rated, hits / rated, passes / (1 - rated))


def _mixture(worlds: Sequence[World]) -> World:
    """Equal numbers of texts of each world."""
    share = float(np.mean([w.share for w in worlds]))
    hits = float(np.mean([w.share * w.sensitivity for w in worlds]))
    passes = float(np.mean([(1 - w.share) * w.specificity for w in worlds]))
    return World(share, hits / share, passes / (1 - share))


Coverage = dict[str, dict[World, float]]


def coverage(simulation: Simulation, n: int, trials: int, shares: Sequence[float] = SHARES) -> Coverage:
    """By measure and world, how often its interval holds the true value; unknown measures do not count."""
    found: Coverage = defaultdict(dict)
    generator = np.random.default_rng([n, trials])
    for world in (World(share, *errors) for share in shares for errors in ERRORS):
        held = defaultdict[str, list[bool]](list)
        for _ in range(trials):
            for name, measure, value in simulation(world, n, generator):
                if measure.low is not None and measure.high is not None:
                    held[name].append(measure.low <= value <= measure.high)
        for name, hits in held.items():
            found[name][world] = float(np.mean(hits))
    return dict(found)


SIMULATIONS: tuple[Simulation, ...] = (
    every_text_has_a_label,
    people_rate_a_sample,
    people_rate_students_who_differ,
    labels_of_another_student,
    criteria_of_a_text_share_its_errors,
)


def lines(trials: int) -> Iterator[str]:
    """The coverage of every measure: its mean over the grid, and the worlds with the least and the most."""
    for simulation in SIMULATIONS:
        yield (f"\n{simulation.__name__}, {trials} trials a world\n\n| measure | n | mean | least | most |")
        yield "|---|---:|---:|---|---|"
        for n in SIZES:
            for name, by_world in coverage(simulation, n, trials).items():
                least, most = min(by_world, key=by_world.__getitem__), max(by_world, key=by_world.__getitem__)
                ends = " | ".join(f"{by_world[w]:.3f} at {', '.join(map(str, w))}" for w in (least, most))
                yield f"| {name} | {n} | {np.mean(list(by_world.values())):.3f} | {ends} |"


if __name__ == "__main__":
    for line in lines(int(sys.argv[1]) if len(sys.argv) > 1 else 400):
        sys.stdout.write(f"{line}\n")
        sys.stdout.flush()
