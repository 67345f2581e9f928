"""Two people answer fifty texts each by keyboard in a real browser, and the server is killed in between."""

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from skillmix.hashing import digest
from skillmix.report.records import ReportOptions
from skillmix.report.write import report
from skillmix.runs.people import HumanAnswer
from skillmix.runs.run import open_run
from skillmix.runs.texts import run_records
from skillmix.validation.task import TaskSettings, make_task
from tests.report.conftest import inside
from tests.report.test_browser import assert_quiet, browser, open_texts, shown, wait
from tests.report.test_page_in_browser import axe_script, window
from tests.validation.run_for_people import EVIL, NICE, make_run, skills_and_topic

__all__ = ["browser"]  # a fixture

PICTURES = Path(__file__).parents[2] / "docs/figures"
WIDTHS = {"ann": 1400, "bo": 400}
HEIGHTS = {1400: 900, 400: 800}
TEXTS = 50
ENTER, BACKSPACE, LEFT, RIGHT, DOWN, ESCAPE = "\ue007", "\ue003", "\ue012", "\ue014", "\ue015", "\ue00c"
KEYS = {1: "1", 0: "0", None: "?"}


def started(*words: str) -> "tuple[subprocess.Popen[str], dict[str, str]]":
    """A server in a separate process, with the address of each person."""
    environment = {**os.environ, "PYTHONUNBUFFERED": "1"}
    command = [sys.executable, "-m", "skillmix", "annotate", "people", *words, "--json"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment)
    assert process.stdout is not None and process.stderr is not None
    printed = ""
    while not printed.rstrip().endswith("]"):
        line = process.stdout.readline()
        assert line, process.stderr.read()
        printed += line
    # The browser of the tests resolves only this name.
    return process, {row["rater"]: row["address"].replace("127.0.0.1", "localhost") for row in json.loads(printed)}


def stop(process: "subprocess.Popen[str]", number: int) -> tuple[int, str]:
    process.send_signal(number)
    _, errors = process.communicate(timeout=30)
    return process.returncode, errors


@contextmanager
def serving(*words: str) -> Iterator[dict[str, str]]:
    process, addresses = started(*words)
    try:
        yield addresses
    finally:
        stop(process, signal.SIGKILL)


def press(browser: Any, *keys: str) -> None:
    from selenium.webdriver.common.action_chains import ActionChains

    ActionChains(browser, duration=0).send_keys(*keys).perform()


def wanted(rater: str, number: int, question: int) -> int | None:
    """Return the key that a person presses: one of the three votes, different for two people."""
    return (1, 0, None)[digest(rater, number, question)[0] % 3]


def answer(browser: Any, rater: str, pressed: dict[str, list[int | None]]) -> None:
    """Answer the text on the screen and open the next one."""
    position, text, questions = browser.execute_script(
        "return [...['position', 'text'].map((id) => document.getElementById(id).textContent),"
        " document.querySelectorAll('.question').length]"
    )
    votes = [wanted(rater, int(position.split()[1]), question) for question in range(questions)]
    press(browser, *(KEYS[vote] for vote in votes), ENTER)
    pressed[text] = votes
    wait(browser, f"document.getElementById('position').textContent !== '{position}'")


def keep_picture(browser: Any, name: str) -> None:
    """Write a screenshot of the page to the documentation if SKILLMIX_PICTURES is set."""
    if os.environ.get("SKILLMIX_PICTURES"):
        from PIL import Image

        file = PICTURES / f"{name}.png"
        browser.save_screenshot(str(file))
        with Image.open(file) as whole:
            whole.convert("RGB").quantize(64).save(file, optimize=True)


def open_page(browser: Any, address: str) -> None:
    browser.get("about:blank")
    browser.get_log("browser")
    browser.get(address)
    wait(browser, "!document.getElementById('task').hidden || !document.getElementById('finished').hidden")


def test_two_people_answer_by_keyboard_and_a_killed_server_loses_nothing(browser: Any, in_folder: Path) -> None:
    nice = skills_and_topic("metaphor", "red herring", topic="Jazz music")
    evil = skills_and_topic("metaphor", "hyperbole", topic="Sewing")
    make_run(texts=98, extra={EVIL: evil, NICE: nice})
    words = ("--rater", "ann", "--rater", "bo", "--n", str(TEXTS), "--overlap", "1")
    process, addresses = started(*words)
    pressed: dict[str, dict[str, list[int | None]]] = {"ann": {}, "bo": {}}
    try:
        for rater, width in WIDTHS.items():
            with window(browser, width, height=HEIGHTS[width]):
                open_page(browser, addresses[rater])
                for _ in range(20):
                    answer(browser, rater, pressed[rater])
                # The server dies before it confirms an answer; the page keeps the answer and opens the next text.
                stop(process, signal.SIGKILL)
                answer(browser, rater, pressed[rater])
                wait(browser, "!document.getElementById('trouble').hidden")
                # The previous answer may be unconfirmed too.
                assert re.search("(Your last answer is|2 answers are) kept", shown(browser, "#trouble")[0])
                process, again = started(*words)
                assert again == addresses
                wait(browser, "document.getElementById('trouble').hidden")
                for _ in range(9):
                    answer(browser, rater, pressed[rater])
                open_page(browser, addresses[rater])  # as after a crash of the browser
                assert "30 answered" in shown(browser, "#answered")[0]
                for _ in range(20):
                    answer(browser, rater, pressed[rater])
                wait(browser, "!document.getElementById('finished').hidden")
                wait(browser, "document.getElementById('summary').textContent.startsWith('All texts')")
        status, errors = stop(process, signal.SIGINT)
    finally:
        process.kill()
        process.wait()

    assert status == 130 and "ann: 50 of 50 texts answered" in errors and "bo: 50 of 50 texts answered" in errors
    assert stored_votes() == as_shown(pressed)
    assert pressed["ann"].keys() == pressed["bo"].keys() and len(pressed["ann"]) == TEXTS


