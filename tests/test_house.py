"""Rules for the whole repository: the public names, the files in the package, the names in the documentation."""

from __future__ import annotations

import ast
import importlib.util
import inspect
import json
import re
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

import pilekit
from pilekit.cli.main import COMMANDS
from tests.benchmarks import cluster_cost

ROOT = Path(__file__).parent.parent


def text_of(*names: str) -> str:
    return "\n".join((ROOT / name).read_text(encoding="utf-8") for name in names)


def imported_from_pilekit(code: str) -> set[str]:
    nodes = (node for node in ast.walk(ast.parse(code)) if isinstance(node, ast.ImportFrom))
    return {alias.name for node in nodes if node.module == "pilekit" for alias in node.names}


def test_every_public_name_is_there_and_says_what_it_is() -> None:
    for name in dir(pilekit):
        value = getattr(pilekit, name)
        assert name == "__version__" or inspect.getdoc(value), name
    with pytest.raises(AttributeError, match="nothing_like_this"):
        pilekit.nothing_like_this  # noqa: B018


def test_the_stub_lists_the_public_names() -> None:
    tree = ast.parse(text_of("pilekit/__init__.pyi"))
    imports = [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    imported = {(alias.name, node.module) for node in imports for alias in node.names}
    assert imported == {("__version__", "pilekit.version"), *pilekit._HOME.items()}
    assert all(alias.name == alias.asname for node in imports for alias in node.names)
    assert set(pilekit.__all__) <= set(dir(pilekit)) == {*pilekit._HOME, "__version__"}


def test_importing_pilekit_loads_nothing_heavy_and_all_names_at_once_no_torch() -> None:
    heaviest = {"torch", "transformers", "datasketch"}
    heavy = {*heaviest, "scipy", "matplotlib", "numba", "pyarrow", "numpy", "rich", "click"}
    for statement, unwanted in (("import pilekit", heavy), ("from pilekit import *", heaviest)):
        loaded = f"{statement}\nimport sys\nprint(*{unwanted} & set(sys.modules))"
        assert subprocess.check_output([sys.executable, "-c", loaded], text=True, cwd=ROOT) == "\n"


def test_importing_the_trainer_prints_nothing() -> None:
    """transformers imports torchao, which would warn of each CUDA library that does not fit."""
    pytest.importorskip("torchao")
    statement = "import pilekit.train.trainer"
    done = subprocess.run([sys.executable, "-c", statement], capture_output=True, text=True, check=True, cwd=ROOT)
    assert done.stdout + done.stderr == ""


def test_results_tell_all_as_a_dict_of_json_types(tmp_path: Path) -> None:
    (tmp_path / "data.jsonl").write_bytes(b'{"text":"some <words>","meta":{"pile_set_name":"<b>ArXiv"}}\n' * 3)
    corpus = pilekit.Corpus(tmp_path / "data.jsonl")
    results = [
        pilekit.corpus_stats(corpus),
        pilekit.verify_corpus(corpus),
        pilekit.select_corpus(corpus, tmp_path / "selected", sample=1.0),
        pilekit.dedup_corpus(corpus, out=tmp_path / "unique", jobs=1),
        pilekit.clean_corpus(corpus, rules=["gopher"]),
    ]
    for result in results:
        shown = result._repr_html_()
        assert shown.startswith("<table>")
        assert "<b>" not in shown
    for result in (*results, *pilekit.reframe_corpus(corpus, tmp_path / "out"), *pilekit.index_corpus(corpus)):
        assert json.loads(json.dumps(result.to_dict())) == result.to_dict()
        assert type(result).__name__ in dir(pilekit)
        assert repr(result).startswith(f"{type(result).__name__}(")
        assert len(repr(result)) < 300


def test_the_documents_mention_every_command_and_every_public_name() -> None:
    for document in ("docs/index.md", "CHANGELOG.md"):
        assert not [name for name in COMMANDS if f"pilekit {name}" not in text_of(document)]
    shown = re.findall(r"^::: pilekit\.(\w+)$", text_of("docs/api.md"), re.MULTILINE)
    assert sorted(shown) == sorted(set(dir(pilekit)) - {"__version__"})


def test_the_python_in_the_documents_uses_only_public_names() -> None:
    pages = ("README.md", *(f"docs/{path.name}" for path in (ROOT / "docs").glob("*.md")))
    blocks = re.findall(r"```python\n(.*?)```", text_of(*pages), re.DOTALL)
    assert blocks
    assert set().union(*map(imported_from_pilekit, blocks)) <= set(dir(pilekit))


def test_the_page_on_scale_shows_the_cost_table_that_the_rates_on_the_other_pages_give() -> None:
    assert cluster_cost.table() in text_of("docs/scale.md")


def test_every_page_is_in_the_navigation() -> None:
    pages = {path.name for path in (ROOT / "docs").glob("*.md")}
    assert pages == set(re.findall(r": ([\w-]+\.md)$", text_of("mkdocs.yml"), re.MULTILINE))


def test_files_that_the_pages_about_the_house_name_exist() -> None:
    pages = text_of("docs/architecture.md", "docs/reading-order.md", "docs/testing.md")
    named = set(re.findall(r"`((?:pilekit|tests)/[\w/]+(?:\.py|/))`", pages))
    assert len(named) > 80
    assert {name for name in named if not (ROOT / name).exists()} == set()
    shown = set(re.findall(r"^ (\w+(?:/|\.py)) ", text_of("docs/architecture.md"), re.MULTILINE))
    assert {name for name in shown if not (ROOT / "pilekit" / name).exists()} == set()
    reading_order = text_of("docs/reading-order.md")
    listed = re.findall(r"^\| \d+ \| `(.*?)`", reading_order, re.MULTILINE)
    lines = sum(len(text_of(name).splitlines()) for name in listed)
    assert lines == pytest.approx(int(re.findall(r"about ([\d,]+) lines", reading_order)[0].replace(",", "")), rel=0.05)


@pytest.mark.parametrize("path", sorted((ROOT / "notebooks").glob("*.ipynb")), ids=lambda path: path.name)
def test_notebooks_are_executed_small_and_free_of_this_machines_paths(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert len(text) < 300_000
    assert not re.search(r"/(home|root|Users|tmp|opt)/", text)
    assert str(ROOT) not in text
    cells = [cell for cell in json.loads(text)["cells"] if cell["cell_type"] == "code"]
    code = "\n".join(line for cell in cells for line in cell["source"] if not line.startswith("%"))
    assert "from pilekit." not in code
    assert imported_from_pilekit(code) <= set(dir(pilekit))
    assert [cell["execution_count"] for cell in cells] == list(range(1, len(cells) + 1))
    assert any(cell["outputs"] for cell in cells)
    assert not any(output["output_type"] == "error" for cell in cells for output in cell["outputs"])


def test_the_licence_is_whole_and_constraints_pin_versions_and_nothing_else() -> None:
    for part in ("Version 2.0, January 2004", "3. Grant of Patent License.", "END OF TERMS AND CONDITIONS"):
        assert part in text_of("LICENSE")
    lines = text_of("constraints.txt").splitlines()
    assert "torch==2.13.0" in lines
    assert [line for line in lines if not re.fullmatch(r"[\w.-]+==[\w.]+", line)] == []


@pytest.mark.skipif(importlib.util.find_spec("hatchling") is None, reason="hatchling is not installed")
def test_wheel_and_source_archive_hold_the_manifests_the_types_and_the_licence(tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-m", "hatchling", "build", "-d", str(tmp_path)], cwd=ROOT, check=True)
    wheel = zipfile.ZipFile(next(tmp_path.glob("*.whl"))).namelist()
    with tarfile.open(next(tmp_path.glob("*.tar.gz"))) as archive:
        source = {name.split("/", 1)[-1] for name in archive.getnames()}
    manifests = [path.name for path in (ROOT / "manifests").glob("*.toml")]
    assert len(manifests) >= 3
    for name in manifests:
        assert f"pilekit/manifests/{name}" in wheel
        assert f"manifests/{name}" in source
    assert {"pilekit/py.typed", "pilekit/cli/main.py"} <= set(wheel)
    assert {f"pilekit/report/templates/report.{kind}" for kind in ("html", "css", "js")} <= set(wheel)
    assert {f"pilekit/explore/page/{name}" for name in ("index.html", "explore.js", "explore.css")} <= set(wheel)
    assert any(name.endswith("licenses/LICENSE") for name in wheel)
    assert not any(name.startswith("tests/") for name in wheel)
    assert {"LICENSE", "README.md", "pyproject.toml", "tests/test_house.py"} <= source
