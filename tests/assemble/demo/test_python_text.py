"""Which texts of a Python installation become documents, and edited copies of them."""

from __future__ import annotations

from pathlib import Path

import pytest

from pilekit.assemble.demo.python_text import (
    MAX_FILE_BYTES,
    SourceDocument,
    docstrings,
    python_documents,
    source_files,
)
from pilekit.assemble.demo.reposts import EDITS, LEAST_WORDS, reposts
from tests.dedup import reference

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
    names = [*(f"package/{name}.py" for name in ("__init__", "accents", "broken", "null")), "plain.py"]
    assert [path for path, _ in found] == names
    assert dict(found)["package/__init__.py"] == MODULE
    (tmp_path / "gone.py").symlink_to(tmp_path / "nowhere.py")
    (tmp_path / "folder.py").mkdir()
    assert list(source_files(tmp_path)) == found


def test_docstrings_come_with_their_qualified_names_and_odd_files_have_none(recwarn: pytest.WarningsRecorder) -> None:
    assert list(docstrings("package/__init__.py", MODULE)) == [
        ("package", "About it."),
        ("package.Outer", "A class.\n\nWith two paragraphs."),
        ("package.Outer.method", "Of the class."),
        ("package.Outer.method.inner", "Of the method."),
        ("package.conditional", "Under an if."),
    ]
    assert list(docstrings("a/b.py", "'''Of b.'''")) == [("a.b", "Of b.")]
    for text in ("def (:\n", "x = 1\0", "", "x = '\\d'\n", "'''   '''"):
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


def test_a_repost_is_another_text_but_a_near_duplicate_of_the_same_group() -> None:
    documents = [
        SourceDocument(" ".join(f"word{number * place % 4093}" for place in range(600)), "Github", f"group {number}")
        for number in range(1, 200)
    ]
    for original, repost in zip(documents, reposts(documents, 1), strict=True):
        assert repost.text != original.text
        assert (repost.subset, repost.group) == (original.subset, original.group)
        shingles = [reference.shingles(text, 5) for text in (original.text, repost.text)]
        assert 0.85 <= reference.jaccard(*shingles) < 1
    some = {document.text for document in reposts(documents, 5)}
    assert 20 <= len(some) <= 60
    for edit in EDITS:
        assert {edit(document.text) for document in documents} & some
    short = [SourceDocument(" ".join(["word"] * (LEAST_WORDS - 1)), "Github", "group")]
    assert list(reposts(short, 1)) == []
