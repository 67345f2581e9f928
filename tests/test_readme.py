"""The README's commands run, its table is what they print, its tree is there, its links lead somewhere."""

import io
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from skillmix.commands import main
from tools import readme as readme_tool

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
DOCUMENTS = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", README, re.DOTALL)


def commands() -> list[str]:
    lines = [line[2:].partition("   #")[0] for block in blocks("console") for line in block.splitlines()]
    return [line.strip() for line in lines if line.startswith("skillmix")]


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

    assert blocks("text")[0].strip() in capsys.readouterr().out


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
    drawn = (ROOT / readme_tool.FIGURE).read_text(encoding="utf-8")
    assert f"drawn from {readme_tool.digest(result)}" in drawn, "run `make readme`"
    assert readme_tool.figure(result).count(b"<use") == drawn.count("<use")


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
    (tree,) = (block for block in blocks("text") if "├── render/" in block)
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
