"""LaTeX tables go through a real LaTeX, and fit its page."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from skillmix.report.registry import Entry, Estimate, ReportTable, ScoreEntry, count
from skillmix.report.tables.formats import Marks, as_latex, escaped
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
    document = f"\\documentclass[twocolumn]{{article}}{packages}\\begin{{document}}\n{inputs}\n\\end{{document}}\n"
    (folder / "tables.tex").write_text(document, encoding="ascii")
    command = [pdflatex, "-interaction=nonstopmode", "-halt-on-error", "-no-shell-escape", "tables.tex"]
    made = subprocess.run(command, cwd=folder, capture_output=True, check=False, timeout=120)
    log = (folder / "tables.log").read_text(encoding="latin-1")
    assert made.returncode == 0, "\n".join(re.findall(r"^(?:!|l\.\d).*", log, flags=re.MULTILINE))
    return log


def test_every_table_of_every_report_compiles_and_fits(any_report: Reported, pdflatex: str, tmp_path: Path) -> None:
    tables = sorted((any_report.folder / "tables").glob("*.tex"))
    for_paper = sorted((any_report.folder / "paper").glob("*.tex"))

    log = compiled(pdflatex, [*tables, *for_paper], tmp_path)

    assert len(tables) == len(any_report.tables)
    assert [file.stem for file in for_paper] == ["all-skills", "full-marks", "skill-fraction"]
    assert "Overfull \\hbox" not in log
    assert "Float too large" not in log
    assert (tmp_path / "tables.pdf").stat().st_size > 10_000


def test_whatever_stands_in_a_name_is_printed_and_not_acted_on(pdflatex: str, tmp_path: Path) -> None:
    score = ScoreEntry(Score(0.5, 0.1, 0.9, 0.4, 0.6, 4, 3, 1, 2, 0.4, 0.1, 0.8))
    rows = ((NASTY, Estimate(-0.05, -0.1, 0.0, is_signed=True), count(1234), score), ("[a]", Estimate(None), "–", "–"))
    table = ReportTable("nasty", SIGNS, NASTY, (SIGNS, "gain of it", "n", "full marks"), rows)
    text = as_latex(table)
    (tmp_path / "nasty.tex").write_text(text, encoding="ascii")

    log = compiled(pdflatex, [tmp_path / "nasty.tex"], tmp_path)

    assert "Missing character" not in log
    assert "\\input" not in text and text.count("\\end{tabular}") == 1


def score(value: float, complete: int = 10) -> Score:
    return Score(value, value - 0.1, value + 0.1, value, value, 10, complete, 0, 0, value, None, None)


def test_each_row_is_one_line_with_the_best_score_in_bold_and_signs_explained() -> None:
    best, worse, only = score(0.8), score(0.4), score(0.6, complete=7)
    rows = (
        ("train", "base", ScoreEntry(worse)),
        ("train", "tuned", ScoreEntry(best)),
        ("all", "base", ScoreEntry(only)),
    )
    table = ReportTable("t", "Scores", "Note.", ("setting", "student", "k = 1"), rows)

    lines = as_latex(table, Marks({id(best): "$^{*}$"}, "A star: better.")).splitlines()

    assert lines[lines.index("\\midrule") + 1 : lines.index("\\bottomrule")] == [
        "train & base & .40 {\\scriptsize {[}.30, .50{]}} \\\\",
        " & tuned & \\textbf{.80}$^{*}$ {\\scriptsize {[}.70, .90{]}} \\\\",
        "\\addlinespace",
        "all & base & .60\\ensuremath{^\\circ} {\\scriptsize {[}.50, .70{]}} \\\\",
    ]
    assert "\\begin{table}" in lines
    (note,) = [line for line in lines if line.startswith("\\parbox")]
    assert note.index("Note.") < note.index("Bold:") < note.index("A star: better.") < note.index("not graded")


def test_a_table_wider_than_a_column_takes_the_page() -> None:
    rows: tuple[tuple[Entry, ...], ...] = tuple(
        (f"student {n}", *(ScoreEntry(score(0.5)) for _ in range(5))) for n in range(3)
    )
    columns = ("student", *(f"k = {k}" for k in range(1, 6)))

    text = as_latex(ReportTable("wide", "Wide", "Note.", columns, rows))

    assert text.count("\\begin{table*}") == text.count("\\end{table*}") == 1
    assert "\\textbf" not in text  # equal scores


def test_a_long_table_is_one_float_scaled_to_the_page() -> None:
    rows = tuple((f"row {number}", count(number)) for number in range(100))
    text = as_latex(ReportTable("long", "Long", "Note.", ("name", "n"), rows))

    assert text.count("\\begin{table}") == text.count("\\end{table}") == text.count("\\label{tab:long}") == 1
    assert [int(n) for n in re.findall(r"^row (\d+) &", text, flags=re.MULTILINE)] == list(range(100))
    assert "\\ifdim\\dimexpr\\ht0+\\dp0\\relax>0.80\\textheight\\resizebox*{!}{0.80\\textheight}" in text


def test_a_table_of_groups_wider_than_the_page_has_panels() -> None:
    groups = (("", 1), *((f"k = {k}", 2) for k in range(1, 6)))
    row: tuple[Entry, ...] = ("base", *(ScoreEntry(score(0.5)) for _ in range(10)))

    text = as_latex(ReportTable("w", "Wide", "", ("student", *["full marks", "all skills"] * 5), (row,), groups=groups))

    panels = re.findall(r"\\toprule\n(.*?) \\\\\n", text)
    assert [re.findall(r"k = \d", panel) for panel in panels] == [["k = 1", "k = 2", "k = 3"], ["k = 4", "k = 5"]]
    assert text.count("\nbase & ") == len(panels)


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
