"""Cells, their scores, and the rows that `scores --json` prints."""

from dataclasses import asdict, replace

import pytest

from skillmix.calls import was_cut
from skillmix.catalog.combinations import Combination
from skillmix.grading.answers import AnswerStatus
from skillmix.grading.points import METRICS, Points
from skillmix.scores.cells import Cell, CellKey, CellScore, summarise
from skillmix.scores.statistics.intervals import FEWEST_COMBINATIONS, wilson_interval
from skillmix.scores.table import cut_lines, wide_table

ALL = (True,) * 5
"""Two skills, topic, sense and length."""


FORMAT = dict.fromkeys(("valid_texts", "among_valid", "among_valid_low", "among_valid_high", "cut"))


def cell() -> Cell:
    combinations = tuple(Combination(topic, ("a", "b"), topic) for topic in ("Sewing", "Rugby"))
    key = CellKey("r", "s", "g", "all", 2)
    return Cell(key, combinations, ((ALL, None), ((False, *ALL[1:]), ALL)), (("fine", None), ("no marker", "fine")))


def test_a_cell_has_a_score_for_every_metric() -> None:
    scores = cell().scores

    assert list(scores) == list(METRICS)
    for metric, score in scores.items():
        alone = summarise(cell().values(metric), metric, format_failures=1)
        assert {**asdict(score), **FORMAT} == {**asdict(alone), **FORMAT}
    assert (scores["full_marks"].value, scores["full_marks"].one_try, scores["full_marks"].ungraded) == (1.0, 0.5, 1)


def test_a_json_row_names_the_cell_first_and_then_the_numbers() -> None:
    about = {"run": "r", "student": "s", "grader": "g", "setting": "all", "k": 2, "metric": "full_marks"}
    unknown = dict.fromkeys(("catalog", "partition", "prompts", "seed"))
    score = CellScore(**asdict(cell().scores["full_marks"]), **about, **unknown)  # type: ignore[arg-type]

    assert " ".join(score.json_row()) == (
        "run student grader catalog partition prompts seed setting k metric value low high bound_low bound_high "
        "combinations complete ungraded format_failures one_try one_try_low one_try_high "
        "valid_texts among_valid among_valid_low among_valid_high cut woven woven_low woven_high "
        "sets trained_on written seen_pairs"
    )
    assert score.json_row() == asdict(score)


NOTHING: Points = (False,) * 5
Text = tuple[Points | None, AnswerStatus | None, bool | None]


def cell_of(*combinations: list[Text]) -> Cell:
    names = [f"c{number:03}" for number in range(len(combinations))]
    return Cell(
        CellKey("r", "s", "g", "all", 2),
        tuple(Combination(name, ("a", "b"), name) for name in names),
        tuple(tuple(points for points, _, _ in texts) for texts in combinations),
        tuple(tuple(status for _, status, _ in texts) for texts in combinations),
        tuple(tuple(cut for _, _, cut in texts) for texts in combinations),
    )


def test_full_marks_among_valid_texts_leave_out_texts_without_a_format_or_a_grade() -> None:
    undecided: Points = (None, *ALL[1:])
    mixed = cell_of(
        [(ALL, "fine", False), (NOTHING, "fine", False), (ALL, "no marker", False)],
        [(NOTHING, "no marker", True), (NOTHING, "refused", None), (undecided, "fine", False)],
        [(NOTHING, "fine", False), (None, None, None), (NOTHING, "empty", False)],
    )

    score = mixed.scores["full_marks"]

    assert score.valid_texts == 3
    assert score.among_valid == pytest.approx(1 / 3)
    assert score.among_valid_low is score.among_valid_high is None
    assert (mixed.scores["skill_fraction"].valid_texts, mixed.written) == (3, 7)


def test_full_marks_among_no_valid_text_are_unknown_and_not_zero() -> None:
    texts: list[Text] = [(NOTHING, "no marker", True)]
    without = cell_of(*[texts] * 20)

    score = without.scores["full_marks"]

    assert score.value == 0.0
    assert score.among_valid is score.among_valid_low is None
    assert (score.valid_texts, score.format_failures, score.cut) == (0, 20, 20)


