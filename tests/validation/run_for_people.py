"""A run with texts for people to read, made without a model."""

import atexit
import json
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from shutil import copytree, rmtree
from tempfile import mkdtemp

from skillmix.catalog.catalog import Catalog
from skillmix.catalog.combinations import Combination, Draw, combination_of, draw_combinations
from skillmix.catalog.files import load_catalog
from skillmix.exchange.import_texts import import_texts
from skillmix.runs.run import Run, open_run
from tests.report.conftest import inside

EVIL = (
    "<script>window.ran=1</script><img src=x onerror=window.ran=2> "
    "\u202egnihtemos\u202c {{ 7 * 7 }} </blockquote><b onclick=window.ran=3>b</b>"
)
NICE = (
    "The cellist's patience was a frayed rope by the third rehearsal, yet when the conductor asked why she had come in "
    "two bars late she only wondered aloud whether the hall had always been this cold."
)


def skills_and_topic(*skills: str, topic: str) -> Combination:
    return combination_of(list(skills), topic)


def make_run(
    name: str = "people",
    *,
    texts: int = 60,
    k: tuple[int, ...] = (1, 2, 3),
    extra: Mapping[str, Combination] | None = None,
) -> Run:
    """Make a run with texts of two students and the gradings of one grader below the working folder.

    The student `littlebird` earns the first skill in half of its texts, `bigbird` in all of them.
    """
    catalog = load_catalog("paper")
    lines = [
        *_lines(catalog, texts, k),
        *({"student": "littlebird", **_about(c), "text": t} for t, c in (extra or {}).items()),
    ]
    file = Path(f"{name}.jsonl")
    file.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    import_texts(file, name, catalog="paper")
    return open_run(name)


@cache
def _made(texts: int, extra: tuple[tuple[str, Combination], ...]) -> Path:
    folder = Path(mkdtemp(prefix="skillmix-people-"))
    atexit.register(rmtree, folder, ignore_errors=True)
    with inside(folder):
        make_run(texts=texts, extra=dict(extra))
    return folder / "runs"


def copied_run(*, texts: int, extra: tuple[tuple[str, Combination], ...] = ()) -> Run:
    """Copy a run of `make_run`, which is made once for all tests of a process, into the working folder."""
    copytree(_made(texts, extra), "runs")
    return open_run("people")


def _about(combination: Combination) -> dict[str, object]:
    return {"skills": list(combination.skills), "topic": combination.topic}


def _lines(catalog: Catalog, texts: int, ks: tuple[int, ...]) -> Iterator[dict[str, object]]:
    pool = catalog.pool("all", partition=None, exclude=())
    drawn = {k: draw_combinations(Draw(pool, "all", k, 0), texts) for k in ks}
    for number in range(texts):
        student = ("littlebird", "bigbird")[number % 2]
        combination = drawn[ks[(number // 2) % len(ks)]][number]
        text = (
            f"Nobody at the {combination.topic.lower()} table remembered who had first said it, but by evening all "
            f"{number + 3} of them were repeating it as if it had always been true."
        )
        reply = _table(combination, skill=student == "bigbird" or number % 4 == 0)
        yield {"student": student, **_about(combination), "text": text, "gradings": {"juror": [reply]}}


def _table(combination: Combination, *, skill: bool) -> str:
    rows = [(f"Shows {name}", int(skill or index > 0)) for index, name in enumerate(combination.skills)]
    rows += [(f"Stays on the topic of {combination.topic}", 1), ("Makes sense", 1)]
    return "| Criteria | Points Earned |\n| --- | --- |\n" + "\n".join(f"| {name} | {point} |" for name, point in rows)
