"""The folder: safe, whole, the same every time, and honest about what is not there."""

import json
import re
from collections.abc import Iterator
from contextlib import closing
from hashlib import sha256
from html import unescape
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl

import pytest

from skillmix.commands import main
from skillmix.errors import UserError
from skillmix.report.archive import LARGEST, Chunks
from skillmix.report.contents import Contents
from skillmix.report.page import TERMS, index_page, prose
from skillmix.report.records import Report, ReportOptions, SkillDefinition
from skillmix.report.registry import Estimate, ReportTable, count
from skillmix.report.tables.formats import as_csv, as_latex, as_markdown
from skillmix.report.write import WrittenReport, report
from tests.report.conftest import inside
from tests.report.worlds import World

EVIL = "<script>window.ran=1</script><img src=x onerror=window.ran=2> \u202egnihtemos\u202c {{ 7 * 7 }} \x07"


def contents(folder: Path) -> dict[str, str]:
    return {str(p.relative_to(folder)): sha256(p.read_bytes()).hexdigest() for p in folder.rglob("*") if p.is_file()}


def chunk(file: Path) -> object:
    found = re.fullmatch(r'skillmix\("\w+",\d+,(.*)\);\n', file.read_text(encoding="ascii"), re.DOTALL)
    assert found
    return json.loads(found[1])


def test_two_reports_of_one_journal_are_equal_to_the_byte(world: World, made: WrittenReport, tmp_path: Path) -> None:
    with inside(world.run.parents[1]):
        again = report(["world"], output=tmp_path / "again", options=ReportOptions(rules="both", published=True))

    assert contents(again.page.parent) == contents(made.page.parent)


def test_every_table_has_three_forms_and_every_figure_two(folder: Path) -> None:
    tables = {p.stem for p in (folder / "tables").iterdir()}
    figures = {p.stem for p in (folder / "figures").iterdir()}

    assert {"scores-train", "scores-held-out", "scores-all-all-metrics", "data-efficiency", "findings"} <= tables
    assert {"graders-side-by-side", "common-skills-removed", "rules-side-by-side", "paper-table-11"} <= tables
    wanted = "full-marks skill-fraction saturation observed-and-independent data-efficiency yield training-curves"
    assert {*wanted.split(), "skills-before-and-after", "pairs-1", "common-skills-removed"} <= figures
    for name in tables:
        assert all((folder / "tables" / f"{name}.{form}").stat().st_size for form in ("md", "csv", "tex"))
    for name in figures:
        assert (folder / "figures" / f"{name}.svg").read_text(encoding="utf-8").count("<svg") == 1
        assert (folder / "figures" / f"{name}.png").read_bytes().startswith(b"\x89PNG")


def test_every_table_and_figure_that_is_written_is_on_the_page_once(folder: Path) -> None:
    page = (folder / "index.html").read_text(encoding="utf-8")
    tables = [file.stem for file in (folder / "tables").glob("*.csv")]
    figures = [file.stem for file in (folder / "figures").glob("*.svg")]

    assert sorted(re.findall(r'href="tables/([^"]+)\.csv"', page)) == sorted(tables)
    assert sorted(re.findall(r'class="block figure" id="figure-([^"]+)"', page)) == sorted(figures)
    assert sorted(re.findall(r'<img[^>]* src="figures/([^"]+)\.svg"', page)) == sorted(figures)


