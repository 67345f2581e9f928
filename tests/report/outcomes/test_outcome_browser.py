"""Outcomes in a real browser: a share leads to its texts, with the outcome and the words of the grader."""

from typing import Any

from tests.report.outcomes.test_outcome_report import Made, made
from tests.report.test_browser import assert_quiet, browser, click, open_texts, shown, wait

__all__ = ["browser", "made"]  # fixtures


def test_a_share_leads_to_the_texts_with_its_outcome(browser: Any, made: Made) -> None:
    browser.get((made.folder / "index.html").resolve().as_uri())
    assert_quiet(browser)
    assert (
        browser.execute_script(
            "return document.querySelector('#figure-outcomes img.whole, #figure-outcomes img').naturalWidth"
        )
        > 0
    )
    # The second share of the first row: the probes that `before` refuses at k = 0.
    browser.execute_script(
        "document.querySelectorAll('#outcomes tbody tr')[0].querySelectorAll('td a.value')[1].click()"
    )
    wait(browser, "document.getElementById('list')?.dataset.state === 'done'")

    own = made.second.cell("before", "probes", 0)
    refused = sum(may == {"refuses"} for may in own["may"])
    assert f"{refused} texts of {refused} combinations." in shown(browser, "#status")[0]
    assert set(shown(browser, ".points > .badge")) == {"refuses"}
    assert not set(shown(browser, ".card h2")) & made.second.controls
    assert set(shown(browser, ".facts")) == {"k = 0alllink"}
    assert any("the reply has the code word for it" in words for words in shown(browser, ".point .reason"))
    assert_quiet(browser)


def test_the_filter_of_outcomes_has_those_of_the_run_and_votes_are_shown(browser: Any, made: Made) -> None:
    open_texts(browser, made.folder, "outcome=undecided")
    options = shown(browser, "#outcome option")
    assert options[1:5] == ["complies", "refuses", "evades", "undecided"] and "full marks" not in options
    undecided = sum(len(may) > 1 for may in made.second.texts["may"])
    assert shown(browser, "#status")[0].startswith(f"{undecided} texts of")

    click(browser, ".actions button")
    wait(browser, "document.querySelector('.votes table') !== null")
    assert shown(browser, ".votes tbody th") == ["complies", "refuses", "evades"]
    assert "1 is the outcome that a vote names" in shown(browser, ".votes .note")[0]
    assert any("not counted: the reply names several outcomes" in words for words in shown(browser, ".votes summary"))
    assert_quiet(browser)
