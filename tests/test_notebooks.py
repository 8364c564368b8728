"""The notebooks run from their first cell to their last."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from tests.notebook_kernels import execute
from tests.process_groups import ROOT

SECONDS = 600
"""A cell's at most."""


@pytest.mark.slow
@pytest.mark.parametrize("path", sorted((ROOT / "notebooks").glob("*.ipynb")), ids=lambda path: path.stem)
def test_each_cell_runs(path: Path) -> None:
    nbformat = pytest.importorskip("nbformat")
    execute(nbformat.read(path, as_version=4), path.parent, SECONDS)


@pytest.mark.slow
def test_a_kernel_runs_although_its_ports_were_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    nbformat = pytest.importorskip("nbformat")
    from jupyter_client.connect import LocalPortCache

    with socket.create_server(("127.0.0.1", 0)) as taken:
        monkeypatch.setattr(LocalPortCache, "find_available_port", lambda *_: taken.getsockname()[1])
        notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell("print(6 * 7)")])
        execute(notebook, ROOT, SECONDS)
    assert [output["text"] for output in notebook.cells[0].outputs] == ["42\n"]
