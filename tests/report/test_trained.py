"""A run that makes data, trains on it and asks before and after: what its report and its table say."""

import re
from dataclasses import replace
from itertools import takewhile
from pathlib import Path

import pytest

from skillmix.commands import main
from skillmix.scores.cells import Cell
from skillmix.scores.comparisons import before_and_after
from tests.report.cases import Reported
from tests.report.conftest import inside
from tests.report.test_findings import cell, contender, lineage
from tests.report.test_numbers import table


def page_of(reported: Reported) -> str:
    return reported.made.page.read_text(encoding="utf-8")


def test_the_report_shows_what_training_left(trained: Reported) -> None:
    assert {"training-curves", "skills-before-and-after", "yield"} <= trained.figures.keys()
    assert "data-efficiency" not in trained.figures  # one tuned student is one point
    assert {"lineage", "before-and-after", "findings", "yield", "seen-and-reserved"} <= set(trained.tables)
    assert not any("trained nothing" in gap or "skillmix.json" in gap for gap in trained.made.gaps)
    losses = [line.get_label() for line in trained.figures["training-curves"].axes[0].lines]
    assert losses == ["m12, answers", "m12, validation"]


def test_lineage_leads_from_the_base_over_the_data_to_the_tuned_student(trained: Reported) -> None:
    table = (trained.folder / "tables" / "lineage.md").read_text(encoding="utf-8")

    row = next(line for line in table.splitlines() if line.startswith("| m12"))
    base = trained.case.run.document["students"]["base"]["model"]
    assert [cell.strip() for cell in row.strip("|").split("|")][:4] == ["m12", base, "d12", "D(1,2)"]


def test_findings_of_so_little_data_say_that_it_is_too_little(trained: Reported) -> None:
    page = page_of(trained).partition('<details class="part" id="findings">')[2].partition('<section id="scores">')[0]

    verdicts = re.findall(r'<p class="verdict">([^<]+)</p>', page)
    assert verdicts == ["too little data"] * 4
    for sentence in re.findall(r'too little data</p>\s*<p class="sentence">(.*?)<span', page, flags=re.DOTALL):
        assert sentence.startswith("m12, tuned on D(1,2), compared with base, changes full marks by")
        assert re.search(
            r"over 4 combinations, for this one training run; (about [\d,]+ more combinations|how many more)", sentence
        )


def test_the_page_does_not_call_a_difference_over_four_combinations_noise(trained: Reported) -> None:
    page = page_of(trained)

    for setting in ("train", "held-out"):
        block = page.partition(f'id="scores-{setting}"')[2].partition("</section>")[0]
        assert "format valid" in block
        assert "Within noise" not in block
    rows = table(trained, "before-and-after")
    assert set(rows["remark"]) == {"too few combinations"} and rows["difference low"].isna().all()


@pytest.mark.parametrize("command", ["run", "evaluate", "scores"])
def test_the_terminal_says_the_same(trained: Reported, command: str, capsys: pytest.CaptureFixture[str]) -> None:
    run = trained.case.run.path
    with inside(run.parents[1]):
        assert main([command, "tune" if command == "scores" else "tune.yaml"]) == 0

    said = capsys.readouterr().out
    header = next(line for line in said.splitlines() if line.startswith("|") and "format valid" in line)
    column = [name.strip() for name in header.split("|")].index("format valid")
    below = takewhile(lambda line: line.startswith("|"), said.partition(header)[2].splitlines()[1:])
    rows = [row for row in (line.split("|") for line in below) if {"base", "m12"} & {cell.strip() for cell in row}]
    assert len(rows) >= 2
    # A model with random weights writes no marker.
    assert {row[column].strip() for row in rows} == {".00"}
    flat = " ".join(said.split())  # lines are wrapped
    for setting in ("train", "held-out"):
        sentences = re.split(r"(?=With (?:one|two|three) skills? \()", flat)
        found = [sentence for sentence in sentences if re.match(rf"With \w+ skills? \({setting}\)", sentence)]
        assert len(found) == 3 and all("m12" in sentence and "too few combinations" in sentence for sentence in found)
    headline = page_of(trained).partition("<h1>")[2].partition("<span")[0]
    assert headline.startswith("Too few combinations to tell m12 and base apart") and headline in flat


