from __future__ import annotations

import os
from pathlib import Path

import pytest

from pilekit.assemble.sources import (
    MAX_FILE_BYTES,
    docstrings,
    language_reference,
    python_documents,
    source_files,
    standard_library,
)

MODULE = '''"""About it."""

class Outer:
    """A class.

    With two paragraphs."""

    def method(self):
        """Of the class."""
        def inner():
            "Of the method."

    async def without(self): ...

if True:
    def conditional():
        """Under an if."""
'''


def library(folder: Path) -> Path:
    """A small library with everything in it that is to be left out."""
    files = {
        "plain.py": b"x = 1\n",
        "package/__init__.py": MODULE.encode(),
        "package/accents.py": '"""Größe."""\n'.encode(),
        "package/latin.py": b'# coding: latin-1\n"""Gr\xf6\xdfe."""\n',
        "package/broken.py": b"def (:\n",
        "package/null.py": b"x = 1\n\0\n",
        "empty.py": b"",
        "blank.py": b"\n\n",
        "notes.txt": b"no Python",
        "_sysconfigdata__linux.py": b"prefix = 'here'\n",
        "large.py": b"#" * MAX_FILE_BYTES,
        "test/test_plain.py": b"assert True\n",
        "package/tests/test_it.py": b"assert True\n",
        "site-packages/other/__init__.py": b"other = 1\n",
        "__pycache__/odd.py": b"cached = 1\n",
    }
    for name, content in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)
    return folder


def test_source_files_are_those_of_the_library_proper_in_order(tmp_path: Path) -> None:
    found = list(source_files(library(tmp_path)))
    assert [path for path, _ in found] == [
        "package/__init__.py",
        "package/accents.py",
        "package/broken.py",
        "package/null.py",
        "plain.py",
    ]
    assert dict(found)["package/__init__.py"] == MODULE


def test_unreadable_files_are_passed_over(tmp_path: Path) -> None:
    library(tmp_path)
    (tmp_path / "gone.py").symlink_to(tmp_path / "nowhere.py")
    (tmp_path / "folder.py").mkdir()
    if os.geteuid():
        (tmp_path / "plain.py").chmod(0)
    assert {"gone.py", "folder.py"}.isdisjoint(dict(source_files(tmp_path)))
    assert ("plain.py" in dict(source_files(tmp_path))) == (os.geteuid() == 0)


def test_docstrings_come_with_their_qualified_names() -> None:
    assert list(docstrings("package/__init__.py", MODULE)) == [
        ("package", "About it."),
        ("package.Outer", "A class.\n\nWith two paragraphs."),
        ("package.Outer.method", "Of the class."),
        ("package.Outer.method.inner", "Of the method."),
        ("package.conditional", "Under an if."),
    ]
    assert list(docstrings("a/b.py", "'''Of b.'''")) == [("a.b", "Of b.")]


@pytest.mark.parametrize("text", ["def (:\n", "x = 1\0", "", "x = '\\d'\n", "'''   '''"])
def test_files_that_do_not_parse_or_say_nothing_have_no_docstrings(text: str, recwarn: pytest.WarningsRecorder) -> None:
    assert list(docstrings("odd.py", text)) == []
    assert not recwarn.list


def test_documents_that_share_text_share_a_group(tmp_path: Path) -> None:
    documents = [document for document in python_documents(library(tmp_path)) if document.subset != "Python Reference"]
    sources = {document.group: document.text for document in documents if document.subset == "Github"}
    assert documents[0].subset == "Github"
    for document in documents:
        assert document.group in sources
    assert [document.text for document in documents if document.subset == "Docstrings"][:2] == [
        "package\n\nAbout it.\n",
        "package.Outer\n\nA class.\n\nWith two paragraphs.\n",
    ]


@pytest.mark.slow
def test_this_python_has_enough_of_everything() -> None:
    # Half of what CPython 3.11 has: the demo needs 10 MB in all, whatever a distribution leaves out.
    sizes: dict[str, int] = {}
    for document in python_documents():
        sizes[document.subset] = sizes.get(document.subset, 0) + len(document.text.encode())
    assert sizes["Github"] > 5_000_000
    assert sizes["Docstrings"] > 800_000
    assert sizes["Python Reference"] > 200_000
    assert list(language_reference()) == sorted(language_reference())
    assert standard_library().is_dir()
