"""The number of texts for an agreement interval of a given width."""

import re
from pathlib import Path

import pytest

from skillmix.errors import UserError
from skillmix.validation.sample import texts_for_width, width_of


@pytest.mark.parametrize("width", [0.02, 0.1, 0.2, 0.37, 0.9])
@pytest.mark.parametrize("agreement", [0.0, 0.2, 0.5, 0.83, 1.0])
def test_the_number_is_the_smallest_that_is_enough(width: float, agreement: float) -> None:
    texts = texts_for_width(width, agreement=agreement)

    assert width_of(texts, agreement=agreement) <= width + 1e-6
    assert texts == 1 or width_of(texts - 1, agreement=agreement) > width - 1e-6


def test_half_is_the_worst_case() -> None:
    assert texts_for_width(0.1) == max(texts_for_width(0.1, agreement=p / 100) for p in range(101))


@pytest.mark.parametrize(
    ("width", "agreement"),
    [(0.0, 0.5), (1e-300, 0.5), (0.0009, 0.5), (1.0, 0.5), (float("nan"), 0.5), (0.1, 1.2), (0.1, -1)],
)
def test_a_width_or_an_agreement_that_cannot_be_is_an_error(width: float, agreement: float) -> None:
    with pytest.raises(UserError):
        texts_for_width(width, agreement=agreement)


def test_the_table_in_the_documents_is_right() -> None:
    page = (Path(__file__).parents[2] / "docs/people.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (\.\d+) \| (\d+) \| (\d+) \| (\d+) \|$", page, re.MULTILINE)

    assert len(rows) == 4
    for width, *texts in rows:
        assert [texts_for_width(float(width), agreement=p) for p in (0.5, 0.8, 0.9)] == list(map(int, texts))
