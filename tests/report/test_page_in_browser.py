"""The first page in a real browser: the first screen, tables that fit, definitions, dark, print and access."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from skillmix.report.records import ReportOptions
from skillmix.report.write import report
from tests.report.cases import run_document
from tests.report.conftest import inside
from tests.report.test_browser import assert_quiet, browser, click, shown, wait

__all__ = ["browser"]  # a fixture

HEIGHTS = {1400: 900, 400: 800}
AXE = "to run it: npm install --no-save axe-core in the repository, or set SKILLMIX_AXE to the path of axe.min.js"


@contextmanager
def window(browser: Any, width: int, *, height: int = 900, dark: bool = False, media: str = "") -> Iterator[None]:
    size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
    scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": media, "features": [scheme]})
    try:
        yield
    finally:
        browser.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
        browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "", "features": []})


def open_page(browser: Any, folder: Path, address: str = "") -> None:
    browser.get("about:blank")
    browser.get(f"{(folder / 'index.html').resolve().as_uri()}{address}")
    wait(browser, "document.readyState === 'complete'")


def box(browser: Any, selector: str) -> dict[str, float]:
    """The place of an element in the window, without scrolling."""
    found: dict[str, float] = browser.execute_script(
        "const b = document.querySelector(arguments[0]).getBoundingClientRect();"
        "return {left: b.left, top: b.top, right: b.right, bottom: b.bottom, width: b.width, height: b.height}",
        selector,
    )
    return found


@pytest.mark.parametrize("width", HEIGHTS)
def test_the_first_screen_holds_the_sentence_the_figure_and_two_texts(browser: Any, folder: Path, width: int) -> None:
    height = HEIGHTS[width]
    with window(browser, width, height=height):
        open_page(browser, folder)
        for selector in ("h1", "#figure-result img", ".example:nth-of-type(1)", ".example:nth-of-type(2)"):
            place = box(browser, selector)
            assert place["width"] > 100 and place["height"] > 20, selector
            assert place["left"] >= 0 and place["right"] <= width and place["top"] >= 0, selector
            assert place["bottom"] <= height, selector
        assert browser.execute_script("return document.querySelector('#figure-result img').naturalWidth") > 0
        assert_quiet(browser)


@pytest.mark.parametrize("width", HEIGHTS)
def test_every_table_fits_or_scrolls_inside_itself(browser: Any, folder: Path, width: int) -> None:
    with window(browser, width):
        open_page(browser, folder)
        browser.execute_script("document.querySelectorAll('details').forEach((d) => { d.open = true; })")
        assert browser.execute_script("return document.documentElement.scrollWidth") <= width
        outside = browser.execute_script(
            "return [...document.querySelectorAll('.scroll')]"
            ".filter((e) => e.getBoundingClientRect().right > innerWidth).map((e) => e.getAttribute('aria-label'))"
        )
        assert outside == []


def test_on_a_phone_names_stay_in_their_column_and_the_other_pages_in_sight(browser: Any, folder: Path) -> None:
    with window(browser, 400):
        open_page(browser, folder)
        assert [box(browser, f"nav a[href='{page}.html']")["right"] <= 400 for page in ("compare", "texts")] == [
            True
        ] * 2
        wide = browser.execute_script(
            "return [...document.querySelectorAll('#skills tbody th')].filter((e) => e.offsetHeight).filter((e) => {"
            "const range = document.createRange(); range.selectNodeContents(e);"
            "return range.getBoundingClientRect().right > e.getBoundingClientRect().right; }).map((e) => e.textContent)"
        )
        assert wide == []


@pytest.fixture(scope="module")
def six_k(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A report of two students and two graders at k = 1 to 6."""
    folder = tmp_path_factory.mktemp("six")
    step = {"name": "e", "stage": "evaluate", "students": ["a-student", "b-student"], "graders": ["judge", "strict"]}
    document = {
        "name": "six",
        "catalog": "paper",
        "students": {name: {"model": "scripted:student?skill=0.8"} for name in ("a-student", "b-student")},
        "graders": {name: {"model": "scripted:grader?noise=0.2", "rounds": 1} for name in ("judge", "strict")},
        "steps": [{**step, "k": [1, 2, 3, 4, 5, 6], "combinations": 2, "generations": 1}],
    }
    with inside(folder):
        run = run_document(folder, document)
        return report([str(run)], options=ReportOptions(figures=False)).page.resolve().parent


