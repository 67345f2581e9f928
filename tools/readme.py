"""Write the finding in the README and the page of its tables from a result: `python tools/readme.py [RESULT.json]`.

`tools/result.py` writes a result file and describes its form. The README gets the figure and the finding, and
docs/results.md gets the tables. The figure carries the hash of the result it was drawn from, so that a test can tell
whether it belongs to that result.
"""

import json
import re
import sys
from collections.abc import Iterator, Mapping
from hashlib import sha256
from pathlib import Path
from typing import Any

from skillmix.render.numbers import whole
from skillmix.report.figures.style import as_svg, house_style, laid_out
from skillmix.scores.cells import CellScore
from tools.headline import format_line, headline_figure, headline_table, valid_table

ROOT = Path(__file__).parents[1]
FIGURE = Path("docs/figures/headline.svg")
PAGE = Path("docs/results.md")
WRITTEN = "<!-- written by `make readme` from {0} -->"
START, END = "<!-- headline: written by `make readme` from {0} -->", "<!-- end of headline -->"


def headline(result: Path) -> str:
    """The part of the README between its two marks: the figure and the finding."""
    document = json.loads(result.read_text(encoding="utf-8"))
    start = START.format(result.relative_to(ROOT).as_posix())
    source = f"[All numbers, and how they were made]({PAGE.as_posix()})."
    return "\n\n".join([start, f"{document['finding']} {source}", _picture(result, FIGURE), END])


def page(result: Path) -> str:
    """The document with the tables, the verdicts and what a reader must know to judge them."""
    document = json.loads(result.read_text(encoding="utf-8"))
    scores = [CellScore(**score) for score in document["scores"]]
    parts = [f"# {document['title']}", WRITTEN.format(result.relative_to(ROOT).as_posix()), document["finding"]]
    parts += [
        f"{document['about']} The command: `{document['command']}`.",
        _picture(result, FIGURE.relative_to("docs")),
    ]
    parts += ["Full marks, best of the generations, with 95 % intervals:", headline_table(scores)]
    valid = valid_table(scores)
    if valid is not None:
        about = "Full marks among texts with a valid format (hollow markers), one try, and the number of these texts:"
        parts += [about, valid]
    return "\n\n".join([*parts, "\n".join(f"- {fact}" for fact in facts(document, scores))]) + "\n"


def _picture(result: Path, path: Path) -> str:
    return f"![Full marks against k, from {result.name}]({path.as_posix()})"


def facts(document: Mapping[str, Any], scores: list[CellScore]) -> Iterator[str]:
    """What a reader must know to judge the numbers; only what the result file says."""
    for name, grader in document.get("graders", {}).items():
        who = "code (`rules:`)" if grader["model"] == "rules:" else f"{name} (`{grader['model']}`)"
        chose = ", the same that chose the training texts" if grader["chose_texts"] else ""
        yield f"Graded by {who}{chose}."
    yield f"Format failures (no marker, or an empty answer) among the texts of a cell: {format_line(scores)}."
    texts = [f"{student} {_by_k(counts)}" for student, counts in document.get("data", {}).items()]
    if texts:
        yield f"Texts of the training data: {'; '.join(texts)}."
    verdicts: dict[str, dict[str, str]] = {}
    for finding in document.get("findings", []):  # of several comparisons, the first is the one that matters
        verdicts.setdefault(finding["claim"], {}).setdefault(finding["setting"], finding["verdict"])
    for claim, by_setting in verdicts.items():
        yield f"{claim}: " + ", ".join(f"{setting} **{verdict}**" for setting, verdict in by_setting.items()) + "."
    if verdicts:
        yield "The result file has the numbers behind each verdict."


def _by_k(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{whole(count)} with k = {k}" for k, count in counts.items())


def figure(result: Path) -> bytes:
    """The figure, with the hash of what it shows."""
    scores = [CellScore(**score) for score in json.loads(result.read_text(encoding="utf-8"))["scores"]]
    with house_style():
        return as_svg(laid_out(headline_figure(scores)), about=f"drawn from {digest(result)}")


def digest(result: Path) -> str:
    """What identifies a result."""
    return sha256(result.read_bytes()).hexdigest()


def with_headline(readme: str, part: str) -> str:
    """The README with that part in its place."""
    pattern = re.escape(START).replace(re.escape("{0}"), r"\S+") + ".*?" + re.escape(END)
    found, count = re.subn(pattern, lambda _: part, readme, flags=re.DOTALL)
    if count != 1:
        raise SystemExit("README.md must hold the marks of the headline once")
    return found


def named_result(readme: str) -> Path:
    """The result that a README says it shows."""
    found = re.search(re.escape(START).replace(re.escape("{0}"), r"(\S+)"), readme)
    if found is None:
        raise SystemExit("README.md has no headline")
    return ROOT / found[1]


def main() -> None:
    """Write the figure, the page and the README's part."""
    file = ROOT / "README.md"
    readme = file.read_text(encoding="utf-8")
    result = (Path.cwd() / sys.argv[1]).resolve() if len(sys.argv) > 1 else named_result(readme)
    (ROOT / FIGURE).parent.mkdir(parents=True, exist_ok=True)
    (ROOT / FIGURE).write_bytes(figure(result))
    (ROOT / PAGE).write_text(page(result), encoding="utf-8")
    file.write_text(with_headline(readme, headline(result)), encoding="utf-8")


if __name__ == "__main__":
    main()
