"""The pages of texts and of two students in a real browser: comparison, reasons, sorting, links, keys, filters."""

import json
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, quote

import pytest

from skillmix.commands import main
from skillmix.render import signed_with_interval
from skillmix.report.records import ReportOptions
from skillmix.report.write import report
from skillmix.scores.comparisons import compare_students
from skillmix.scores.text_rows import run_texts
from tests.report.cases import Reported, run_document
from tests.report.conftest import inside
from tests.report.test_browser import assert_quiet, browser, click, open_texts, shown, wait
from tests.report.test_page_in_browser import axe_script, window
from tests.report.test_pages import make_evil_run
from tests.report.worlds import World

__all__ = ["browser"]  # a fixture
PLANTED = "<img src=x onerror=window.ran=4>"


def open_comparison(browser: Any, folder: Path, address: str = "") -> None:
    browser.get("about:blank")
    browser.get(f"{(folder / 'compare.html').resolve().as_uri()}#{address}")
    wait(browser, "document.body.dataset.state === 'done'")


def choose(browser: Any, field: str, value: str) -> None:
    """Choose as a reader does, and wait for the texts."""
    browser.execute_script(
        "const field = document.getElementById(arguments[0]); field.value = arguments[1];"
        "field.dispatchEvent(new Event('input', {bubbles: true}))",
        field,
        value,
    )
    wait(browser, "document.getElementById('list').dataset.state === 'done'")


def press(browser: Any, *keys: str) -> None:
    from selenium.webdriver.common.action_chains import ActionChains

    ActionChains(browser).send_keys(*keys).perform()


def table_rows(browser: Any) -> list[list[str]]:
    found: list[list[str]] = browser.execute_script(
        "return [...document.querySelectorAll('#rows tbody tr:not(.body-heading)')]"
        ".map((row) => [...row.cells].map((cell) => cell.textContent))"
    )
    return found


def test_any_two_students_are_compared_with_the_numbers_of_the_command(
    browser: Any, folder: Path, world: World
) -> None:
    with inside(world.run.parents[1]):
        compared = compare_students("world", "m1", "m123")
    open_comparison(browser, folder, "a=world/m1&b=world/m123")

    rows = table_rows(browser)

    assert len(rows) == len(compared.rows)
    settings = list(dict.fromkeys(row.setting for row in compared.rows))
    expected = sorted(compared.rows, key=lambda row: settings.index(row.setting))
    for cells, row in zip(rows, expected, strict=True):
        assert cells[0] == f"k = {row.k}" and cells[1] == row.grader
        assert cells[2] == signed_with_interval(row.difference, row.low, row.high)
        assert cells[7] == row.verdict
        assert cells[8:12] == [str(row.wins), str(row.ties), str(row.losses), str(row.combinations)]
    assert shown(browser, "#verdict")[0].startswith("No difference between m123 and m1 is found in")
    open_comparison(browser, folder, "a=world/base&b=world/m123")
    verdict = shown(browser, "#verdict")[0]
    assert verdict.startswith("m123 has more full marks than base in")
    assert verdict.endswith("no difference is found.")
    for page in (open_comparison, open_texts):
        page(browser, folder, "")
        choices = {field: shown(browser, f"#{field} option") for field in ("setting", "grader")}
        assert {names[0] for names in choices.values()} == {"every setting", "every grader"}
        assert all(len(set(names)) == len(names) for names in choices.values())
    assert_quiet(browser)


def test_two_students_can_be_swapped_and_the_same_student_is_refused(browser: Any, folder: Path) -> None:
    open_comparison(browser, folder, "a=world/base&b=world/m123")
    forward = table_rows(browser)

    click(browser, "#swap")
    wait(
        browser,
        "document.getElementById('verdict').textContent.startsWith('base has more full marks than m123 in zero')",
    )

    backward = table_rows(browser)
    assert [row[4:6] for row in backward] == [row[5:3:-1] for row in forward]
    assert [row[8:11] for row in backward] == [row[10:7:-1] for row in forward]
    assert "a=world%2Fm123&b=world%2Fbase" in browser.current_url
    open_comparison(browser, folder, "a=world/base&b=world/base")
    assert shown(browser, "#verdict") == ["Choose two different students."]
    open_comparison(browser, folder, "a=world/base&b=world/nobody")
    assert shown(browser, "#verdict") == ["This report does not have world/nobody."]
    assert_quiet(browser)