@pytest.mark.parametrize("n", [FEWEST_COMBINATIONS - 1, FEWEST_COMBINATIONS])
def test_below_ten_combinations_only_binary_values_have_an_interval(n: int) -> None:
    texts: list[Text] = [(ALL, "fine", None), (NOTHING, "fine", None)]
    scores = cell_of(*[texts] * (n - 1), [(NOTHING, "fine", None)] * 2).scores

    full, fraction = scores["full_marks"], scores["skill_fraction"]

    has_interval = n >= FEWEST_COMBINATIONS
    assert None not in (full.value, full.low, full.high, full.one_try, full.among_valid, fraction.value)
    for low in (full.one_try_low, full.among_valid_low, fraction.low, fraction.one_try_low):
        assert (low is not None) == has_interval
    for high in (full.one_try_high, full.among_valid_high, fraction.high, fraction.one_try_high):
        assert (high is not None) == has_interval


@pytest.mark.parametrize(
    ("finish", "cut"),
    [("length", True), ("LENGTH", True), ("max_tokens", True), ("stop", False), ("end_turn", False), (None, None)],
)
def test_a_provider_says_whether_a_reply_was_cut(finish: str | None, cut: bool | None) -> None:
    assert was_cut(finish) is cut


def row(student: str, texts: Cell) -> CellScore:
    about = {"run": "r", "student": student, "grader": "g", "setting": "all", "k": 2, "metric": "full_marks"}
    unknown = dict.fromkeys(("catalog", "partition", "prompts", "seed"))
    return CellScore(**asdict(texts.scores["full_marks"]), **about, **unknown, written=texts.written)  # type: ignore[arg-type]


def test_more_than_two_percent_of_cut_replies_get_a_warning() -> None:
    def with_cuts(cut: int) -> Cell:
        texts: list[Text] = [(ALL, "fine", number < cut) for number in range(100)]
        return cell_of(*([text] for text in texts))

    lines = cut_lines([row("whole", with_cuts(2)), row("short", with_cuts(84)), row("unknown", cell())])

    assert lines == [
        "short: the token limit cut 84% of the replies at all, k = 2 (84 of 100); raise its max_tokens, unless "
        "these replies would never end"
    ]


def test_the_table_shows_full_marks_among_valid_texts_and_cut_replies() -> None:
    texts: list[Text] = [(ALL, "fine", False), (NOTHING, "no marker", True)]
    full = row("s", cell_of(*[texts] * 20))
    by_metric = [CellScore(**{**asdict(full), "metric": metric}) for metric in METRICS]

    header, _, line = wide_table(by_metric).splitlines()

    cells = dict(zip(header.split("|"), line.split("|"), strict=True))
    shown = {name.strip(): value.strip() for name, value in cells.items()}
    assert shown["full marks, one try"].startswith(".50")
    assert shown["full marks among valid"] == "1.00 [.84, 1.00]"
    assert shown["cut"] == "20"


def woven_cell(*woven: bool | None) -> Cell:
    texts: list[Text] = [(ALL, "fine", None), (NOTHING, "fine", None)]
    return replace(cell_of(*(texts for _ in woven)), woven=tuple((value, False) for value in woven))


def test_woven_full_marks_take_the_best_text_and_are_unknown_if_a_text_with_full_marks_is() -> None:
    score = woven_cell(True, True, False).scores["full_marks"]

    # Without the unknown text only texts of known skills would count, and every failure is known.
    assert woven_cell(True, True, False, None).scores["full_marks"].woven is None
    assert score.value == 1.0
    assert score.woven == pytest.approx(2 / 3)
    assert score.woven_low == pytest.approx(wilson_interval(2 / 3, 3).low)


def test_without_code_woven_full_marks_are_unknown_and_not_zero() -> None:
    texts = woven_cell(None, None)

    assert replace(texts, woven=((None, None),) * 2).scores["full_marks"].woven is None
    assert replace(texts, woven=()).scores["full_marks"].woven is None
    assert texts.scores["skill_fraction"].woven is None


def test_a_part_of_a_cell_keeps_its_woven_texts() -> None:
    part = woven_cell(True, False).only(lambda combination: combination.id == "c001")

    assert part.scores["full_marks"].woven == 0.0
