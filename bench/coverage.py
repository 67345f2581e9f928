"""Measure how often 95% intervals of a pass@1 mean contain the true value: `python bench/coverage.py [TRIALS]`.

Combinations differ in difficulty (a beta distribution around the rate) and have three texts each. The script compares
the percentile bootstrap that scores use, which is widened for small n, with the plain percentile bootstrap.
"""

import sys

import numpy as np

from skillmix.scores.statistics.intervals import RESAMPLES, bootstrap_means, mean_interval


def main() -> None:
    """Print a row for each number of combinations and rate."""
    trials = int(sys.argv[1]) if len(sys.argv) > 1 else 1000
    print("| combinations | rate | widened (skillmix) | plain |\n|---:|---:|---:|---:|")
    for n in (30, 100):
        for rate in (0.02, 0.05, 0.1, 0.3, 0.5, 0.8):
            generator = np.random.default_rng(n)
            ours = plain = 0
            for _ in range(trials):
                difficulty = generator.beta(4 * rate, 4 * (1 - rate), size=n)
                tries = (generator.random((n, 3)) < difficulty[:, None]).mean(axis=1)
                low, high = mean_interval(tries.tolist())
                ours += low <= rate <= high
                low, high = np.quantile(bootstrap_means(tries, RESAMPLES, generator), [0.025, 0.975])
                plain += low <= rate <= high
            print(f"| {n} | {rate} | {ours / trials:.3f} | {plain / trials:.3f} |")


if __name__ == "__main__":
    main()
