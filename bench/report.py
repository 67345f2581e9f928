"""Measure a report of many texts: `python bench/report.py [TEXTS] [--votes 3] [--code] [--browser] [--keep FOLDER]`.

The run has two students in three settings, k = 1 to 5, three generations, two turns with the real prompts, and votes
with replies of a realistic length; with `--code`, code grades the texts and there are no votes. The report is written
in a separate process. With `--browser`, it is opened in headless Chromium (Debian: apt-get install chromium
chromium-driver; pip install selenium).
"""

import argparse
import json
import random
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from skillmix.calls import Decoding, GenerateKey, GradeKey, Message, Reply, Request, text_id
from skillmix.catalog.catalog import SETTINGS, Catalog
from skillmix.catalog.combinations import Combination
from skillmix.catalog.files import load_catalog
from skillmix.experiment.experiment import Experiment, experiment_of
from skillmix.experiment.plan import cells_of
from skillmix.prompts.prompt_set import PromptSet, load_prompts
from skillmix.prompts.rubric import rubric_of
from skillmix.runs.run import Run

STUDENTS, GENERATIONS, KS = ("small", "large"), 3, (1, 2, 3, 4, 5)
EXPLANATION = (
    "Explanation: the student's text keeps to the topic and can be understood without effort. {skill} is shown in the "
    "first half of the sentence, where the speaker says one thing and means another; the point is earned. What is "
    "asked for beside it is less clear: a reader would have to guess, and a guess is not a demonstration. The text "
    "has no more sentences than it may have. Thus the total points earned are as the table says.\n\n"
) * 3
NOUNS = ("harbour", "lantern", "orchard", "violin", "glacier", "compass", "meadow", "thunder", "kettle", "ribbon")


def experiment_for(texts: int, votes: int) -> Experiment:
    """Return an experiment with about this many texts; without votes, code grades them."""
    each = max(1, round(texts / (len(STUDENTS) * len(SETTINGS) * len(KS) * GENERATIONS)))
    step = {"name": "eval", "stage": "evaluate", "students": list(STUDENTS), "graders": ["judge"]}
    document = {
        "name": "bench",
        "catalog": "paper" if votes else "verifiable",
        "students": {name: {"model": "scripted:student"} for name in STUDENTS},
        "graders": {"judge": {"model": "scripted:grader", "rounds": votes} if votes else {"model": "rules:"}},
        "steps": [{**step, "k": list(KS), "combinations": each, "generations": GENERATIONS}],
    }
    return experiment_of(document, source="bench")


def text_of(combination: Combination, rng: random.Random) -> str:
    """Return one or two sentences of usual length."""
    words = " ".join(rng.choice(NOUNS) for _ in range(20 + 6 * combination.k))
    return f"On {combination.topic.lower()} the {words}, number {rng.randrange(10**9)}; who would not be glad of it?"


def reply_to(combination: Combination, rng: random.Random, quality: float) -> str:
    """Return a realistic reply of a grader."""
    if rng.random() < 0.04:
        return "I am sorry, but there is not enough to grade in this text."
    rubric = rubric_of(combination.skills, combination.topic)
    points = [rng.random() < quality for _ in rubric.criteria]
    rows = "".join(f"| {c.phrase:<60} | {int(p)} |\n" for c, p in zip(rubric.criteria, points, strict=True))
    head = "Here's the grading table:\n\n| Criteria | Points Earned |\n|---|---|\n"
    return f"{head}{rows}| Total Points Earned | {sum(points)} |\n\n{EXPLANATION.format(skill=combination.skills[0])}"


def calls_of(experiment: Experiment, catalog: Catalog, prompts: PromptSet) -> Iterator[tuple[Request, Reply]]:
    """Yield every call of the experiment with its reply."""
    rng, seen, decoding = random.Random(0), set(), Decoding()
    settings = experiment.graders["judge"]
    votes = 0 if settings.model == "rules:" else settings.votes
    for cell in cells_of(experiment, catalog):
        quality = 0.97 if cell.student == "large" else 0.88
        for combination in cell.combinations:
            first, second = prompts.student_prompts(catalog, combination)
            for generation in range(cell.generations):
                key = GenerateKey(cell.student, combination.id, generation, 1)
                if key in seen:
                    continue
                seen.add(key)
                draft, text = text_of(combination, rng), text_of(combination, rng)
                asked = (Message("user", first),)
                yield Request(key, "m", asked, decoding, 1), Reply(f"Answer: {draft}\n\nExplanation: x")
                later = GenerateKey(cell.student, combination.id, generation, 2)
                said = (*asked, Message("assistant", f"Answer: {draft}\n\nExplanation: x"), Message("user", second))
                yield Request(later, "m", said, decoding, 1), Reply(f"Answer: {text}\n\nExplanation: y")
                prompt = prompts.grader_prompt(catalog, combination, answer=text, variant="gpt")
                for vote in range(votes):
                    grade = GradeKey(cell.student, combination.id, generation, text_id(text), "judge", vote, 0)
                    given = (Message("user", prompt),)
                    yield Request(grade, "g", given, decoding, vote), Reply(reply_to(combination, rng, quality))


