"""Every number in the tables and figures of a report, worked out a second time."""

import json
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from skillmix.catalog.files import load_catalog
from skillmix.catalog.novelty import MeasuredFrequencies
from skillmix.commands import main
from skillmix.report.records import ReportOptions
from skillmix.report.registry import ITEMS
from skillmix.scores.scoring import run_scores
from tests.report.cases import Reported, reported, run_document
from tests.report.conftest import inside
from tests.report.expected_figures import FIGURES, check_figure
from tests.report.expected_result import check_result
from tests.report.expected_scores import Case, Row
from tests.report.expected_tables import TABLES, expected
from tests.report.outcomes.expected_outcomes import OUTCOME_TABLES
from tests.report.second_run import SecondRun

MOST_BOOTSTRAP = 0.02
"""Ends of bootstraps stand on t quantiles, which the package takes from a series good to 0.2 %."""

MOST_PERMUTATION = 0.12
"""p-values of permutation tests come from other draws, 1,000 in the package and 2,000 here."""


def assert_table(printed: pd.DataFrame, rows: list[Row]) -> None:
    """The same columns, the same rows in any order, equal words and numbers."""
    assert rows
    assert list(printed.columns) == list(rows[0]), "a column is there that nobody works out again, or is missing"
    words = [name for name, value in rows[0].items() if isinstance(value, str) or name == "k"]
    records: list[Row] = [{str(name): value for name, value in row.items()} for row in printed.to_dict("records")]
    found = sorted(records, key=lambda row: [str(row[name]) for name in words])
    wanted = sorted(rows, key=lambda row: [str(row[name]) for name in words])
    assert [[str(row[n]) for n in words] for row in found] == [[str(row[n]) for n in words] for row in wanted]
    for one, other in zip(found, wanted, strict=True):
        for name in one.keys() - set(words):
            most = allowed(name, one)
            where = ({n: one[n] for n in words}, name)
            assert one[name] == pytest.approx(other[name], abs=most, rel=1e-9, nan_ok=True), where


def allowed(column: str, row: Row) -> float:
    """How far the two computations of a number may differ."""
    if "observed" in row and column == "p":
        return MOST_PERMUTATION
    if column in ("expected, same k low", "expected, same k high"):
        return 1.01 / float(row["texts"]) + 0.01  # shares of so many texts have no values in between
    return MOST_BOOTSTRAP if is_bootstrap(column) else 1e-9


BOOTSTRAPPED = ("fraction", "diff", "among valid", "observed", "expected, k = 1")


def is_bootstrap(column: str) -> bool:
    ends = column.endswith((" low", " high"))
    return column.endswith(("one_try_low", "one_try_high")) or (ends and any(n in column for n in BOOTSTRAPPED))


def table(reported: Reported, name: str) -> pd.DataFrame:
    words = {"seed": "Int64", "k": "Int64"}
    return pd.read_csv(reported.folder / "tables" / f"{name}.csv", dtype=words, keep_default_na=True)


def test_every_table_of_every_report(any_report: Reported) -> None:
    assert any_report.tables
    for name in any_report.tables:
        assert_table(table(any_report, name), expected(any_report.case, name))


def test_every_figure_of_every_report(any_report: Reported) -> None:
    assert any_report.figures.keys() == {f.stem for f in (any_report.folder / "figures").glob("*.svg")}
    for name, figure in any_report.figures.items():
        check_figure(name, figure, any_report.case)


def test_the_first_screen_of_every_report(any_report: Reported) -> None:
    check_result(any_report.folder, any_report.case)


def test_together_the_reports_hold_all_tables_and_figures_there_are(
    scripted: Reported, trained: Reported, by_code: Reported
) -> None:
    reports = (scripted, trained, by_code)

    # Scores are corrected where a model grades beside code or people: test_grader_cards.py has such a run.
    assert set(TABLES) - {"corrected-scores"} <= {name for reported in reports for name in reported.tables}
    assert set(FIGURES) <= {name for reported in reports for name in reported.figures}


def test_every_table_of_the_contents_is_claimed() -> None:
    told = {item.table for item in ITEMS if item.table}

    # No run here has several partitions: tests/steps/test_partitions_and_seeds.py has one.
    assert told - {"scores", "scores-all-metrics", "paper-table", "by-partition"} == {*TABLES, *OUTCOME_TABLES}


def test_a_table_with_a_column_that_nobody_claims_is_found(scripted: Reported) -> None:
    name = "graders-agreement"
    printed, rows = table(scripted, name), expected(scripted.case, name)
    assert_table(printed, rows)

    with pytest.raises(AssertionError, match="nobody works out"):
        assert_table(printed.assign(more=0.5), rows)
    with pytest.raises(AssertionError, match="compute the table brand-new"):
        expected(scripted.case, "brand-new")
    for column in printed.columns:
        if pd.api.types.is_numeric_dtype(printed[column]):
            with pytest.raises(AssertionError):
                assert_table(printed.assign(**{column: printed[column] + 0.1}), rows)


def test_the_scripted_run_has_texts_of_every_kind(scripted: Reported) -> None:
    graded: Any = scripted.case.run.graded

    assert {"fine", "no marker", "empty", "refused"} == set(graded["form"])
    assert any(None in points for points in graded["points"])


