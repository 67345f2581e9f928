"""The README's commands run, its table is what they print, its tree is there, its links lead somewhere."""

import io
import json
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from skillmix.commands import main
from skillmix.render.numbers import share_with_interval
from tools import readme as readme_tool

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
DOCUMENTS = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]


COVERED = "skillmix run experiments/smoke.yaml"
"""A command that takes half a minute; tests/test_truth.py and tests/test_package.py run its parts."""


def blocks(language: str, document: str = README) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", document, re.DOTALL)


def read(path: str) -> str:
    return (ROOT / path).read_text(encoding="utf-8")


def commands() -> list[str]:
    lines = [line[2:].partition("   #")[0] for block in blocks("console") for line in block.splitlines()]
    return [line.strip() for line in lines if line.startswith("skillmix") and line.strip() != COVERED]


def test_the_commands_run(in_folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert len(commands()) >= 7
    for command in commands():
        words = [str(ROOT / w) if w.startswith("src/") else w for w in shlex.split(command)[1:]]

        assert main(words) == 0, command
        assert capsys.readouterr().out


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
    main(["grade-text", "--catalog", "verifiable", *asked])

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


def test_the_headline_is_that_of_the_result_it_names() -> None:
    result = readme_tool.named_result(README)

    assert readme_tool.headline(result) in README, "run `make readme`"
    assert readme_tool.page(result) == (ROOT / readme_tool.PAGE).read_text(encoding="utf-8"), "run `make readme`"
    drawn = (ROOT / readme_tool.FIGURE).read_text(encoding="utf-8")
    assert f"drawn from {readme_tool.digest(result)}" in drawn, "run `make readme`"
    assert readme_tool.figure(result).count(b"<use") == drawn.count("<use")


def test_each_number_of_the_finding_is_in_the_result() -> None:
    document = json.loads(readme_tool.named_result(README).read_text(encoding="utf-8"))
    finding = document.pop("finding")
    shares = (share_with_interval(s["value"], s["low"], s["high"]) for s in document["scores"])
    known = " ".join([*shares, *(f["sentence"] for f in document["findings"])])
    quoted = re.findall(r"[+−]?\.\d\d(?: \[[^]]+\])?", finding)

    assert len(quoted) >= 4
    for number in quoted:
        assert number in known, number


def test_the_python_example_runs(in_folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (example,) = blocks("python")

    exec(example, {})

    assert "| student" in capsys.readouterr().out


def test_make_targets_exist() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")

    for document in DOCUMENTS:
        for target in re.findall(r"(?:`|\$ )make ([a-z]+)", document.read_text(encoding="utf-8")):
            assert re.search(rf"^{target}:", makefile, re.MULTILINE), f"{document.name}: {target}"


def test_the_tree_is_there() -> None:
    (tree,) = (block for block in blocks("text", read("docs/architecture.md")) if "├── render/" in block)
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


def test_every_command_is_documented() -> None:
    result = subprocess.run([sys.executable, "-m", "skillmix", "--help"], capture_output=True, text=True, check=True)
    listed = re.findall(r"^    ([a-z-]+)(?:\s|$)", result.stdout, re.MULTILINE)
    documented = (ROOT / "docs/commands.md").read_text(encoding="utf-8")

    assert len(listed) >= 9
    for command in listed:
        assert f"`{command}" in documented, command