def test_pages_have_a_strict_policy_and_nothing_inline(folder: Path) -> None:
    for name in ("index.html", "texts.html", "compare.html"):
        page = (folder / name).read_text(encoding="utf-8")
        (policy,) = re.findall(r'Content-Security-Policy" content="([^"]+)"', page)
        assert policy.startswith("default-src 'none';") and "unsafe" not in policy
        assert not re.search(r"<script(?![^>]*\bsrc=)|\son\w+=|\sstyle=|javascript:|https?://", page), name
        for target in re.findall(r'(?:href|src)="([^"#]+)', page):
            assert (folder / target).exists(), target
    for file in folder.glob("*.js"):
        script = file.read_text(encoding="utf-8")
        assert not re.search(
            r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(|\bfetch\(|XMLHttp", script
        ), file.name


def test_data_files_are_small_ascii_and_lead_to_every_text(folder: Path, world: World) -> None:
    for file in (folder / "data").iterdir():
        assert file.stat().st_size <= LARGEST
        chunk(file)
    index = chunk(folder / "data" / "index.js")
    assert isinstance(index, dict)
    assert index["students"] == [["world", s] for s in ("base", "m1", "m12", "m123")]
    page = (folder / "index.html").read_text(encoding="utf-8")
    links = [dict(parse_qsl(unescape(link))) for link in re.findall(r'texts\.html#([^"]+)', page)]
    linked = {(link["a"], link["grader"], link["setting"], int(link["k"])) for link in links if "k" in link}
    names = {kind: ["/".join(entry) for entry in index[kind]] for kind in ("students", "graders")}
    assert linked == {(names["students"][s], names["graders"][g], setting, k) for s, g, setting, k, _ in index["cells"]}
    assert page.encode().__len__() < 1_000_000


def test_prompts_are_stored_once(folder: Path) -> None:
    lines = [line for file in (folder / "data").glob("lines-*.js") for line in chunk(file)]  # type: ignore[attr-defined]

    assert len(lines) == len(set(lines))


def test_what_was_asked_and_answered_can_be_put_together_again(folder: Path, world: World) -> None:
    import sqlite3

    lines = [
        line for n in range(len(list((folder / "data").glob("lines-*.js")))) for line in _items(folder, "lines", n)
    ]
    texts = [t for c in _items(folder, "texts", 0) for t in c[3]]
    votes = list(_items(folder, "votes", 0))
    text = next(t for t in texts if 0 <= t[7] < len(votes))
    prompts, given = votes[text[7]]
    ((_, numbers),) = prompts[0]
    whole, fresh = "", True
    for number in numbers:
        whole += text[5] if number == -1 else ("" if fresh else "\n") + lines[number]
        fresh = number == -1
    with closing(sqlite3.connect(world.run / "run.sqlite")) as connection, connection:
        stored = {row[0] for row in connection.execute("SELECT content FROM message")}
    assert whole in stored
    assert all(vote[4] in stored for vote in given)


def _items(folder: Path, kind: str, number: int) -> Iterator[Any]:
    found = chunk(folder / "data" / f"{kind}-{number}.js")
    assert isinstance(found, list)
    yield from found


def test_untrusted_text_is_data_only(in_folder: Path) -> None:
    make_evil_run(in_folder)

    made = report(["evil"], options=ReportOptions(figures=False))

    pages = "".join(
        (made.page.parent / n).read_text(encoding="utf-8") for n in ("index.html", "texts.html", "compare.html")
    )
    assert (
        "<script>window" not in pages
        and "<img src=x" not in pages
        and "49" not in pages.partition("<body")[2].partition("<table")[0]
    )
    raw = (made.page.parent / "data" / "texts-0.js").read_text(encoding="ascii")
    assert "\\u202e" in raw and "\\u0007" in raw


def test_names_and_definitions_of_a_catalogue_are_escaped() -> None:
    defined = SkillDefinition(EVIL, EVIL, EVIL, EVIL, "train")
    table = ReportTable("t", "T", "Note.", ("skill",), ((EVIL,), ("plain",)))
    contents = Contents({"skills": [table]}, [])

    page = index_page(Report(runs=(), cells=(), definitions={EVIL: defined}), contents, [], EVIL)

    assert "<script>window" not in page and "<img src=x" not in page and "49" not in page
    assert page.count("&lt;script&gt;window.ran=1&lt;/script&gt;") >= 6
    assert '<a class="defined" href="#skill-1" aria-describedby="skill-1-text">&lt;script' in page
    assert "\u202e" not in page and "\x07" not in page


def make_evil_run(folder: Path) -> None:
    grading = f"| metaphor | 1 |\n| topic | 1 |\n| sense | 1 |\n{EVIL}"
    line = {
        "student": "small",
        "skills": ["metaphor"],
        "topic": "Sewing",
        "text": EVIL,
        "gradings": {"careful": [grading]},
    }
    other = {**line, "student": "large", "text": "Time is a careful tailor.", "gradings": {"careful": [grading]}}
    (folder / "evil.jsonl").write_text(json.dumps(line) + "\n" + json.dumps(other) + "\n", encoding="utf-8")
    assert main(["import-texts", str(folder / "evil.jsonl"), "--run", "evil"]) == 0


def test_what_is_missing_is_said(in_folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make_evil_run(in_folder)
    capsys.readouterr()

    assert main(["report", "evil", "--json"]) == 0

    told = json.loads(capsys.readouterr().out)
    page = Path(told["page"]).read_text(encoding="utf-8")
    for words in (
        "No student has a lineage",
        "no two graders graded the same text",
        "no grader voted twice",
        "It needs data sets",
    ):
        assert any(words in gap for gap in told["missing"]), words
        assert words in page
    assert 'id="findings"' not in page and "#findings" not in page  # no claim can be judged


def test_several_runs_stand_in_one_report(in_folder: Path, world: World, capsys: pytest.CaptureFixture[str]) -> None:
    make_evil_run(in_folder)
    capsys.readouterr()

    assert main(["report", "evil", str(world.run), "--output", "both", "--no-figures"]) == 0

    assert capsys.readouterr().out.strip() == "both/index.html"
    table = (in_folder / "both" / "tables" / "scores-imported.md").read_text(encoding="utf-8")
    assert "evil: small" in table
    index = chunk(in_folder / "both" / "data" / "index.js")
    assert isinstance(index, dict) and index["runs"] == ["evil", "world"]


def test_graders_that_are_code_show_the_words_and_what_nobody_asked_for(in_folder: Path) -> None:
    (in_folder / "x.yaml").write_text(
        "name: x\ncatalog: verifiable\n"
        "students: {s: {model: 'scripted:student'}}\ngraders: {rules: {model: 'rules:'}}\nsteps:\n"
        "- {name: e, stage: evaluate, students: [s], graders: [rules], settings: [all], k: [1, 2], combinations: 6}\n"
        "- {name: report, stage: report, published: true}\n",
        encoding="utf-8",
    )

    assert main(["run", "x.yaml"]) == 0

    folder = in_folder / "runs" / "x" / "report"
    assert (folder / "figures" / "requested-and-unrequested.svg").exists()
    texts = [t for c in _items(folder, "texts", 0) for t in c[3]]
    assert all(isinstance(t[8], list) and isinstance(t[9], list) for t in texts)
    assert (folder / "tables" / "paper-table-5.csv").exists()


def test_a_folder_that_is_no_report_is_left_alone(in_folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make_evil_run(in_folder)
    (in_folder / "mine").mkdir()
    (in_folder / "mine" / "thesis.tex").write_text("precious", encoding="utf-8")

    assert main(["report", "evil", "--output", "mine"]) == 2

    assert "is not a report" in capsys.readouterr().err
    assert (in_folder / "mine" / "thesis.tex").read_text(encoding="utf-8") == "precious"
    for _ in range(2):
        assert main(["report", "evil", "--output", "new", "--no-figures"]) == 0
    assert not list(in_folder.glob("*.partial"))


@pytest.mark.parametrize("words", [["nowhere"], ["x.yaml"], ["evil", "other/evil"], ["evil", "--rules", "lenient"]])
def test_wrong_words_are_told_in_one_line(
    in_folder: Path, words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    make_evil_run(in_folder)
    (in_folder / "other").mkdir()
    main(["import-texts", "evil.jsonl", "--run", "other/evil"])
    capsys.readouterr()

    try:
        status = main(["report", *words])
    except SystemExit as stopped:
        status = int(str(stopped.code))

    assert status == 2
    assert "Traceback" not in capsys.readouterr().err


def test_an_item_larger_than_a_file_is_cut_and_says_so() -> None:
    files: dict[str, str] = {}
    chunks = Chunks("votes", files.__setitem__)

    for item in ("é" * 400_000, ["x" * 600_000], "short", ["y" * 600_000]):
        chunks.add(item)
    chunks.flush()

    assert all(len(content) <= LARGEST for content in files.values())
    assert "truncated" in files["votes-0.js"]
    assert chunks.starts == [0, 3]


def test_forms_of_a_table_escape_what_their_readers_would_act_on() -> None:
    rows = (
        ("a|b & 50 % _x_ \\ <b>", Estimate(-0.05, -0.1, 0.0, is_signed=True), count(1234)),
        ("=1+1", Estimate(None), count(None)),
    )
    table = ReportTable("t", "T & T", "Note.", ("name", "gain", "n"), rows)

    assert r"a\|b & 50 % _x_ \ <b>" in as_markdown(table) and "−.05 [−.10, .00]" in as_markdown(table)
    assert "a|b & 50 % _x_ \\ <b>,-0.05,-0.1,0.0,1234\n'=1+1,,,,\n" in as_csv(table)
    assert (
        r"a\textbar{}b \& 50 \% \_x\_ \textbackslash{} \textless{}b\textgreater{} & $-$.05 {[}$-$.10, .00{]} & 1,234 \\"
        in as_latex(table)
    )


def test_rules_are_checked_before_anything_is_read(in_folder: Path) -> None:
    make_evil_run(in_folder)

    with pytest.raises(UserError, match="no rules"):
        report(["evil"], options=ReportOptions(rules="lenient"))


def test_the_page_explains_itself_to_a_reader_who_knows_nothing(folder: Path) -> None:
    page = (folder / "index.html").read_text(encoding="utf-8")
    lead = page.split('id="findings"')[0]

    assert 'class="simulated">The ' in lead and "not language models." in lead
    assert "`" not in page and "<code>skillmix compare RUN A B</code>" in page
    assert not re.search(r"\d %", re.sub(r"<title>.*?</title>| (?:alt|aria-label)=\"[^\"]*\"", "", page))
    (menu,) = re.findall(r'<nav aria-label="Sections">(.*?)</nav>', page)
    assert re.findall(r'href="([^"]+)"', menu)[:2] == ["compare.html", "texts.html"]
    (intro,) = re.findall(r'<section id="scores">\s*<h2>Scores</h2>\s*<p class="intro">(.*?)</p>', page)
    assert re.search(r"A big number is the best (?:of \d+ texts|text) of each combination; .*mean over single", intro)
    assert "Skills, the hardest for all students first" in page
    assert {"scripted", "train", "held-out", "student", "grader", "marker", "waiting", "best of N"} <= TERMS.keys()
    (times,) = re.findall(r'id="where-the-time-went">.*?<thead>(.*?)</thead>', page, re.DOTALL)
    assert ">step<" in times and ">wall time<" in times
    (calls,) = re.findall(r'id="calls-and-cost">(.*?)</section>', page, re.DOTALL)
    assert '<th scope="row" class="short">all</th>' in calls and "one call for each turn" in calls


def test_prose_escapes_everything_but_its_own_code() -> None:
    assert prose("`<b>` & 5% ` alone") == "<code>&lt;b&gt;</code> &amp; 5% ` alone"
