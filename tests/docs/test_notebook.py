"""The notebook runs from top to bottom, and prints what is stored with it."""

import json
import warnings
from pathlib import Path
from typing import Any

import pytest
from tools.docs.notebook_page import fenced, page_of_notebook
from tools.docs.run_notebook import NOTEBOOK, notebook_with_output


def output(notebook: dict[str, Any]) -> list[Any]:
    """What the cells print and show; a picture only says that it is one."""
    shown: list[Any] = []
    for cell in notebook["cells"]:
        for part in cell.get("outputs", ()):
            data = part.get("data", {})
            shown.append("picture" if "image/png" in data else "".join(data.get("text/markdown", part.get("text", ""))))
    return shown


@pytest.mark.filterwarnings("default")  # of Jupyter's packages
def test_it_runs_and_prints_what_is_stored(tmp_path: Path) -> None:
    for package in ("nbclient", "ipykernel"):
        pytest.importorskip(package, reason="the packages of the notebook are not installed")
    stored = json.loads(NOTEBOOK.read_text(encoding="utf-8"))

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        ran = notebook_with_output(tmp_path)

    assert output(ran) == output(stored), "run `python -m tools.docs.run_notebook`"
    assert "picture" in output(ran) and (tmp_path / "runs/notebook/report/index.html").is_file()


def test_the_page_of_a_notebook_has_texts_code_tables_and_pictures() -> None:
    cells = [
        {"cell_type": "markdown", "source": ["# Title\n", "text"]},
        {
            "cell_type": "code",
            "source": "run",
            "outputs": [
                {"output_type": "stream", "name": "stdout", "text": ["a ``` b\n", "```\n"]},
                {"output_type": "execute_result", "data": {"text/markdown": "| a |\n|---|", "text/plain": "Run"}},
                {"output_type": "display_data", "data": {"image/png": "AA\nBB", "text/plain": "<Figure>"}},
                {"output_type": "execute_result", "data": {"text/plain": "[1]"}},
            ],
        },
    ]

    page = page_of_notebook(json.dumps({"cells": cells}))

    assert page.startswith("# Title\ntext\n\n```python\nrun\n```\n\n````text\na ``` b\n```\n````\n\n| a |\n|---|\n\n![")
    assert "base64,AABB)" in page and page.endswith("```text\n[1]\n```\n")
    assert fenced("x", "text") == "```text\nx\n```"
