"""The points of a training log, as both pictures show them."""

import json
from pathlib import Path

import pytest

from skillmix.runs.run import Run
from skillmix.training.log import cut_log, draw_losses, loss_curve, run_curves


def write_log(folder: Path, rows: list[dict[str, object]]) -> Path:
    folder.mkdir(parents=True)
    (folder / "training.jsonl").write_text("\n".join(map(json.dumps, rows)) + "\n{cut", encoding="utf-8")
    return folder


@pytest.mark.parametrize("steps", [1, 5, 600, 1500])
def test_training_svg_and_the_report_show_the_same_points(tmp_path: Path, steps: int) -> None:
    rows: list[dict[str, object]] = [{"step": n, "answers": 3 / (n + 1), "replay": 2.0} for n in range(steps)]
    rows[-1]["validation"] = 1.5
    folder = write_log(tmp_path / "m1", rows)

    draw_losses(folder)
    [curve] = run_curves(Run(tmp_path))

    assert (folder / "training.svg").read_text(encoding="utf-8") == loss_curve(curve.series)
    assert curve.series["validation"] == [(steps, 1.5)]


def test_steps_count_from_one_and_a_long_series_is_shown_as_means(tmp_path: Path) -> None:
    write_log(tmp_path / "m1", [{"step": n, "answers": float(n)} for n in range(1500)])

    [curve] = run_curves(Run(tmp_path))

    points = curve.series["answers"]
    assert len(points) == 500
    assert points[:2] == [(3, 1.0), (6, 4.0)]
    assert points[-1] == (1500, 1498.0)


def test_a_step_that_was_logged_twice_counts_as_the_later_row_says(tmp_path: Path) -> None:
    rows: list[dict[str, object]] = [{"step": 0, "answers": 3.0}, {"step": 1, "answers": 2.0}]
    write_log(tmp_path / "m1", [*rows, {"step": 1, "answers": 1.0}])

    [curve] = run_curves(Run(tmp_path))

    assert curve.series == {"answers": [(1, 3.0), (2, 1.0)]}


def test_a_loss_that_is_no_number_is_left_out_of_both_pictures(tmp_path: Path) -> None:
    odd = (float("nan"), float("inf"), 10**400, True, "3")
    rows: list[dict[str, object]] = [{"step": n, "answers": value} for n, value in enumerate((2.0, *odd))]
    folder = write_log(tmp_path / "m1", rows)

    draw_losses(folder)
    [curve] = run_curves(Run(tmp_path))

    assert curve.series == {"answers": [(1, 2.0)]}


def test_a_cut_log_has_the_rows_of_earlier_steps_and_no_damaged_line(tmp_path: Path) -> None:
    folder = write_log(tmp_path / "m1", [{"step": n, "answers": 1.0} for n in range(4)])

    cut_log(folder / "training.jsonl", before=2)

    lines = (folder / "training.jsonl").read_text(encoding="utf-8").splitlines()
    assert [json.loads(line)["step"] for line in lines] == [0, 1]


def test_a_log_that_is_not_there_is_cut_to_an_empty_one(tmp_path: Path) -> None:
    cut_log(tmp_path / "m1" / "training.jsonl", before=0)

    assert (tmp_path / "m1" / "training.jsonl").read_text(encoding="utf-8") == ""