def make_run(folder: Path, texts: int, votes: int) -> Run:
    """Make a run with this many texts, graded by votes or by code."""
    experiment, catalog = experiment_for(texts, votes), load_catalog("paper" if votes else "verifiable")
    run = Run(folder)
    with run.write() as journal:
        run.continue_with(experiment, catalog)
        for cell in cells_of(experiment, catalog):
            journal.add_combinations(cell.combinations)
        journal.record_all(calls_of(experiment, catalog, load_prompts("standard")))
    return run


def measured_report(run: Run) -> dict[str, object]:
    """Write the report in a separate process, and return its time and memory."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    start = time.monotonic()
    command = [sys.executable, "-m", "skillmix", "report", str(run.path), "--json"]
    made = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    folder = Path(made["page"]).parent
    sizes = [path.stat().st_size for path in folder.rglob("*") if path.is_file()]
    return {
        "texts": made["texts"],
        "s": round(time.monotonic() - start, 1),
        "CPU s": round(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, 1),
        "peak MB": round(after.ru_maxrss / 1000),
        "folder MB": round(sum(sizes) / 1e6, 1),
        "files": len(sizes),
        "largest file kB": round(max(path.stat().st_size for path in folder.glob("data/*")) / 1000),
        "first page kB": round((folder / "index.html").stat().st_size / 1000),
    }


def measured_browser(folder: Path) -> dict[str, float]:
    """Return the seconds until the page shows a cell's texts, the votes on one of them, and search results."""
    from selenium import webdriver
    from selenium.webdriver.chrome.options import Options
    from selenium.webdriver.chrome.service import Service
    from selenium.webdriver.common.by import By

    options = Options()
    options.binary_location = "/usr/bin/chromium"
    for argument in ("--headless=new", "--no-sandbox", "--disable-dev-shm-usage", "--window-size=1400,1000"):
        options.add_argument(argument)
    browser = webdriver.Chrome(options=options, service=Service("/usr/bin/chromedriver"))
    done = "return document.getElementById('list').dataset.state === 'done'"

    def timed(act: Callable[[], object], until: str) -> float:
        start = time.monotonic()
        act()
        while not browser.execute_script(until):
            time.sleep(0.01)
        return round(time.monotonic() - start, 2)

    try:
        page = (folder / "texts.html").resolve().as_uri()
        found = {"first page": timed(lambda: browser.get((folder / "index.html").resolve().as_uri()), "return true")}
        links = browser.find_elements(By.CSS_SELECTOR, 'a[href^="texts.html#a="]')
        cell = str(links[7].get_attribute("href"))
        found["a cell"] = timed(lambda: browser.get(cell), done)
        button = browser.find_element(By.CSS_SELECTOR, ".actions button")
        found["votes"] = timed(button.click, "return document.querySelector('.votes') !== null")
        word = browser.find_element(By.CSS_SELECTOR, "blockquote").text.split("number ")[1].split(";")[0]
        browser.get("about:blank")
        first = "return document.querySelector('.card') !== null"
        found["search, first result"] = timed(lambda: browser.get(f"{page}#q={word}"), first)
        browser.get("about:blank")
        found["search, all looked through"] = timed(lambda: browser.get(f"{page}#q=nowhere"), done)
        browser.get("about:blank")
        found["all texts, fewest points first"] = timed(lambda: browser.get(f"{page}#sort=worst"), done)
        return found
    finally:
        browser.quit()


def main() -> None:
    """Print the measurements."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("texts", nargs="?", type=int, default=100_000)
    parser.add_argument("--votes", type=int, default=3)
    parser.add_argument("--code", action="store_true", help="code grades the texts, and no model")
    parser.add_argument("--browser", action="store_true")
    parser.add_argument("--keep", type=Path, metavar="FOLDER", help="keep the run here, and use it if it exists")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        place = options.keep or Path(temporary) / "bench"
        start = time.monotonic()
        run = Run(place) if place.exists() else make_run(place, options.texts, 0 if options.code else options.votes)
        print(f"run made in {time.monotonic() - start:.0f} s", file=sys.stderr)
        found = measured_report(run)
        if options.browser:
            found |= measured_browser(run.path / "report")
        print("\n".join(f"| {name} | {value} |" for name, value in found.items()))


if __name__ == "__main__":
    main()