def test_verdicts_follow_the_corrected_p_and_the_interval() -> None:
    cells: list[Cell] = []
    for k, after in ((1, 60), (2, 3), (3, 36), (4, 37)):
        cells += [cell("base", 30, 100, k=k), cell("m12", after, 100, k=k)]

    changes = before_and_after([contender("base"), contender("m12", lineage(1, 2))], {c.key: c for c in cells})

    assert [c.row.verdict for c in changes] == ["a gain", "a loss", "a gain", "a gain"]
    assert [c.row.p_corrected for c in changes[2:]] == pytest.approx([2 / 2**6, 2 * 2 / 2**7])
    fewer = before_and_after([contender("base"), contender("m12", lineage(1, 2))], {c.key: c for c in cells[:6]})
    assert fewer[2].row.p_corrected == pytest.approx(2 / 2**6)


def test_rows_that_cannot_show_anything_do_not_count_in_the_correction() -> None:
    cells = [cell("base", 30, 100, k=1), cell("m12", 37, 100, k=1)]
    for k in (2, 3, 4, 5):
        cells += [cell("base", 0, 100, k=k), cell("m12", 5, 100, k=k)]

    changes = before_and_after([contender("base"), contender("m12", lineage(1, 2))], {c.key: c for c in cells})

    assert [c.row.tests for c in changes] == [1] * 5
    assert changes[0].row.p_corrected == changes[0].row.p == pytest.approx(2 / 2**7)
    assert {(c.row.p_corrected, c.row.verdict) for c in changes[1:]} == {(2 / 2**5, "within noise")}


def test_without_a_base_or_shared_combinations_nothing_is_said() -> None:
    tuned = [contender("m1", lineage(1)), contender("m12", lineage(1, 2))]
    cells = {c.key: c for c in (cell("m1", 3, 10), cell("m12", 5, 10))}

    assert before_and_after(tuned, cells) == []
    assert before_and_after([contender("base"), *tuned], cells) == []


def test_a_student_without_lineage_changes_nothing(by_code: Reported, capsys: pytest.CaptureFixture[str]) -> None:
    assert "before-and-after" not in by_code.tables
    capsys.readouterr()

    assert main(["scores", str(by_code.case.run.path)]) == 0

    assert "Within noise" not in capsys.readouterr().out


def test_a_refusal_has_no_format(scripted: Reported, capsys: pytest.CaptureFixture[str]) -> None:
    run = scripted.case.run
    capsys.readouterr()

    assert main(["scores", str(run.path), "--wide"]) == 0

    said = capsys.readouterr().out
    found = {}
    header = next(line for line in said.splitlines() if line.startswith("| student"))
    column = [name.strip() for name in header.strip("|").split("|")].index("format valid")
    for line in said.splitlines():
        cells = [c.strip() for c in line.strip("|").split("|")]
        if len(cells) > column and cells[3].isdecimal():
            found[cells[0], cells[1], cells[2], int(cells[3])] = cells[column]
    assert set(found) == set(run.places)
    for where, printed in found.items():
        assert printed.lstrip("1") == f"{run.format_valid(where):.2f}".lstrip("01"), where
    assert (run.texts["form"] == "refused").any() and len(set(found.values())) > 3


def test_files_of_the_run_are_not_touched(trained: Reported, tmp_path: Path) -> None:
    folder = trained.case.run.path
    before = {p: p.stat().st_mtime_ns for p in (folder / "m12").rglob("*") if p.is_file()}

    assert main(["report", str(folder), "--output", str(tmp_path / "report"), "--no-figures"]) == 0

    assert {p: p.stat().st_mtime_ns for p in (folder / "m12").rglob("*") if p.is_file()} == before


def test_a_base_that_draws_otherwise_is_not_the_base() -> None:
    hot = replace(contender("hot"), decoding="temperature 1.5")
    base, tuned = (replace(c, decoding="temperature 0.2") for c in (contender("base"), contender("m1", lineage(1))))
    cells = {c.key: c for c in (cell("hot", 0, 50), cell("base", 20, 50), cell("m1", 20, 50))}

    assert {c.base for c in before_and_after([hot, base, tuned], cells)} == {"base"}
    assert before_and_after([hot, tuned], cells) == []