def test_full_marks_up_to_k_6_need_no_scrolling_and_no_word_is_broken(browser: Any, six_k: Path) -> None:
    with window(browser, 1400):
        open_page(browser, six_k)
        inner, outer = browser.execute_script(
            "const e = document.querySelector('#scores-by-k .view-1 .scroll'); return [e.scrollWidth, e.clientWidth]"
        )
        assert inner <= outer
        heights = browser.execute_script(
            "return [...document.querySelectorAll('#scores-by-k .view-1 tbody .short')].map((e) => {"
            "const range = document.createRange(); range.selectNodeContents(e);"
            "return new Set([...range.getClientRects()].map((r) => Math.round(r.top))).size; })"
        )
        assert heights and set(heights) <= {0, 1}, "a name is on two lines"


def test_a_switch_shows_another_metric_without_a_script(browser: Any, folder: Path) -> None:
    open_page(browser, folder)
    labels = shown(browser, "#scores-by-k .views > label")
    assert labels[:3] == ["full marks", "all skills", "skill fraction"]

    visible = (
        "return [...document.querySelectorAll('#scores-by-k .view')].filter((v) => v.offsetHeight)"
        ".map((v) => v.querySelector('caption').textContent)"
    )
    assert browser.execute_script(visible) == ["Scores by k: full marks"]
    click(browser, "#scores-by-k .views > label:nth-of-type(3)")
    assert browser.execute_script(visible) == ["Scores by k: skill fraction"]


def popover(browser: Any) -> str:
    """The words of the definition that is shown; nothing if none is."""
    found: str = browser.execute_script(
        "const e = document.getElementById('definition'); return e.hidden ? '' : e.textContent"
    )
    return found


def test_a_skill_shows_its_definition_by_hover_focus_and_click(browser: Any, folder: Path) -> None:
    from selenium.webdriver.common.action_chains import ActionChains
    from selenium.webdriver.common.by import By
    from selenium.webdriver.common.keys import Keys

    open_page(browser, folder)
    browser.execute_script("document.getElementById('skills').open = true")
    link = browser.find_element(By.CSS_SELECTOR, "#skills tbody th a.defined")
    entry = browser.execute_script("return document.getElementById(arguments[0].hash.slice(1)).textContent", link)
    assert link.text in entry
    assert browser.execute_script("return document.getElementById(arguments[0].getAttribute('aria-describedby'))", link)

    browser.execute_script("arguments[0].scrollIntoView({block: 'center', behavior: 'instant'})", link)
    ActionChains(browser).move_to_element(link).perform()
    wait(browser, "!document.getElementById('definition').hidden")
    assert popover(browser) == entry and "“" not in popover(browser)
    ActionChains(browser).move_to_element(browser.find_element(By.CSS_SELECTOR, "#skills h3")).perform()
    wait(browser, "document.getElementById('definition').hidden")

    browser.execute_script("arguments[0].focus()", link)
    assert popover(browser) == entry
    ActionChains(browser).send_keys(Keys.ESCAPE).perform()
    assert popover(browser) == ""

    link.click()
    assert popover(browser) == entry
    before = browser.current_url
    ActionChains(browser).move_to_element(browser.find_element(By.CSS_SELECTOR, "#skills h3")).pause(0.4).perform()
    assert popover(browser) == entry, "a definition that was clicked stays"
    ActionChains(browser).send_keys(Keys.ESCAPE).perform()
    assert popover(browser) == "" and browser.current_url == before
    assert_quiet(browser)


def test_terms_have_one_glossary(browser: Any, folder: Path) -> None:
    open_page(browser, folder)
    missing = browser.execute_script(
        "return [...document.querySelectorAll('a.defined')].map((a) => a.hash)"
        ".filter((h) => !document.querySelector(h))"
    )
    assert missing == []
    click(browser, "thead a.defined")
    assert popover(browser)


def test_the_page_is_dark_where_the_reader_prefers_it(browser: Any, folder: Path) -> None:
    light = "return getComputedStyle(document.body).backgroundColor.match(/\\d+/g).slice(0, 3).map(Number)"
    with window(browser, 1400, dark=True):
        open_page(browser, folder)
        assert max(browser.execute_script(light)) < 40
    with window(browser, 1400):
        open_page(browser, folder)
        assert min(browser.execute_script(light)) > 230
    assert "prefers-color-scheme: dark" in (folder / "figures" / "result.svg").read_text(encoding="utf-8")


