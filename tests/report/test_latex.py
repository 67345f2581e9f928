"""LaTeX tables go through a real LaTeX, and fit its page."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from skillmix.report.tables.latex import as_latex, escaped
from skillmix.report.tables.table import Count, Estimate, ReportTable, ScoreEntry
from skillmix.scores.cells import Score
from tests.report.cases import Reported

INSTALL = "to run it: apt-get install --no-install-recommends texlive-latex-recommended"
SIGNS = "αβΩςλ μ±≥→“”…‚ 中文 🙂 \u202e \x07 \ue000 --- [x] *y* \\end{tabular} \\input{/etc/passwd}"
NASTY = "".join(map(chr, range(0x20, 0x250))) + SIGNS


@pytest.fixture(scope="module")
def pdflatex() -> str:
    program = shutil.which("pdflatex")
    if program is None:
        pytest.skip(f"pdflatex is not here; {INSTALL}")
    found = subprocess.run(["kpsewhich", "booktabs.sty"], capture_output=True, check=False)
    if found.returncode:
        pytest.skip(f"the package booktabs is not here; {INSTALL}")
    return program


def compiled(pdflatex: str, tables: list[Path], folder: Path) -> str:
    """The log of a document with these tables, each on a page of its own; it must come to its end."""
    inputs = "\n".join(f"\\input{{{table}}}\\clearpage" for table in tables)
    packages = "\\usepackage{booktabs}\\usepackage{graphicx}"
    document = f"\\documentclass{{article}}{packages}\\begin{{document}}\n{inputs}\n\\end{{document}}\n"
    (folder / "tables.tex").write_text(document, encoding="ascii")
    command = [pdflatex, "-interaction=nonstopmode", "-halt-on-error", "-no-shell-escape", "tables.tex"]
    made = subprocess.run(command, cwd=folder, capture_output=True, check=False, timeout=120)
    log = (folder / "tables.log").read_text(encoding="latin-1")
    assert made.returncode == 0, "\n".join(re.findall(r"^(?:!|l\.\d).*", log, flags=re.MULTILINE))
    return log


def test_every_table_of_every_report_compiles_and_fits(any_report: Reported, pdflatex: str, tmp_path: Path) -> None:
    tables = sorted((any_report.folder / "tables").glob("*.tex"))

    log = compiled(pdflatex, tables, tmp_path)

    assert len(tables) == len(any_report.tables)
    assert "Overfull \\hbox" not in log
    assert "Float too large" not in log
    assert (tmp_path / "tables.pdf").stat().st_size > 10_000


def test_whatever_stands_in_a_name_is_printed_and_not_acted_on(pdflatex: str, tmp_path: Path) -> None:
    score = ScoreEntry(Score(0.5, 0.1, 0.9, 0.4, 0.6, 4, 3, 1, 2, 0.4, 0.1, 0.8))
    rows = ((NASTY, Estimate(-0.05, -0.1, 0.0, is_signed=True), Count(1234), score), ("[a]", Estimate(None), "–", "–"))
    table = ReportTable("nasty", SIGNS, NASTY, (SIGNS, "gain of it", "n", "full marks"), rows)
    text = as_latex(table)
    (tmp_path / "nasty.tex").write_text(text, encoding="ascii")

    log = compiled(pdflatex, [tmp_path / "nasty.tex"], tmp_path)

    assert "Missing character" not in log
    assert "\\input" not in text and text.count("\\end{tabular}") == 2  # the table, and its score


def test_a_long_table_goes_on_under_its_number() -> None:
    rows = tuple((f"row {number}", Count(number)) for number in range(100))

    text = as_latex(ReportTable("long", "Long", "Note.", ("name", "n"), rows))

    assert text.count("\\begin{table}") == text.count("\\end{table}") == 3
    assert text.count("\\label{tab:long}") == 1 and text.count("Long, continued.") == 2
    assert text.count("\\addtocounter{table}{-1}") == 2
    assert [int(n) for n in re.findall(r"^row (\d+) &", text, flags=re.MULTILINE)] == list(range(100))


@pytest.mark.parametrize(
    ("text", "printed"),
    [
        ("a--b", "a-{-}b"),
        ("é ñ å Č", r"\'{e} \~{n} \r{a} \v{C}"),
        ("ω Σ ο", r"$\omega$ $\Sigma$ \texttt{U+03BF}"),
        ("«x»", r"\texttt{U+00AB}x\texttt{U+00BB}"),
        ("a\nb\x00", "a b "),
    ],
)
def test_signs(text: str, printed: str) -> None:
    assert escaped(text) == printed
