"""Run the notebook in an empty folder: `python -m tools.docs.run_notebook` stores its output in docs/notebook.ipynb."""

import json
import tempfile
from pathlib import Path
from typing import Any, Final

NOTEBOOK: Final = Path(__file__).parents[2] / "docs/notebook.ipynb"
_SECONDS: Final = 120


def notebook_with_output(folder: Path) -> dict[str, Any]:
    """Return the notebook after all its cells have run in a folder; an error in a cell is raised."""
    import nbformat
    from nbclient import NotebookClient

    notebook = nbformat.read(NOTEBOOK, as_version=4)
    NotebookClient(notebook, timeout=_SECONDS, resources={"metadata": {"path": str(folder)}}).execute()
    for cell in notebook.cells:
        cell.metadata = {}  # times
        if cell.cell_type == "code":  # standard error has progress, which differs from run to run
            cell.outputs = [output for output in cell.outputs if output.get("name") != "stderr"]
    notebook.metadata.language_info = {"name": "python"}  # the version of Python is no part of it
    document: dict[str, Any] = json.loads(nbformat.writes(notebook))
    return document


def main() -> None:
    """Store the output of the cells."""
    with tempfile.TemporaryDirectory() as folder:
        document = notebook_with_output(Path(folder))
    NOTEBOOK.write_text(json.dumps(document, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