def as_shown(pressed: dict[str, dict[str, list[int | None]]]) -> dict[tuple[str, str], list[float | None]]:
    return {
        (f"human:{rater}", text): [None if vote is None else float(vote) for vote in votes]
        for rater, own in pressed.items()
        for text, votes in own.items()
    }


def stored_votes() -> dict[tuple[str, str], list[float | None]]:
    """Return the votes in the journal, by grader and displayed text."""
    votes = {}
    for ballot in run_records(open_run("people")).ballots:
        if ballot.grader.startswith("human:"):
            (reading,) = ballot.readings
            assert reading is not None and reading.points is not None
            text = "".join(f"U+{ord(sign):04X}" if sign in "\u202e\u202c" else sign for sign in ballot.text.answer.text)
            votes[ballot.grader, text] = list(reading.points[:-1])
    return votes


@pytest.fixture(scope="module")
def small_task(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """Addresses of a server with fifty texts, including a long one and a hostile one; cy has answered some."""
    with inside(tmp_path_factory.mktemp("small")):
        nice = skills_and_topic("metaphor", "red herring", topic="Jazz music")
        evil = skills_and_topic("metaphor", "hyperbole", topic="Sewing")
        task = make_task(make_run(texts=48, extra={EVIL: evil, NICE: nice}), TaskSettings(("cy",)))
        with task.answering("cy") as store:
            for item in [item for item in task.texts("cy") if item.words not in (NICE, EVIL)][:16]:
                store.store(item, HumanAnswer(dict.fromkeys((c.name for c in item.criteria), 1)))
        with serving(*(f"--rater={name}" for name in ("ann", "bo", "cy", "di"))) as addresses:
            for number, item in enumerate(task.texts("cy"), start=1):
                if item.words in (NICE, EVIL):
                    addresses["nice" if item.words == NICE else "evil"] = f"{addresses['cy']}#{number}"
            yield addresses


@pytest.mark.parametrize("width", HEIGHTS)
@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_the_page_fits_and_can_be_read(browser: Any, small_task: dict[str, str], width: int, dark: bool) -> None:
    with window(browser, width, height=HEIGHTS[width], dark=dark):
        open_page(browser, small_task["nice"])
        press(browser, "1", "0")
        if not dark:
            keep_picture(browser, f"annotate-{width}")

        assert browser.execute_script("return document.documentElement.scrollWidth") <= width
        assert browser.execute_script(LOW_CONTRAST) == []
        sizes = browser.execute_script(
            "return [...document.querySelectorAll('button')].filter((b) => b.offsetParent)"
            ".map((b) => Math.min(b.offsetWidth, b.offsetHeight))"
        )
        assert sizes and min(sizes) >= 44  # large enough for a finger
        press(browser, BACKSPACE, BACKSPACE)


@pytest.mark.parametrize(("width", "dark"), [(1400, False), (400, True)], ids=["wide and light", "narrow and dark"])
def test_axe_finds_nothing_serious(browser: Any, small_task: dict[str, str], width: int, dark: bool) -> None:
    axe = axe_script()
    browser.set_script_timeout(60)
    with window(browser, width, height=HEIGHTS[width], dark=dark):
        open_page(browser, small_task["nice"])
        browser.execute_script(axe)
        violations = browser.execute_async_script(
            "const done = arguments[0];"
            "axe.run(document, {resultTypes: ['violations']}).then((found) => done(found.violations))"
        )
    assert [(v["id"], v["nodes"][0]["html"]) for v in violations if v["impact"] in ("serious", "critical")] == []


LOW_CONTRAST = """
const channel = (c) => { c /= 255; return c <= .03928 ? c / 12.92 : ((c + .055) / 1.055) ** 2.4; };
const numbers = (colour) => colour.match(/[\\d.]+/g).map(Number);
const light = (rgb) => .2126 * channel(rgb[0]) + .7152 * channel(rgb[1]) + .0722 * channel(rgb[2]);
const ground = (e) => {
  for (; e; e = e.parentElement) {
    const colour = numbers(getComputedStyle(e).backgroundColor);
    if (colour.length === 3 || colour[3] === 1) return colour;
  }
  return [255, 255, 255];
};
const low = [];
for (const e of document.querySelectorAll('h1, h2, h3, p, button, dd, kbd, summary, label, blockquote, b, strong')) {
  if (!e.offsetParent || !e.textContent.trim()) continue;
  const [a, b] = [light(numbers(getComputedStyle(e).color)), light(ground(e))].sort((x, y) => y - x);
  if ((a + .05) / (b + .05) < 4.5) low.push(e.textContent.trim().slice(0, 40));
}
return low;
"""


def test_a_planted_script_does_not_run_and_the_page_is_blind(browser: Any, small_task: dict[str, str]) -> None:
    open_page(browser, small_task["evil"])

    text = shown(browser, "#text")[0]
    assert "<script>window.ran=1</script><img src=x onerror=window.ran=2>" in text
    assert {"U+202E", "U+202C"} <= set(shown(browser, ".hidden-sign"))
    assert browser.execute_script("return document.querySelectorAll('#text script, #text img, #text b').length") == 0
    assert browser.execute_script("return window.ran === undefined")
    page = browser.execute_script("return document.documentElement.outerHTML")
    assert not any(name in page for name in ("littlebird", "bigbird", "juror"))
    loaded = browser.execute_script("return performance.getEntriesByType('resource').map((e) => e.name)")
    assert all(name.startswith(small_task["cy"]) for name in loaded)
    assert [entry["message"] for entry in browser.get_log("browser")] == []


def pressed_buttons(browser: Any) -> list[str]:
    return shown(browser, ".votes [aria-pressed='true']")


def test_backspace_undoes_goes_back_and_a_changed_answer_counts(browser: Any, small_task: dict[str, str]) -> None:
    open_page(browser, small_task["di"])
    first = shown(browser, "#text")[0]
    questions = len(shown(browser, ".question"))

    press(browser, "1", "0", BACKSPACE)
    assert pressed_buttons(browser) == ["Yes"]
    press(browser, ENTER)  # not all questions are answered
    assert "Answer" in shown(browser, "#status")[0] and shown(browser, "#text")[0] == first
    press(browser, *["?"] * (questions - 1), "c", "Not sure: 1 or 0?", ENTER, ENTER)
    wait(browser, "document.getElementById('position').textContent === 'Text 2 of 50'")
    press(browser, BACKSPACE)  # nothing to undo, so the page opens the previous text
    wait(browser, "document.getElementById('position').textContent === 'Text 1 of 50'")
    assert pressed_buttons(browser) == ["Yes", *["Unsure"] * (questions - 1)]
    press(browser, "0", ENTER)
    wait(browser, "document.getElementById('position').textContent === 'Text 2 of 50'")
    wait(browser, "document.getElementById('answered').textContent === '1 answered'")

    (ballot,) = [b for b in run_records(open_run("people")).ballots if b.grader == "human:di"]
    (reading,) = ballot.readings
    assert reading is not None and reading.points == (0.0, *[None] * (questions - 1), None)
    assert reading.notes == ("Not sure: 1 or 0?",)


def test_buttons_answer_as_keys_do(browser: Any, small_task: dict[str, str]) -> None:
    with window(browser, 400, height=800):
        open_page(browser, small_task["bo"])
        browser.execute_script(
            "document.querySelectorAll('.votes').forEach((group) => group.querySelector('.no').click());"
        )
        assert pressed_buttons(browser) == ["No"] * len(shown(browser, ".question"))
        browser.execute_script("document.getElementById('save').click()")
        wait(browser, "document.getElementById('answered').textContent === '1 answered'")


def test_what_is_not_saved_is_there_again_after_a_reload(browser: Any, small_task: dict[str, str]) -> None:
    open_page(browser, small_task["ann"])
    press(browser, "1")

    open_page(browser, small_task["ann"])

    assert pressed_buttons(browser) == ["Yes"]
    press(browser, RIGHT)
    wait(browser, "document.getElementById('position').textContent === 'Text 2 of 50'")
    press(browser, LEFT)
    wait(browser, "document.getElementById('position').textContent === 'Text 1 of 50'")
    assert pressed_buttons(browser) == ["Yes"]


def test_the_page_of_texts_shows_the_votes_and_comments_of_people(browser: Any, in_folder: Path) -> None:
    run = make_run(texts=4)
    task = make_task(run, TaskSettings(("ann",), n=4))
    with task.answering("ann") as store:
        for item in task.texts("ann"):
            votes = {criterion.name: 0 for criterion in item.criteria} | {"sense": None}
            store.store(item, HumanAnswer(votes, "<b>I see none</b>"))
    made = report(["people"], options=ReportOptions(figures=False))

    open_texts(browser, made.page.resolve().parent, "")
    buttons = "[...document.querySelectorAll('.actions button')].filter((b) => b.textContent.startsWith('Votes'))"
    browser.execute_script(f"{buttons}[0].click()")
    wait(browser, "document.querySelector('.votes table') !== null")

    assert any(head.startswith("human:ann") for head in shown(browser, ".votes th"))
    assert any("<b>I see none</b>" in words for words in shown(browser, ".votes"))
    assert_quiet(browser)
