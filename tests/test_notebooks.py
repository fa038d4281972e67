"""Every notebook runs from top to bottom wherever it is copied to, and is stored with its plots."""

from __future__ import annotations

from pathlib import Path

import pytest

nbformat = pytest.importorskip("nbformat", reason="run scripts/test.sh")
NotebookClient = pytest.importorskip("nbclient", reason="run scripts/test.sh").NotebookClient

NOTEBOOKS = sorted((Path(__file__).resolve().parents[1] / "notebooks").glob("*.ipynb"))


def read(path: Path) -> nbformat.NotebookNode:
    notebook = nbformat.read(path, as_version=4)
    nbformat.validate(notebook)
    return notebook


def test_there_are_notebooks() -> None:
    assert NOTEBOOKS


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_runs_from_top_to_bottom(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NOTEBOOK_TIMESTEPS", "2048")  # training in a shortened form
    NotebookClient(read(path), timeout=240, resources={"metadata": {"path": str(tmp_path)}}).execute()


def test_the_cell_that_records_runs_again(tmp_path: Path) -> None:
    notebook = read(next(path for path in NOTEBOOKS if path.stem == "04_imitation"))
    imports, records = [cell for cell in notebook.cells if cell.cell_type == "code"][:2]
    assert "record(" in records.source
    notebook.cells = [imports, records, records]
    NotebookClient(notebook, timeout=240, resources={"metadata": {"path": str(tmp_path)}}).execute()


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_is_stored_with_plots_and_short_text(path: Path) -> None:
    """Check the output of scripts/notebooks.py: run from top to bottom, without progress bars, warnings and errors."""
    cells = [cell for cell in read(path).cells if cell.cell_type == "code"]
    assert [cell.execution_count for cell in cells] == [*range(1, len(cells) + 1)]
    outputs = [output for cell in cells for output in cell.outputs]
    assert any("image/png" in output.get("data", {}) for output in outputs)
    for output in outputs:
        assert output.output_type != "error"
        assert output.get("name") != "stderr"
        assert output.get("text", "").count("\n") <= 40
        assert "application/vnd.jupyter.widget-view+json" not in output.get("data", {})
    assert path.stat().st_size < 1_000_000
