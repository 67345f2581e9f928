"""Files with combinations that no data set may hold: read exactly, or refused."""

import json
from pathlib import Path

import pytest

from skillmix.catalog.combinations import combination_of
from skillmix.datasets.evaluations import combinations_in
from skillmix.errors import UserError


@pytest.mark.parametrize("suffix", ["json", "jsonl"])
def test_combinations_are_known_by_their_ids(tmp_path: Path, suffix: str) -> None:
    one = {"skills": ["metaphor", "red herring"], "topic": "Sewing"}
    path = tmp_path / f"found.{suffix}"
    path.write_text(json.dumps([one] if suffix == "json" else one), encoding="utf-8")

    assert list(combinations_in(path)) == [combination_of(one["skills"], "Sewing").id]  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "wrong",
    [
        {"skills": ["metaphor"], "topic": None},
        {"skills": ["metaphor"], "topic": ""},
        {"skills": [None], "topic": "Sewing"},
        {"skills": "metaphor", "topic": "Sewing"},
        {"skills": {"metaphor": 1}, "topic": "Sewing"},
        {"skills": ["metaphor"]},
        ["metaphor"],
        None,
    ],
)
def test_a_name_that_is_no_text_is_refused_instead_of_barring_nothing(tmp_path: Path, wrong: object) -> None:
    path = tmp_path / "found.json"
    path.write_text(json.dumps([wrong]), encoding="utf-8")

    with pytest.raises(UserError, match="does not hold combinations"):
        list(combinations_in(path))
