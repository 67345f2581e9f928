"""The files for a paper: tidy scores, and stars for differences outside chance."""

import csv
import re
from contextlib import chdir
from dataclasses import dataclass
from pathlib import Path

import pytest

from skillmix.report.figures.style import STYLES, house_style, new_figure
from skillmix.report.records import ReportOptions
from skillmix.report.write import report
from skillmix.scores.scoring import run_scores
from tests.report.worlds import make_world

GRADERS = {"judge": {"model": "scripted:grader", "rounds": 1}, "other": {"model": "scripted:grader", "rounds": 1}}


@dataclass(frozen=True)
class Reported:
    run: str
    folder: Path

    def scores(self) -> list[dict[str, str]]:
        with (self.folder / "scores.csv").open(encoding="utf-8") as file:
            return list(csv.DictReader(file))


@pytest.fixture(scope="module")
def paper(tmp_path_factory: pytest.TempPathFactory) -> Reported:
    """A report with two graders and two settings; m1 was tuned from the base and is much better."""
    rates = {"base": "skill=0.1&marker=0.7", "m1": "skill=1"}
    folder = tmp_path_factory.mktemp("paper")
    with chdir(folder):
        make_world(folder, "w", rates, graders=GRADERS, settings=["train", "all"], k=[1, 2], combinations=15)
        report(["w"], options=ReportOptions(figures=False, style="slide"))
        made = report(["w"], options=ReportOptions(figures=False, style="paper"))
        assert not (made.page.parent / "slide").exists()  # the second report has replaced the first
    return Reported(str(folder / "runs" / "w"), folder / made.page.parent / "paper")


def test_tidy_scores_have_one_row_for_each_number(paper: Reported) -> None:
    rows = paper.scores()

    keys = [tuple(row[name] for name in ("run", "student", "setting", "k", "grader", "metric")) for row in rows]
    full = {key[1:5]: row for key, row in zip(keys, rows, strict=True) if key[-1] == "full_marks"}
    assert len(set(keys)) == len(keys)
    assert len(full) == 16
    for score in run_scores(paper.run):
        if score.metric == "full_marks":
            row = full[score.student, score.setting, str(score.k), score.grader]
            numbers = [float(row[name]) for name in ("value", "low", "high", "n")]
            assert numbers == [score.value, score.low, score.high, score.complete]
    assert {row["unit"] for row in rows if row["metric"] == "full_marks_among_valid"} == {"texts"}


def test_tidy_parquet_holds_the_same_rows(paper: Reported) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")

    rows = parquet.read_table(paper.folder / "scores.parquet").to_pylist()

    assert [{k: "" if v is None else str(v) for k, v in row.items()} for row in rows] == paper.scores()


def test_a_clear_difference_from_the_base_has_a_star_in_one_float(paper: Reported) -> None:
    text = (paper.folder / "full-marks.tex").read_text(encoding="ascii")

    rows = [line for line in text.splitlines() if line.endswith("\\\\") and " & " in line][1:]
    assert text.count("\\begin{table") == 1
    assert len(rows) == 8  # settings, graders and students
    assert all(("^{*}" in row) == (" & m1 & " in row) for row in rows)
    assert all(("\\textbf" in row) == (" & m1 & " in row) for row in rows)
    assert "corrected by Holm" in text


def test_figures_of_a_paper_are_as_wide_as_a_column_or_a_page(paper: Reported) -> None:
    figures = sorted((paper.folder / "figures").glob("*.pdf"))

    pages = {file.stem: file.read_bytes() for file in figures}
    widths = {name: _width_of(page) / 72 for name, page in pages.items()}
    assert len(widths) > 3
    assert {name: width for name, width in widths.items() if not any(abs(width - w) < 0.01 for w in (3.35, 6.9))} == {}
    assert all(b"/CreationDate" not in page for page in pages.values())


def _width_of(pdf: bytes) -> float:
    (box,) = re.findall(rb"/MediaBox \[ ?([^\]]*)\]", pdf)
    return float(box.split()[2])


@pytest.mark.parametrize(
    ("style", "drawn", "size"),
    [
        ("paper", (4.4, 3.3), (3.35, 2.5125)),  # fits into a column
        ("paper", (6.9, 3.3), (6.9, 3.3)),  # its letters would be too small in a column
        ("slide", (4.1, 2.0), (12.3, 6.0)),
    ],
)
def test_a_style_decides_the_size_of_a_figure(
    style: str, drawn: tuple[float, float], size: tuple[float, float]
) -> None:
    assert STYLES[style].size(*drawn) == pytest.approx(size)


def test_the_page_keeps_its_own_style() -> None:
    with house_style(STYLES["slide"]):
        assert new_figure(4.1, 2.0).get_figwidth() == 12.3
    with house_style():
        assert new_figure(4.1, 2.0).get_figwidth() == 4.1
