"""The report in a real browser, from the file system, without a network."""

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from skillmix.report.records import ReportOptions
from skillmix.report.write import report
from tests.commands.test_reasons import make_evil_reasons
from tests.report.conftest import inside
from tests.report.test_pages import make_evil_run

INSTALL = "to run it: apt-get install chromium chromium-driver; pip install selenium"


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    chromium, driver = (shutil.which(name) for name in ("chromium", "chromedriver"))
    if chromium is None or driver is None:
        pytest.skip(f"Chromium and its driver are not here; {INSTALL}")
    webdriver = pytest.importorskip("selenium.webdriver", reason=f"selenium is not here; {INSTALL}")
    options = webdriver.ChromeOptions()
    options.binary_location = chromium
    for argument in (
        "--headless=new",
        "--no-sandbox",
        "--disable-dev-shm-usage",
        "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE localhost",
        "--window-size=1400,1000",
    ):
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    made = webdriver.Chrome(options=options, service=webdriver.ChromeService(driver))
    made.set_page_load_timeout(60)
    yield made
    made.quit()


def wait(browser: Any, condition: str) -> None:
    from selenium.webdriver.support.ui import WebDriverWait

    WebDriverWait(browser, 30, poll_frequency=0.05).until(lambda b: b.execute_script(f"return {condition}"))


def shown(browser: Any, selector: str) -> list[str]:
    texts: list[str] = browser.execute_script(
        "return [...document.querySelectorAll(arguments[0])].map((e) => e.textContent)", selector
    )
    return texts


def click(browser: Any, selector: str) -> None:
    browser.execute_script("document.querySelector(arguments[0]).click()", selector)


def open_texts(browser: Any, folder: Path, address: str) -> None:
    browser.get("about:blank")
    browser.get(f"{(folder / 'texts.html').resolve().as_uri()}#{address}")
    wait(browser, "document.getElementById('list')?.dataset.state === 'done'")


def assert_quiet(browser: Any) -> None:
    assert [entry["message"] for entry in browser.get_log("browser")] == []
    loaded = browser.execute_script("return performance.getEntriesByType('resource').map((e) => e.name)")
    assert all(name.startswith("file://") for name in loaded)


def test_a_click_on_a_value_leads_to_the_text_and_its_votes(browser: Any, folder: Path) -> None:
    browser.get((folder / "index.html").resolve().as_uri())
    assert_quiet(browser)
    assert (
        browser.execute_script("return [...document.images].filter((i) => i.complete && !i.naturalWidth).length") == 0
    )

    click(browser, "#scores-train td.score a")
    wait(browser, "document.getElementById('list')?.dataset.state === 'done'")

    assert browser.execute_script("return document.getElementById('a').selectedOptions[0].text") == "base"
    assert len(shown(browser, ".card")) == 12
    assert any("Scripted words" in text for text in shown(browser, "blockquote"))
    browser.execute_script(
        "[...document.querySelectorAll('.actions button')].find((b) => b.textContent.startsWith('Votes')).click()"
    )
    wait(browser, "document.querySelector('.votes table') !== null")
    assert "judge, round 1" in shown(browser, ".votes th")
    replies = shown(browser, ".votes .raw pre")
    assert any(reply.startswith("Here's the grading table:") for reply in replies)
    assert any("[user]" in prompt and "Scripted words" in prompt for prompt in replies)
    assert_quiet(browser)


def test_search_and_filters_find_texts(browser: Any, folder: Path) -> None:
    open_texts(browser, folder, "k=3&setting=all&a=world/m123")
    text = shown(browser, "blockquote")[0]
    word = text.split()[2]

    open_texts(browser, folder, f"q={word}")
    assert all(word in found for found in shown(browser, "blockquote"))
    assert word in shown(browser, "mark")

    open_texts(browser, folder, "outcome=format failure&a=world/base")
    assert {"no marker", "empty"} >= set(shown(browser, ".who .badge")) - {"cut off"} > set()

    open_texts(browser, folder, "q=there is no such word anywhere")
    assert "No text fits" in shown(browser, "#status")[0]
    assert_quiet(browser)


def test_one_student_stands_beside_another_on_the_same_combination(browser: Any, folder: Path) -> None:
    open_texts(browser, folder, "a=world/base&b=world/m123&k=2&setting=held-out")

    for number in range(len(shown(browser, ".card"))):
        heads = shown(browser, f".card:nth-child({number + 1}) .column h3")
        assert heads == ["base", "m123"]
    assert_quiet(browser)


def test_the_conversation_shows_prompts_and_replies(browser: Any, folder: Path) -> None:
    open_texts(browser, folder, "k=2&a=world/m123")

    browser.execute_script(
        "[...document.querySelectorAll('.actions button')].find((b) => b.textContent === 'Conversation').click()"
    )
    wait(browser, "document.querySelector('.talk') !== null")

    assert shown(browser, ".talk summary") == ["Prompt 1", "Reply 1", "Prompt 2", "Reply 2, the last"]
    assert shown(browser, ".talk pre")[3].startswith("Answer: Scripted words")


def test_a_planted_script_does_not_run(browser: Any, tmp_path: Path) -> None:
    with inside(tmp_path):
        make_evil_run(tmp_path)
        made = report(["evil"], options=ReportOptions(figures=False))
        open_texts(browser, made.page.resolve().parent, "")
        click(browser, ".actions button")
        wait(browser, "document.querySelector('.votes') !== null")

        assert browser.execute_script("return window.ran === undefined")
        assert any("<script>window.ran=1</script><img src=x" in text for text in shown(browser, "blockquote"))
        assert {"U+202E", "U+202C", "U+0007"} <= set(shown(browser, ".hidden-sign"))
        assert browser.execute_script("return document.querySelectorAll('#list script, #list img').length") == 0
        assert_quiet(browser)


def test_a_reason_stands_beside_its_point_as_text(browser: Any, tmp_path: Path) -> None:
    with inside(tmp_path):
        reason = make_evil_reasons(tmp_path)
        made = report(["evil"], options=ReportOptions(figures=False))
        open_texts(browser, made.page.resolve().parent, "")

        assert shown(browser, ".point.p0 .reason") == [reason]
        assert shown(browser, ".point.p1 .reason") == []
        assert browser.execute_script("return document.querySelectorAll('#list img').length") == 0
        assert browser.execute_script("return window.ran === undefined")
        assert_quiet(browser)


@pytest.mark.parametrize("width", [1400, 400])
def test_nothing_is_wider_than_the_window(browser: Any, folder: Path, width: int) -> None:
    size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": False}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    try:
        for page in ("index.html", "texts.html#a=world/base&b=world/m123", "compare.html"):
            browser.get("about:blank")
            browser.get((folder / page.partition("#")[0]).resolve().as_uri() + page[page.find("#") :] * ("#" in page))
            wait(browser, "document.readyState === 'complete'")
            assert browser.execute_script("return document.documentElement.scrollWidth") <= width, page
    finally:
        browser.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
