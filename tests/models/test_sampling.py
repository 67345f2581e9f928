"""Sampling follows the distribution, and only the distribution."""

import numpy as np
import pytest
from scipy import stats

torch = pytest.importorskip("torch", reason="the extra `local` is not installed")

from skillmix.models.local.sampling import choose, uniforms  # noqa: E402

DRAWS = 20_000
LOGITS = np.array([2.0, 1.5, 1.0, 0.5, 0.0, -0.5, -1.0, -2.0])


def draws(*, temperature: float = 0.7, top_p: float | None = None, seed: int = 5) -> np.ndarray:
    numbers = torch.from_numpy(uniforms(seed, DRAWS))
    logits = torch.tensor(LOGITS, dtype=torch.float32).repeat(DRAWS, 1)
    nucleus = None if top_p is None else torch.full((DRAWS,), top_p)
    chosen = choose(logits, numbers, torch.full((DRAWS,), temperature), nucleus)
    return np.bincount(chosen.numpy(), minlength=len(LOGITS))


def expected(*, temperature: float = 0.7, top_p: float | None = None) -> np.ndarray:
    chances = np.exp(LOGITS / temperature)
    chances /= chances.sum()
    if top_p is not None:
        before = np.concatenate(([0.0], np.cumsum(chances)[:-1]))  # the logits fall, so this is the nucleus
        chances = np.where(before < top_p, chances, 0.0)
        chances /= chances.sum()
    return DRAWS * chances


def p_value(counts: np.ndarray, wanted: np.ndarray) -> float:
    possible = wanted > 0
    if counts[~possible].sum():
        return 0.0
    return float(stats.chisquare(counts[possible], wanted[possible]).pvalue)


@pytest.mark.parametrize("top_p", [None, 0.9])
@pytest.mark.parametrize("seed", [5, 6, 7])
def test_draws_follow_the_distribution(top_p: float | None, seed: int) -> None:
    assert p_value(draws(top_p=top_p, seed=seed), expected(top_p=top_p)) > 0.001


def test_another_temperature_is_told_apart() -> None:
    assert p_value(draws(temperature=0.8), expected(temperature=0.7)) < 1e-6


def test_an_omitted_top_p_is_told_apart() -> None:
    assert p_value(draws(), expected(top_p=0.9)) < 1e-6


def test_temperature_zero_takes_the_likeliest() -> None:
    assert draws(temperature=0.0)[0] == DRAWS


def test_numbers_are_those_of_the_seed_for_ever() -> None:
    assert uniforms(7, 3).tolist() == uniforms(7, 5)[:3].tolist()
    assert np.allclose(uniforms(7, 3), [0.9215291738510132, 0.488927960395813, 0.5457263588905334], atol=1e-7)
    assert 0.49 < uniforms(1, 100_000).mean() < 0.51
    assert uniforms(1, 100_000).max() < 1.0