def test_print_shows_what_the_page_folds_away_and_cuts_nothing(browser: Any, folder: Path) -> None:
    with window(browser, 1031, media="print"):
        open_page(browser, folder)
        browser.execute_script("window.dispatchEvent(new Event('beforeprint'))")
        hidden = browser.execute_script(
            "return [...document.querySelectorAll('.view, details:not(.forms) > *:not(.panels), table.long tr')]"
            ".filter((e) => !e.offsetHeight).map((e) => e.outerHTML.slice(0, 80))"
        )
        assert hidden == []
        assert box(browser, "nav")["height"] == 0
        wide = browser.execute_script(
            "return [...document.querySelectorAll('table, img, pre, h1, p')]"
            ".filter((e) => e.getBoundingClientRect().right > innerWidth + 1)"
            ".map((e) => (e.querySelector('caption') || e).textContent.slice(0, 60))"
        )
        assert wide == []
        browser.execute_script("window.dispatchEvent(new Event('afterprint'))")
        assert browser.execute_script("return document.querySelectorAll('details[open]').length") == 0


def test_the_first_key_leads_to_the_result(browser: Any, folder: Path) -> None:
    from selenium.webdriver.common.action_chains import ActionChains
    from selenium.webdriver.common.keys import Keys

    with window(browser, 1400):
        open_page(browser, folder)
        ActionChains(browser).send_keys(Keys.TAB).perform()
        assert browser.execute_script("return document.activeElement.className") == "skip"
        assert box(browser, ".skip")["left"] >= 0
        ActionChains(browser).send_keys(Keys.ENTER).perform()
        assert browser.execute_script("return document.activeElement.id") == "result"


def test_every_table_has_row_headers_and_a_caption_and_every_figure_its_numbers(browser: Any, folder: Path) -> None:
    open_page(browser, folder)
    rows = "table tbody tr:not(.body-heading)"
    assert browser.execute_script(
        f"return [...document.querySelectorAll('{rows}')].every((r) => r.firstElementChild.matches('th[scope=row]'))"
    )
    assert all(shown(browser, "table caption"))
    assert browser.execute_script("return [...document.querySelectorAll('table')].every((t) => t.caption)")
    alternatives = browser.execute_script("return [...document.images].map((i) => i.alt)")
    assert alternatives and [words for words in alternatives if not any(c.isdigit() for c in words)] == []


def test_the_button_copies_or_selects_the_command(browser: Any, folder: Path) -> None:
    open_page(browser, folder)
    command = shown(browser, "#command")[0]
    assert command.splitlines() == [
        "skillmix run experiments/world.yaml",
        "skillmix report world --rules both --published",
    ]

    click(browser, "#copy")
    wait(browser, "document.getElementById('copied').textContent !== ''")

    assert shown(browser, "#copied")[0].startswith(("Copied", "Selected"))
    assert_quiet(browser)


def axe_script() -> str:
    paths = [os.environ.get("SKILLMIX_AXE"), Path(__file__).parents[2] / "node_modules" / "axe-core" / "axe.min.js"]
    found = next((Path(path) for path in paths if path and Path(path).is_file()), None)
    if found is None:
        pytest.skip(f"axe-core is not here; {AXE}")
    return found.read_text(encoding="utf-8")


@pytest.mark.parametrize(("width", "dark"), [(1400, False), (400, True)], ids=["wide and light", "narrow and dark"])
def test_axe_finds_nothing_serious(browser: Any, six_k: Path, width: int, dark: bool) -> None:
    axe = axe_script()
    with window(browser, width, dark=dark):
        open_page(browser, six_k)
        browser.execute_script("document.querySelectorAll('details').forEach((d) => { d.open = true; })")
        browser.execute_script(axe)
        browser.set_script_timeout(60)
        violations = browser.execute_async_script(
            "const done = arguments[0];"
            "axe.run(document, {resultTypes: ['violations']}).then((found) => done(found.violations))"
        )
    serious = [(v["id"], v["nodes"][0]["html"]) for v in violations if v["impact"] in ("serious", "critical")]
    assert serious == []
