"""Full marks by code on four sets of texts by language models that had seen the definitions but not the code.

The first three sets have been used to develop the rules, `third.yaml` only after the rules had been measured once on
it. The fourth set has not; docs/verifiable.md reports both results.
"""

from pathlib import Path

import pytest

from tests.checkers.natural import KINDS, rates

HERE = Path(__file__).parent


@pytest.mark.parametrize(
    ("name", "texts", "recall", "precision"),
    [
        ("natural_dev", [52, 30, 22, 0], 1.0, 0.92),
        ("natural", [52, 30, 22, 0], 1.0, 0.82),
        ("second_dev", [49, 30, 9, 12], 0.91, 0.88),
        ("second", [51, 30, 11, 8], 0.94, 0.85),
        ("third_dev", [55, 37, 18, 0], 1.0, 0.93),
        ("third", [55, 38, 17, 0], 0.96, 0.88),
        ("fourth", [120, 80, 40, 0], 0.93, 0.73),
    ],
)
def test_recall_and_precision(name: str, texts: list[int], recall: float, precision: float) -> None:
    found = rates(HERE / f"{name}.yaml")

    assert [found.texts[kind] for kind in KINDS] == texts
    assert found.recall >= recall
    assert found.precision >= precision
