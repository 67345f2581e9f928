"""Cells, their scores, and the rows that `scores --json` prints."""

from dataclasses import asdict

from skillmix.catalog.combinations import Combination
from skillmix.grading.points import METRICS
from skillmix.scores.cells import Cell, CellKey, CellScore, summarise

ALL = (True,) * 5
"""Two skills, topic, sense and length."""


def cell() -> Cell:
    combinations = tuple(Combination(topic, ("a", "b"), topic) for topic in ("Sewing", "Rugby"))
    key = CellKey("r", "s", "g", "all", 2)
    return Cell(key, combinations, ((ALL, None), ((False, *ALL[1:]), ALL)), (("fine", None), ("no marker", "fine")))


def test_a_cell_has_a_score_for_every_metric() -> None:
    scores = cell().scores

    assert list(scores) == list(METRICS)
    for metric, score in scores.items():
        assert score == summarise(cell().values(metric), metric, format_failures=1)
    assert (scores["full_marks"].value, scores["full_marks"].one_try, scores["full_marks"].ungraded) == (1.0, 0.5, 1)


def test_a_json_row_names_the_cell_first_and_then_the_numbers() -> None:
    about = {"run": "r", "student": "s", "grader": "g", "setting": "all", "k": 2, "metric": "full_marks"}
    unknown = dict.fromkeys(("catalog", "partition", "prompts", "seed"))
    score = CellScore(**asdict(cell().scores["full_marks"]), **about, **unknown)  # type: ignore[arg-type]

    assert " ".join(score.json_row()) == (
        "run student grader catalog partition prompts seed setting k metric value low high bound_low bound_high "
        "combinations complete ungraded format_failures one_try one_try_low one_try_high sets trained_on written "
        "seen_pairs"
    )
    assert score.json_row() == asdict(score)
