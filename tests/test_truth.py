"""The whole chain against the truth: scripted rates through vote, re-asks, best of G, and intervals that hold them."""

import os
from itertools import product
from math import comb
from pathlib import Path

import pytest
import yaml
from scipy.stats import binomtest

from skillmix.experiment.experiment import experiment_of
from skillmix.grading.points import METRICS, text_score
from skillmix.scores.cells import CellScore
from skillmix.scores.scoring import run_scores
from skillmix.steps.run import run_checked

SMOKE = yaml.safe_load((Path(__file__).parents[1] / "experiments/smoke.yaml").read_text(encoding="utf-8"))
LONG = bool(os.environ.get("SKILLMIX_LONG"))
SEEDS = 20 if LONG else 2
GENERATIONS = 3
RATES = {
    "weak": {"skill": 0.6, "topic": 0.95, "sense": 0.9, "length": 0.95},
    "strong": {"skill": 0.9, "topic": 0.98, "sense": 0.97, "length": 0.95},
}
NOISE = 0.05


def voted(rate: float) -> float:
    """The chance that a criterion met at a rate is earned after three votes, each turned round by the noise."""
    wrong = 3 * NOISE**2 * (1 - NOISE) + NOISE**3
    return rate * (1 - wrong) + (1 - rate) * wrong


def distribution(student: str, k: int, metric: str) -> dict[float, float]:
    """The chance of every score of one text."""
    rates = RATES[student]
    skill = voted(rates["skill"])
    others = (voted(rates["topic"]), voted(rates["sense"]), rates["length"])  # the length point comes from code
    chances: dict[float, float] = {}
    for shown in range(k + 1):
        for met in product([False, True], repeat=3):
            chance = comb(k, shown) * skill**shown * (1 - skill) ** (k - shown)
            for is_met, rate in zip(met, others, strict=True):
                chance *= rate if is_met else 1 - rate
            score = text_score((*[True] * shown, *[False] * (k - shown), *met), metric)
            assert score is not None
            chances[score] = chances.get(score, 0.0) + chance
    return chances


def truth(student: str, k: int, metric: str) -> tuple[float, float]:
    """The true best of three, and the true one-try mean."""
    chances = sorted(distribution(student, k, metric).items())
    one_try = sum(score * chance for score, chance in chances)
    best = below = 0.0
    for score, chance in chances:
        best += score * ((below + chance) ** GENERATIONS - below**GENERATIONS)
        below += chance
    return best, one_try


def scores_of(seed: int) -> list[CellScore]:
    """The scores of the shipped file with another seed; a report takes longer, and tests/test_package.py makes one."""
    steps = SMOKE["steps"] if LONG and seed == 0 else [step for step in SMOKE["steps"] if step["stage"] != "report"]
    run_checked(experiment_of(SMOKE | {"seed": seed, "name": f"smoke-{seed}", "steps": steps}, source="smoke"))
    return run_scores(f"smoke-{seed}")


def test_the_truth_lies_in_the_intervals(in_folder: Path) -> None:
    held = cells = 0
    for seed in range(SEEDS):
        for score in scores_of(seed):
            best, one_try = truth(score.student, score.k, score.metric)
            assert score.value is not None and score.low is not None and score.high is not None
            assert score.one_try_low is not None and score.one_try_high is not None
            held += score.low <= best <= score.high
            held += score.one_try_low <= one_try <= score.one_try_high
            cells += 2
            if score.metric != "skill_fraction":
                successes = round(score.value * score.complete)
                assert binomtest(successes, score.complete, best).pvalue > 1e-5, (seed, score, best)
    share = held / cells

    assert 0.9 < share < 0.99, share
    if SEEDS == 20:
        assert 0.93 <= share <= 0.97, share


@pytest.mark.parametrize("metric", METRICS)
def test_the_truth_by_hand_at_k_1(metric: str) -> None:
    wrong = 3 * 0.05**2 * 0.95 + 0.05**3
    skill, topic, sense = (r * (1 - wrong) + (1 - r) * wrong for r in (0.6, 0.95, 0.9))
    full = skill * topic * sense * 0.95
    at_least_two = topic * sense * 0.95 + topic * sense * 0.05 + topic * (1 - sense) * 0.95 + (1 - topic) * sense * 0.95

    expected = {"full_marks": full, "all_skills": skill * at_least_two, "skill_fraction": full}[metric]

    assert truth("weak", 1, metric) == pytest.approx((1 - (1 - expected) ** 3, expected))