def test_a_click_on_wins_leads_to_the_texts_with_the_differing_points_marked(
    browser: Any, folder: Path, world: World
) -> None:
    with inside(world.run.parents[1]):
        compared = compare_students("world", "base", "m123")
    row = next(row for row in compared.rows if row.wins)
    texts = [
        pair
        for pair in compared.texts
        if (pair.grader, pair.setting, pair.k) == (row.grader, row.setting, row.k)
        and pair.second.value > pair.first.value
    ]
    open_comparison(browser, folder, "a=world/base&b=world/m123")

    click(browser, "#rows tbody a")
    wait(browser, "document.getElementById('list')?.dataset.state === 'done'")

    assert len(shown(browser, ".card")) == len(texts) == row.wins
    for pair in texts:
        card = f".card[data-combination='{pair.combination}'] .column"
        assert shown(browser, f"{card} h3") == ["base", "m123"]
        assert shown(browser, f"{card} blockquote") == [
            best.text or "(nothing to grade)" for best in (pair.first, pair.second)
        ]
        marked = {
            name
            for name, point in pair.first.points.items()
            if None not in (point, pair.second.points[name]) and point != pair.second.points[name]
        }
        for column in (1, 2):
            names = shown(browser, f"{card}:nth-child({column}) .point.differs")
            assert {
                name[2:].split("it has")[0].split("the reply")[0].split("the student")[0] for name in names
            } == marked
    assert_quiet(browser)


def test_a_lost_point_has_the_words_of_the_terminal(browser: Any, by_code: Reported) -> None:
    run = by_code.folder.parent
    open_texts(browser, by_code.folder, "")
    browser.execute_script("document.getElementById('more').click()")

    rows = [row for row in run_texts(str(run)) if row.reasons]
    assert rows
    for row in rows[:6]:
        link = quote(f"{run.name}/{row.student}/{row.combination}/{row.generation}", safe="")
        open_texts(browser, by_code.folder, f"text={link}")
        assert shown(browser, ".point.p0 .reason") == list(row.reasons.values())
    assert_quiet(browser)


def test_a_grader_says_why_and_its_raw_reply_is_one_click_away(browser: Any, tmp_path: Path) -> None:
    said = "Nothing stands for anything else."
    grading = f"| metaphor | 0 | {said} |\n| topic | 1 |\n| sense | 1 |"
    line = {"student": "s", "skills": ["metaphor"], "topic": "Sewing", "text": "A needle is sharp."}
    with inside(tmp_path):
        (tmp_path / "t.jsonl").write_text(json.dumps({**line, "gradings": {"g": [grading]}}) + "\n", encoding="utf-8")
        assert main(["import-texts", "t.jsonl", "--run", "said"]) == 0
        made = report(["said"], options=ReportOptions(figures=False))
        open_texts(browser, made.page.resolve().parent, "")

    assert shown(browser, ".point.p0 .reason") == [f"the grader: “{said}”"]
    click(browser, ".actions button")
    wait(browser, "document.querySelector('.votes') !== null")
    assert browser.execute_script("return document.querySelector('.votes .raw').open")
    assert shown(browser, ".votes .raw pre")[0] == grading
    assert_quiet(browser)


def earned_shares(browser: Any) -> list[float]:
    """For each card, the smallest share of points of a text."""
    shares: list[float] = browser.execute_script(
        "return [...document.querySelectorAll('.card')].map((card) => Math.min(...[...card.querySelectorAll('.points')]"
        ".map((line) => line.querySelectorAll('.p1').length / line.querySelectorAll('.point').length)))"
    )
    return shares


