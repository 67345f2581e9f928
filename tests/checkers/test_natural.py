"""Full marks by code on two sets of texts of a language model that saw the definitions and not the code.

The rules saw `natural_dev.yaml` and `second_dev.yaml`. They were measured on `natural.yaml`, and later on
`second.yaml`, before anybody looked at those texts; docs/verifiable.md has those figures.
"""

from pathlib import Path

import pytest

from tests.checkers.natural import KINDS, rates

HERE = Path(__file__).parent


@pytest.mark.parametrize(
    ("name", "texts", "recall", "precision"),
    [
        ("natural_dev", [52, 30, 22, 0], 0.98, 0.92),
        ("natural", [52, 30, 22, 0], 1.0, 0.74),
        ("second_dev", [49, 30, 9, 12], 0.85, 0.79),
        ("second", [51, 30, 11, 8], 0.88, 0.73),
    ],
)
def test_recall_and_precision(name: str, texts: list[int], recall: float, precision: float) -> None:
    found = rates(HERE / f"{name}.yaml")

    assert [found.texts[kind] for kind in KINDS] == texts
    assert found.recall >= recall
    assert found.precision >= precision
