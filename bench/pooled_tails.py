"""Measure how often pooled tests of seeds find a gain that does not exist: `python bench/pooled_tails.py [WORLDS]`.

The simulated worlds have no gain, and three training seeds that share combinations and a base. Each row of the table
uses a different standard deviation between seeds. A claim has twelve tests with Holm's correction, so a first rejection
needs a test with p < .05 / 12.
"""

import sys

import numpy as np
from scipy.stats import t as student_t
from tests.scores.test_simulated_worlds import no_effect

from skillmix.scores.statistics.differences import crossed_moments, uncertainty

TESTS = 12


def main() -> None:
    """Print one row for each standard deviation."""
    worlds = int(sys.argv[1]) if len(sys.argv) > 1 else 20000
    print("| sd between seeds | one test at .0042 | a gain in one of 12 tests |\n|---:|---:|---:|")
    for spread in (0.0, 0.03, 0.06, 0.10, 0.15):
        generator = np.random.default_rng(7)
        found, tests = 0.0, 0
        for _ in range(0, worlds, 2000):
            moments = crossed_moments(no_effect(generator, (2000, 3), (0.4, 0.1), spread, shared=True))
            variance, degrees = uncertainty(moments.between, moments.within, moments.crossed, 3, 100)
            ratio = moments.mean / np.sqrt(variance)
            p = 2 * student_t.sf(np.abs(ratio), degrees)
            found += float(((p < 0.05 / TESTS) & (ratio > 0)).sum())
            tests += 2000
        rate = found / tests
        print(f"| {spread:.2f} | {2 * rate:.4f} | {1 - (1 - rate) ** TESTS:.3f} |")


if __name__ == "__main__":
    main()