def test_texts_are_sorted_by_points_by_disagreement_and_at_random_by_seed(browser: Any, folder: Path) -> None:
    cards = "return [...document.querySelectorAll('.card')].map((card) => card.dataset.combination)"
    open_texts(browser, folder, "a=world/m123&grader=world/judge&k=3")
    drawn = browser.execute_script(cards)

    choose(browser, "sort", "worst")
    shares = earned_shares(browser)
    assert shares == sorted(shares) and shares[0] < 1

    choose(browser, "sort", "random")
    first = browser.execute_script(cards)
    choose(browser, "seed", "1")
    wait(browser, "location.hash.includes('seed=1')")
    wait(browser, "document.getElementById('list').dataset.state === 'done'")
    second = browser.execute_script(cards)
    open_texts(browser, folder, "a=world/m123&grader=world/judge&k=3&sort=random&seed=0")
    assert browser.execute_script(cards) == first
    assert len({tuple(order) for order in (drawn, first, second)}) == 3

    open_texts(browser, folder, "a=world/m12&k=5&sort=disagreement")
    counts = browser.execute_script(
        "return [...document.querySelectorAll('.card')].map((card) => Math.max(...[...card.querySelectorAll('.text')]"
        ".map((text) => text.querySelectorAll('.points:nth-of-type(2) .differs').length)))"
    )
    assert counts == sorted(counts, reverse=True) and counts[0] > 0
    assert_quiet(browser)


def test_the_number_of_hits_is_the_number_of_all_texts_that_fit(browser: Any, folder: Path, world: World) -> None:
    with inside(world.run.parents[1]):
        rows = [row for row in run_texts("world") if row.student == "base" and row.grader == "judge"]
    cut = [row for row in rows if row.cut]
    failed = [row for row in rows if row.status in ("no marker", "empty") and False in row.points.values()]

    open_texts(browser, folder, "a=world/base&grader=world/judge")
    combinations = len({row.combination for row in rows})
    assert shown(browser, "#status")[0].startswith(f"{len(rows)} texts of {combinations} combinations; the first 20")
    choose(browser, "outcome", "cut off")
    assert shown(browser, "#status")[0].startswith(f"{len(cut)} texts of ")
    choose(browser, "outcome", "format failure")
    assert shown(browser, "#status")[0].startswith(f"{len(failed)} texts of ")
    assert parse_qs(browser.current_url.partition("#")[2])["outcome"] == ["format failure"]
    click(browser, "#clear")
    wait(browser, "document.getElementById('list').dataset.state === 'done'")
    assert "#" not in browser.current_url.rstrip("#")
    assert_quiet(browser)


def test_each_card_has_k_and_setting_and_each_text_a_link_by_name(browser: Any, folder: Path, world: World) -> None:
    with inside(world.run.parents[1]):
        row = next(row for row in run_texts("world", student="m12", k=3) if row.grader == "judge")
    open_texts(browser, folder, f"text=world%2Fm12%2F{row.combination}%2F{row.generation}")

    assert shown(browser, ".card blockquote") == [row.text]
    facts = shown(browser, ".card .facts")[0]
    assert "k = 3" in facts and all(setting in facts for setting in row.settings)
    own = browser.execute_script("return document.querySelector('.who .permanent').hash")
    assert own == f"#text=world%2Fm12%2F{row.combination}%2F{row.generation}"

    click(browser, ".facts .permanent")
    wait(browser, "document.querySelectorAll('.card .text').length > 1")
    assert shown(browser, "#status")[0] == "8 texts of 1 combination."
    open_texts(browser, folder, "text=world/m12/0000000000000000/0")
    assert shown(browser, "#status") == ["This report has no such text."]
    open_texts(browser, folder, "a=world/gone")
    assert shown(browser, "#status") == ["This report does not have world/gone."]
    click(browser, "#all")
    wait(browser, "document.querySelectorAll('.card').length === 20")
    assert_quiet(browser)


def test_keys_move_between_texts_search_and_explain_themselves(browser: Any, folder: Path) -> None:
    from selenium.webdriver.common.keys import Keys

    open_texts(browser, folder, "a=world/m123")
    focused = "return [...document.querySelectorAll('.card')].indexOf(document.activeElement)"

    press(browser, "j", "j")
    assert browser.execute_script(focused) == 1
    press(browser, "k")
    assert browser.execute_script(focused) == 0
    press(browser, "o")
    wait(browser, "document.querySelector('.card .votes') !== null")
    press(browser, "?")
    assert browser.execute_script("return document.getElementById('help').open")
    press(browser, Keys.ESCAPE)
    assert not browser.execute_script("return document.getElementById('help').open")
    press(browser, "/")
    assert browser.execute_script("return document.activeElement.id") == "q"
    press(browser, "jk?")
    wait(browser, "location.hash.includes('q=jk')")
    assert browser.execute_script("return document.getElementById('q').value") == "jk?"
    assert not browser.execute_script("return document.getElementById('help').open")
    assert_quiet(browser)


