"""The section on graders of a run that code and a model grade."""

import pytest

from skillmix.report.records import ReportOptions
from tests.report.cases import Reported, code_case, reported
from tests.report.conftest import inside
from tests.report.expected_tables import expected
from tests.report.test_numbers import assert_table, table

TABLES = ("grader-cards", "grader-cards-by-skill", "grader-bias", "grader-steadiness", "corrected-scores")


@pytest.fixture(scope="module")
def carded(tmp_path_factory: pytest.TempPathFactory) -> Reported:
    folder = tmp_path_factory.mktemp("carded")
    with inside(folder):
        case = code_case(folder, {"judge": {"model": "scripted:grader?noise=0.4", "rounds": 3}})
        return reported(case, ReportOptions(figures=False))


@pytest.mark.parametrize("name", TABLES)
def test_every_number_of_the_cards_is_worked_out_again(carded: Reported, name: str) -> None:
    assert_table(table(carded, name), expected(carded.case, name))


def test_scores_are_corrected_towards_code(carded: Reported) -> None:
    corrected = table(carded, "corrected-scores")

    assert set(corrected["truth"]) == {"rules"}
    assert set(corrected["grader"]) == {"judge"}
    assert (corrected["raw"] != corrected["corrected"]).any()


def test_the_page_shows_the_cards(carded: Reported) -> None:
    page = carded.made.page.read_text(encoding="utf-8")

    assert "Graders against the reference" in page
    assert "Full marks, corrected for the errors of the grader" in page


def test_a_report_of_one_grader_has_no_cards(by_code: Reported) -> None:
    assert not set(TABLES) & set(by_code.tables)