def test_the_run_graded_by_code_shows_skills_asked_for_and_others(by_code: Reported) -> None:
    for axes in by_code.figures["requested-and-unrequested"].axes:
        for bars in axes.containers:
            assert len({bar.get_height() for bar in bars}) > 1


def test_some_texts_of_the_run_graded_by_code_follow_an_example(by_code: Reported) -> None:
    counts = table(by_code, "texts-that-follow-an-example")

    assert 0 < counts["follow"].sum() < counts["texts"].sum()


def test_the_rules_differ_where_code_grades(by_code: Reported) -> None:
    assert set(table(by_code, "rules-side-by-side")["difference"]) > {0.0}


def test_a_run_that_draws_without_common_skills(tmp_path: Path) -> None:
    step = {"name": "e", "stage": "evaluate", "students": ["s"], "graders": ["g"], "settings": ["train", "all"]}
    document = {
        "name": "rare",
        "catalog": "paper",
        "exclude": ["common"],
        "students": {"s": {"model": "scripted:student?skill=0.9"}},
        "graders": {"g": {"model": "scripted:grader", "rounds": 1}},
        "steps": [{**step, "k": [2, 5], "combinations": 5, "generations": 2}],
    }
    with inside(tmp_path):
        rare = reported(Case(SecondRun(run_document(tmp_path, document))), ReportOptions(figures=False))

    assert "drawn without common" in (rare.folder / "tables" / "common-skills-removed.md").read_text(encoding="utf-8")
    for name in rare.tables:
        assert_table(table(rare, name), expected(rare.case, name))


def test_the_novelty_bound_uses_measured_frequencies_and_says_where_it_says_nothing(tmp_path: Path) -> None:
    step = {"name": "e", "stage": "evaluate", "students": ["s"], "graders": ["g"], "settings": ["all"]}
    document = {
        "name": "rare",
        "catalog": "paper",
        "exclude": ["common"],
        "students": {"s": {"model": "scripted:student?skill=0.9"}},
        "graders": {"g": {"model": "scripted:grader", "rounds": 1}},
        "steps": [{**step, "k": [3], "combinations": 5, "generations": 1}],
    }
    skills = {skill.name: 0.001 for skill in load_catalog("paper").skills}

    def note(frequencies: MeasuredFrequencies | None) -> str:
        options = ReportOptions(figures=False, frequencies=frequencies)
        folder = reported(Case(SecondRun(run_document(tmp_path, document))), options).folder
        return (folder / "tables" / "common-skills-removed.md").read_text(encoding="utf-8")

    with inside(tmp_path):
        plain = note(None)
        measured = note(MeasuredFrequencies("frequencies.json", skills, 1.0))

    # 0.0144^3 x 0.0022 x 2e12 x 5e10 / 1.2e12, and the same with .001 for each skill
    assert "547.43 expected occurrences" in plain and "give no evidence of new texts" in plain
    assert "by measured frequencies: 0.18; full marks above the bound" in " ".join(measured.split())


def test_every_table_is_also_written_as_json(by_code: Reported) -> None:
    for name in by_code.tables:
        rows = json.loads((by_code.folder / "tables" / f"{name}.json").read_text(encoding="utf-8"))
        printed = table(by_code, name)

        assert len(rows) == len(printed)
        assert [list(row) for row in rows] == [list(printed.columns)] * len(rows)
    assert rows_of_templates(by_code)


def rows_of_templates(reported: Reported) -> list[Row]:
    rows: list[Row] = json.loads((reported.folder / "tables" / "templates.json").read_text(encoding="utf-8"))
    return [row for row in rows if row["full marks"] and row["same words"] is not None]


def test_a_step_that_draws_without_common_skills_and_one_that_is_graded_twice(tmp_path: Path) -> None:
    step = {"stage": "evaluate", "students": ["s"], "graders": ["g"], "settings": ["train", "all"], "k": [5]}
    size = {"combinations": 5, "generations": 2}
    document = {
        "name": "steps",
        "catalog": "paper",
        "students": {"s": {"model": "scripted:student?skill=0.9"}},
        "graders": {"g": {"model": "scripted:grader", "rounds": 1}, "h": {"model": "scripted:grader", "rounds": 1}},
        "steps": [
            {"name": "usual", **step, **size},
            {"name": "rare", **step, **size, "exclude": ["common"]},
            {"name": "again", "stage": "grade", "of": ["usual"], "graders": ["h"], "settings": ["all"]},
        ],
    }
    with inside(tmp_path):
        run_document(tmp_path, document)
        assert main(["report", "steps", "--no-figures"]) == 0
        scores = {(s.setting, s.grader): s for s in run_scores("steps") if s.metric == "full_marks"}
        removed = pd.read_csv("runs/steps/report/tables/common-skills-removed.csv").iloc[0]
        graders = pd.read_csv("runs/steps/report/tables/graders-side-by-side.csv")
        agreement = pd.read_csv("runs/steps/report/tables/graders-agreement.csv")

    for setting in ("train-without-common", "all-without-common"):
        assert removed[f"{setting}, full marks value"] == scores[setting, "g"].value
    assert not any(column.startswith(("train,", "all,")) for column in removed.index)
    # The second grader has graded one setting, and only that one has two graders.
    assert list(zip(graders["setting"], graders["grader"], strict=True)) == [("all", "g"), ("all", "h")]
    assert dict(zip(agreement["criterion"], agreement["criteria of texts"], strict=True))["sense"] == 5 * 2