def test_a_skill_shows_its_definition_on_the_page_of_texts(browser: Any, folder: Path) -> None:
    open_texts(browser, folder, "k=2")
    name = shown(browser, ".chip a.defined")[0]

    click(browser, ".chip a.defined")

    assert shown(browser, "#definition dt") == [name]
    assert shown(browser, "#definition q")[0]
    assert "#k=2" in browser.current_url
    assert_quiet(browser)


def test_a_planted_script_does_not_run_in_a_comparison(browser: Any, tmp_path: Path) -> None:
    with inside(tmp_path):
        make_evil_run(tmp_path)
        folder = report(["evil"], options=ReportOptions(figures=False)).page.resolve().parent
    open_comparison(browser, folder)
    assert shown(browser, "#verdict")[0].endswith(".")
    open_comparison(browser, folder, f"a={quote(PLANTED, safe='')}&b=evil/large")
    assert shown(browser, "#verdict") == [f"This report does not have {PLANTED}."]

    open_texts(browser, folder, "a=evil/small&b=evil/large")
    assert any("<script>window.ran=1</script>" in text for text in shown(browser, ".column blockquote"))
    for address in (f"setting={quote(PLANTED, safe='')}", f"q={quote(PLANTED, safe='')}", f"text={PLANTED}/a/b/0"):
        open_texts(browser, folder, address)
    assert browser.execute_script("return window.ran === undefined")
    assert browser.execute_script("return document.querySelectorAll('#list script, main img').length") == 0
    assert_quiet(browser)


ROW_AND_K = (".compare tbody tr:nth-child(2)", ".compare tbody th[scope=row]")


@pytest.mark.parametrize("width", [1400, 400])
def test_a_comparison_fits_the_window(browser: Any, tmp_path: Path, width: int) -> None:
    step = {"name": "e", "stage": "evaluate", "students": ["long-student-name-a", "b"], "graders": ["judge"]}
    document = {
        "name": "two",
        "catalog": "paper",
        "students": {name: {"model": "scripted:student?skill=0.8"} for name in ("long-student-name-a", "b")},
        "graders": {"judge": {"model": "scripted:grader", "rounds": 1}},
        "steps": [{**step, "k": [1, 2], "combinations": 2, "generations": 1}],
    }
    with inside(tmp_path):
        run = run_document(tmp_path, document)
        folder = report([str(run)], options=ReportOptions(figures=False)).page.resolve().parent
    size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": False}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    try:
        open_comparison(browser, folder)
        assert browser.execute_script("return document.documentElement.scrollWidth") <= width
        row, k = (browser.execute_script(f"return document.querySelector('{e}').clientHeight") for e in ROW_AND_K)
        assert k <= row <= 60, "k = 1 stands on one line"
        if width == 1400:
            inner, outer = browser.execute_script(
                "const e = document.querySelector('.scroll'); return [e.scrollWidth, e.clientWidth]"
            )
            assert inner <= outer
    finally:
        browser.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})


@pytest.mark.parametrize(("width", "dark"), [(1400, False), (400, True)], ids=["wide and light", "narrow and dark"])
def test_axe_finds_nothing_serious_in_texts_and_comparisons(
    browser: Any, by_code: Reported, width: int, dark: bool
) -> None:
    axe = axe_script()
    browser.set_script_timeout(60)
    found = []
    with window(browser, width, dark=dark):
        for page in ("texts", "beside", "comparison"):
            if page == "comparison":
                open_comparison(browser, by_code.folder)
            else:
                open_texts(browser, by_code.folder, "a=code/s&b=code/t" if page == "beside" else "")
                click(browser, ".actions button")
                wait(browser, "document.querySelector('.votes, .talk') !== null")
            browser.execute_script(axe)
            violations = browser.execute_async_script(
                "const done = arguments[0];"
                "axe.run(document, {resultTypes: ['violations']}).then((found) => done(found.violations))"
            )
            found += [
                (page, v["id"], v["nodes"][0]["html"]) for v in violations if v["impact"] in ("serious", "critical")
            ]
    assert found == []
