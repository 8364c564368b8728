"""No circle between files, and no file imports the package itself, which imports all others.

Imports inside functions and under TYPE_CHECKING count too: a reader must follow them as well. import-linter, in `make
check`, compares whole folders and leaves these imports out; grimp, its own library, knows the files.
"""

from __future__ import annotations

from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import grimp
import pytest


def imports_of(package: str) -> dict[str, set[str]]:
    """The files that each file of the package imports."""
    graph = grimp.build_graph(package, cache_dir=None, exclude_type_checking_imports=False)
    return {file: graph.find_modules_directly_imported_by(file) for file in sorted(graph.modules)}


def circle_in(imports: dict[str, set[str]]) -> list[str]:
    """The files of a circle, the first one again at its end; empty if there is none."""
    try:
        TopologicalSorter(imports).prepare()
    except CycleError as error:
        return list(error.args[1])
    return []


def test_no_circle_between_files() -> None:
    assert circle_in(imports_of("pilekit")) == []


def test_no_file_imports_the_package_itself() -> None:
    assert [file for file, imported in imports_of("pilekit").items() if "pilekit" in imported] == []


@pytest.mark.parametrize(
    "text",
    [
        "from house import kitchen\n",
        "def cook():\n    import house.kitchen\n",
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from house.kitchen import stove\n",
    ],
)
def test_a_circle_and_an_import_of_the_package_are_found(
    text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = {"__init__": "", "kitchen": "from house.cellar import wine\nstove = 1\n", "cellar": "wine = 1\n"}
    (tmp_path / "house").mkdir()
    for name, content in files.items():
        (tmp_path / "house" / f"{name}.py").write_text(content)
    monkeypatch.syspath_prepend(tmp_path)
    assert circle_in(imports_of("house")) == []
    (tmp_path / "house" / "cellar.py").write_text(text + files["cellar"])
    assert set(circle_in(imports_of("house"))) == {"house.cellar", "house.kitchen"}
    (tmp_path / "house" / "cellar.py").write_text("from house import __version__\n")
    assert "house" in imports_of("house")["house.cellar"]
