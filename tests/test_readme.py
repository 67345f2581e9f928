"""The README's commands run, its table is what they print, its tree is there, its links lead somewhere."""

import io
import json
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from skillmix.commands import main
from skillmix.render import signed_with_interval
from tests.docs.pages import blocks_of as fenced
from tests.docs.pages import commands as shown_commands
from tests.docs.test_blocks import SERVED, a_server
from tools import readme as readme_tool

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
DOCUMENTS = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]


LINES_BEFORE_LINKS, ROWS_OF_LINKS = 60, 8


def blocks(language: str, document: str = README) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", document, re.DOTALL)


def read(path: str) -> str:
    return (ROOT / path).read_text(encoding="utf-8")


def test_it_fits_two_screens() -> None:
    lines = README.splitlines()
    first = next(number for number, line in enumerate(lines) if line.startswith("| I want to"))

    assert first <= LINES_BEFORE_LINKS
    assert sum(line.startswith("| ") for line in lines[first:]) - 1 <= ROWS_OF_LINKS


def test_the_commands_run_and_print_what_it_shows(in_folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The demo from top to bottom; its report alone is left out, for its time."""
    (block,) = (found for found in fenced("README.md", README) if found.language == "console")
    (_install, *commands) = shown_commands(block)
    assert [command.line.split()[1] for command in commands] == ["run", "texts", "init", "run", "run"]

    with a_server() as address:
        for command in commands:
            line = command.line.replace("run smoke", "evaluate smoke").replace(SERVED, address)
            line += " --set steps.eval.combinations=2" if line == "skillmix run evaluate.yaml" else ""

            assert main(shlex.split(line.replace("openai:my-model", "openai:mistral-7b"))[1:]) == 0, line
            printed = capsys.readouterr()
            assert all(row in printed.out.splitlines() for row in command.output), line
            assert printed.out or printed.err


def test_the_table_is_that_of_the_example_run(in_folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main(["import-texts", str(ROOT / "src/skillmix/data/examples/demo.jsonl"), "--run", "demo"])
    capsys.readouterr()

    main(["scores", "demo"])

    assert blocks("text", read("docs/commands.md"))[0].strip() in capsys.readouterr().out


def test_the_graded_text_has_these_points_and_this_evidence(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (text,) = re.findall(r"^> (.+)$", README, re.MULTILINE)
    (names,) = re.findall(r"^\| (.+ sense .+) \|$", README, re.MULTILINE)
    (points,) = re.findall(r"^\| (1  “.+) \|$", README, re.MULTILINE)
    criteria = [re.sub(r" \(.+\)", "", name.strip()) for name in names.split("|")]
    shown = dict(zip(criteria, (point.strip() for point in points.split("|")), strict=True))
    *skills, topic = list(shown)[:-2]
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(f"{text}\n".encode())))

    asked = ["--skills", ";".join(skills), "--topic", topic.removeprefix("topic: ")]
    main(["grade-text", "figures", *asked])

    printed = dict(re.findall(r"^(.+?): ([01](?:  “[^”]*”)?)", capsys.readouterr().out, re.MULTILINE))
    assert printed == {name.partition(":")[0]: point for name, point in shown.items()}
    assert len(printed) == len(skills) + 3 == 5


def test_the_graded_text_of_the_guide_is_what_the_command_prints(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    guide = (ROOT / "docs/verifiable.md").read_text(encoding="utf-8")
    (shown,) = re.findall(r'\$ echo "(.+?)" \| skillmix (grade-text .+?)\n(.+?)```', guide, re.DOTALL)
    text, command, printed = shown
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(f"{text}\n".encode())))

    assert main(shlex.split(command)) == 0

    assert capsys.readouterr().out == printed


def test_the_readme_is_that_of_the_result_that_it_names() -> None:
    assert readme_tool.headline(readme_tool.named_result(README)) in README, "run `make readme`"


@pytest.mark.parametrize("name", readme_tool.STUDIES)
def test_pages_and_figures_are_those_of_their_results(name: str) -> None:
    result, study = ROOT / "results" / f"{name}.json", readme_tool.STUDIES[name]

    assert readme_tool.page(result) == (ROOT / study.page).read_text(encoding="utf-8"), "run `make readme`"
    drawn = (ROOT / study.figure).read_text(encoding="utf-8")
    assert f"drawn from {readme_tool.digest(result)}" in drawn, "run `make readme`"
    assert readme_tool.figure(result).count(b"<use") == drawn.count("<use")


@pytest.mark.parametrize("part", ["conditions", "checks"])
def test_each_value_of_a_condition_and_of_a_check_is_on_the_page(
    part: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = json.loads((ROOT / "results/pretraining.json").read_text(encoding="utf-8"))
    page = readme_tool.page(ROOT / "results/pretraining.json")

    for path in paths_of(whole[part]):
        if path[-1] not in ("condition", "student", "k"):
            document = json.loads(json.dumps(whole))
            node = document[part]
            for name in path[:-1]:
                node = node[name]
            node[path[-1]] += 1
            result = tmp_path / "pretraining.json"
            result.write_text(json.dumps(document), encoding="utf-8")
            with monkeypatch.context() as patched:
                patched.setattr(readme_tool, "_named", lambda file: "results/pretraining.json")
                assert readme_tool.page(result) != page, path


@pytest.fixture
def result(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The result of a quickstart, with doses as in a study."""
    document = json.loads((ROOT / "tests/results/quickstart.json").read_text(encoding="utf-8"))
    document["doses"] = [
        {"others": o, "student": o, "examples": n, "partitions": 6, "value": v + n / 1000, "low": v, "high": 0.9}
        for o, v in (("with", 0.21), ("without", 0.11))
        for n in (0, 50)
    ]
    monkeypatch.setattr(readme_tool, "ROOT", tmp_path)
    file = tmp_path / "result.json"
    file.write_text(json.dumps(document), encoding="utf-8")
    return file


def paths_of(value: Any) -> Iterator[tuple[Any, ...]]:
    """The places of the numbers in a JSON value that a reader sees."""
    if isinstance(value, dict | list):
        for key, part in value.items() if isinstance(value, dict) else enumerate(value):
            yield from ((key, *rest) for rest in paths_of(part))
    elif isinstance(value, int | float | str | bool):
        yield ()


HIDDEN = ("p", "run", "name", "partitions", "combinations", "generations", "seeds", "by_partition", "title")
"""Seen in `words`, in other places, or only where there are several."""
REFERENCES = ("student", "setting", "others")
"""Names that lead to other parts of the file."""


def test_each_value_of_a_result_is_on_the_page(result: Path) -> None:
    whole = json.loads(result.read_text(encoding="utf-8"))
    page = readme_tool.page(result)

    for path in paths_of(whole):
        if any(name in HIDDEN for name in path) or path[-1] in REFERENCES:
            continue
        document = json.loads(json.dumps(whole))
        *place, last = path
        node = document
        for name in place:
            node = node[name]
        old = node[last]
        node[last] = old + "x" if isinstance(old, str) else not old if isinstance(old, bool) else old + 1
        result.write_text(json.dumps(document), encoding="utf-8")
        assert readme_tool.page(result) != page, path


def test_the_headline_states_each_claim_with_its_numbers_and_its_verdict(result: Path) -> None:
    document = json.loads(result.read_text(encoding="utf-8"))

    text = readme_tool.headline(result)

    for one in document["comparisons"]:
        (row,) = (line for line in text.splitlines() if f"| {one['title']} " in line)
        assert (one["claim"] or one["title"])[1:] in row and row.rstrip(" |").endswith(f"| {one['verdict']}")
        assert f"| {100 * one['value']:.0f}% " in row and f"| {100 * one['against_value']:.0f}% " in row
        assert signed_with_interval(one["difference"], one["low"], one["high"]) in row
        assert (one["condition"] or "") in text.replace("\n", " ")
    assert "All numbers hold for one partition" in text.replace("\n", " ")
    assert readme_tool.figure(result).startswith(b"<?xml")


def test_the_page_states_the_verdict_with_its_numbers(result: Path) -> None:
    first = json.loads(result.read_text(encoding="utf-8"))["comparisons"][0]

    text = readme_tool.page(result)

    assert f"**Supported: {first['claim']}.**" in text
    assert f"in {100 * first['value']:.0f}% of its texts" in text
    assert f"{signed_with_interval(first['difference'], first['low'], first['high'])}, a gain, p < .001" in text
    assert "After 0, 50 composed texts of each new figure" in text and ".21, .26 of the texts (6 partitions)" in text
    assert "All numbers hold for one partition" in text


def test_gates_that_fail_are_in_the_headline_and_on_the_page(result: Path) -> None:
    document = json.loads(result.read_text(encoding="utf-8"))
    for gate in document["gates"]:
        gate["holds"] = True
    result.write_text(json.dumps(document), encoding="utf-8")
    assert "preconditions" not in readme_tool.headline(result)
    assert "Gates that fail" not in readme_tool.page(result)

    document["gates"][0] |= {"value": 0.41, "holds": False}
    result.write_text(json.dumps(document), encoding="utf-8")

    failed = f"1 of {len(document['gates'])} preconditions fail, by 0.440 at most."
    assert failed in readme_tool.headline(result).replace("\n", " ")
    assert "**Gates that fail:** m123, train, k = 1: 0.410 (required: 0.85)." in readme_tool.page(result)


def test_make_targets_exist() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")

    for document in DOCUMENTS:
        for target in re.findall(r"(?:`|\$ )make ([a-z]+)", document.read_text(encoding="utf-8")):
            assert re.search(rf"^{target}:", makefile, re.MULTILINE), f"{document.name}: {target}"


def test_the_tree_is_there() -> None:
    (tree,) = (block for block in blocks("text", read("CONTRIBUTING.md")) if "├── render.py" in block)
    names = re.findall(r"[├└]── ([\w.]+)/?", tree)

    for name in names:
        assert list((ROOT / "src/skillmix").rglob(name)), name
    shown = {name for name in names if name not in ("statistics", "local")}
    files = [p.relative_to(ROOT / "src/skillmix") for p in (ROOT / "src/skillmix").rglob("*") if p.is_file()]
    folders = {p.parts[0] for p in files if len(p.parts) > 1 and "__pycache__" not in p.parts}
    assert folders <= shown


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_links_lead_somewhere(document: Path) -> None:
    for target in re.findall(r"\]\(([^)#]+)\)", document.read_text(encoding="utf-8")):
        assert target.startswith("https://") or (document.parent / target).exists(), target
