"""Data goes one way: no circle between files, no part above another that it imports, no import of the package itself.

The graph comes from the text of all files, so a folder needs no `__init__.py`. Imports inside functions count. Imports
under TYPE_CHECKING count for circles, because a reader must follow them, but not for the order of parts: they name the
type of a value that a later part hands down.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

import pilekit

LAYERS = [
    "version",
    "errors",
    "display",
    "workers",
    "artifacts",
    "corpus",
    "documents",
    "shards",
    "pipeline",
    "tokenize",
    "stats",
    "assemble",
    "dedup",
    "cutting",
    "trace",
    "stream",
    "models",
    "evaluate",
    "train",
    "mixtures",
    "exposure",
    "report",
    "explore",
    "cli",
]
"""The parts of the package. A part imports only the parts before it."""

ALLOWED = {("pilekit.train.__main__", "pilekit.cli.main")}
"""`python -m pilekit.train` is the command line under another name."""


def imports_of(folder: Path, *, types: bool = True) -> dict[str, set[str]]:
    """The files that each file of a package imports, as modules. Without `types`, not those under TYPE_CHECKING."""
    files = {file: ".".join((folder.name, *file.relative_to(folder).with_suffix("").parts)) for file in _files(folder)}
    modules = {file: module.removesuffix(".__init__") for file, module in files.items()}
    names = set(modules.values())

    def imported(tree: ast.AST) -> Iterator[str]:
        for node in ast.iter_child_nodes(tree):
            if isinstance(node, ast.Import):
                yield from (alias.name for alias in node.names)
            elif isinstance(node, ast.ImportFrom):
                assert not node.level, "an import is absolute"
                assert node.module
                for alias in node.names:
                    whole = f"{node.module}.{alias.name}"
                    yield whole if whole in names else node.module
            elif types or not (isinstance(node, ast.If) and ast.unparse(node.test).endswith("TYPE_CHECKING")):
                yield from imported(node)

    return {module: names.intersection(imported(ast.parse(file.read_text()))) for file, module in modules.items()}


def _files(folder: Path) -> list[Path]:
    return sorted(folder.rglob("*.py"))


def circle_in(imports: dict[str, set[str]]) -> list[str]:
    """The files of a circle, the first one again at its end; empty if there is none."""
    try:
        TopologicalSorter(imports).prepare()
    except CycleError as error:
        return list(error.args[1])
    return []


def against_the_layers(imports: dict[str, set[str]], layers: list[str]) -> list[tuple[str, str]]:
    """(file, imported file) where a part imports a later part, or where one of them is in no part."""
    levels = {part: level for level, part in enumerate(layers)}

    def level(module: str) -> float:
        """A file at the package's root that is no part may import nothing, and nothing may import it."""
        return levels.get(module.split(".")[1], float("nan"))

    pairs = [(file, module) for file, modules in imports.items() for module in sorted(modules) if "." in file]
    return [(file, module) for file, module in pairs if "." not in module or not level(module) <= level(file)]


PACKAGE = Path(pilekit.__file__).parent


def test_no_circle_between_files() -> None:
    assert circle_in(imports_of(PACKAGE)) == []


def test_no_file_imports_the_package_itself() -> None:
    assert [file for file, imported in imports_of(PACKAGE).items() if "pilekit" in imported] == []


def test_a_part_imports_only_the_parts_before_it() -> None:
    imports = imports_of(PACKAGE, types=False)
    parts = {file.split(".")[1] for file in imports if "." in file}
    assert parts - {"__main__"} == set(LAYERS)
    assert set(against_the_layers(imports, [*LAYERS, "__main__"])) == ALLOWED


@pytest.fixture
def house(tmp_path: Path) -> Path:
    """A package with two parts, of which the kitchen has no `__init__.py`, and imports the cellar."""
    house = tmp_path / "house"
    (house / "kitchen").mkdir(parents=True)
    (house / "__init__.py").touch()
    (house / "kitchen" / "stove.py").write_text("from house.cellar import wine\n")
    (house / "cellar.py").write_text("wine = 1\n")
    return house


@pytest.mark.parametrize(
    ("text", "is_of_types"),
    [
        ("from house.kitchen import stove\n", False),
        ("def cook():\n    import house.kitchen.stove\n", False),
        ("from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from house.kitchen.stove import Stove\n", True),
    ],
)
def test_a_circle_and_an_import_of_a_later_part_are_found(text: str, is_of_types: bool, house: Path) -> None:
    layers = ["cellar", "kitchen"]
    assert imports_of(house)["house.kitchen.stove"] == {"house.cellar"}
    assert circle_in(imports_of(house)) == against_the_layers(imports_of(house), layers) == []

    (house / "cellar.py").write_text(text)
    assert set(circle_in(imports_of(house))) == {"house.cellar", "house.kitchen.stove"}
    later = [("house.cellar", "house.kitchen.stove")]
    assert against_the_layers(imports_of(house, types=False), layers) == ([] if is_of_types else later)


def test_an_import_of_the_package_and_a_file_of_no_part_are_found(house: Path) -> None:
    (house / "cellar.py").write_text("from house import __version__\n")
    assert imports_of(house)["house.cellar"] == {"house"}
    (house / "attic.py").write_text("from house.kitchen import stove\n")
    assert ("house.attic", "house.kitchen.stove") in against_the_layers(imports_of(house), ["cellar", "kitchen"])
