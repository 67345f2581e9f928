"""Compare three ways to draw bootstrap means: `python bench/bootstrap.py`.

Each way draws 10,000 resamples of n per-combination scores: by multinomial counts of the distinct values (as skillmix
does), by indices, and with scipy.
"""

import time
from collections.abc import Callable

import numpy as np
from scipy import stats

from skillmix.scores.statistics.intervals import RESAMPLES, Floats, bootstrap_means


def by_indices(values: Floats) -> Floats:
    """Average the scores at random indices."""
    generator = np.random.default_rng(0)
    means: Floats = values[generator.integers(len(values), size=(RESAMPLES, len(values)))].mean(axis=1)
    return means


def by_scipy(values: Floats) -> Floats:
    """Use the percentile method of scipy.stats.bootstrap."""
    result = stats.bootstrap((values,), np.mean, n_resamples=RESAMPLES, method="percentile", vectorized=True)
    means: Floats = result.bootstrap_distribution
    return means


def by_counts(values: Floats) -> Floats:
    """Draw the counts of the distinct scores, as skillmix does."""
    return bootstrap_means(values, RESAMPLES, np.random.default_rng(0))


def main() -> None:
    """Print the CPU milliseconds of each way, the best of five measurements."""
    ways: dict[str, Callable[[Floats], Floats]] = {"counts": by_counts, "indices": by_indices, "scipy": by_scipy}
    print(f"| n | {' | '.join(f'{name}, ms' for name in ways)} |\n|---:|{'---:|' * len(ways)}")
    for n in (100, 1000):
        values = np.random.default_rng(1).choice([0.0, 1 / 3, 2 / 3, 1.0], size=n)
        cells = []
        for way in ways.values():
            spent = []
            for _ in range(5):
                start = time.process_time()
                way(values)
                spent.append(time.process_time() - start)
            cells.append(f"{1000 * min(spent):.1f}")
        print(f"| {n} | {' | '.join(cells)} |")


if __name__ == "__main__":
    main()
