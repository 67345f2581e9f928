"""Run the notebook in an empty folder: `python -m tools.docs.run_notebook` stores its output in docs/notebook.ipynb."""

import json
import tempfile
from pathlib import Path
from typing import Any, Final

NOTEBOOK: Final = Path(__file__).parents[2] / "docs/notebook.ipynb"
_SECONDS: Final = 120


def notebook_with_output(folder: Path) -> dict[str, Any]:
    """Return the notebook after running all its cells in a folder; raise the error of a cell that fails."""
    import nbformat
    from nbclient import NotebookClient

    notebook = nbformat.read(NOTEBOOK, as_version=4)
    NotebookClient(notebook, timeout=_SECONDS, resources={"metadata": {"path": str(folder)}}).execute()
    for cell in notebook.cells:
        cell.metadata = {}  # the removed metadata contains times
        if cell.cell_type == "code":  # standard error contains progress, which differs between runs
            cell.outputs = [output for output in cell.outputs if output.get("name") != "stderr"]
    notebook.metadata.language_info = {"name": "python"}  # without the version of Python
    document: dict[str, Any] = json.loads(nbformat.writes(notebook))
    return document


def main() -> None:
    """Run the notebook and store the output of its cells."""
    with tempfile.TemporaryDirectory() as folder:
        document = notebook_with_output(Path(folder))
    NOTEBOOK.write_text(json.dumps(document, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
