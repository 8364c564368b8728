"""Which texts of a Python installation become documents, and edited copies of them."""

from __future__ import annotations

from pathlib import Path

import pytest

from pilekit.assemble.demo.python_text import MAX_FILE_BYTES, SourceDocument, python_documents
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
        "package/blank_docstring.py": b"'''   '''\n",
        "package/latin.py": b'# coding: latin-1\n"""Gr\xf6\xdfe."""\n',
        "package/broken.py": b"def (:\n",
        "package/null.py": b"x = 1\n\0\n",
        "package/old_escape.py": b"x = '\\d'\n",
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
    (folder / "gone.py").symlink_to(folder / "nowhere.py")
    (folder / "folder.py").mkdir()
    return folder


def test_documents_are_the_librarys_own_files_and_their_docstrings_which_share_a_group(
    tmp_path: Path, recwarn: pytest.WarningsRecorder
) -> None:
    found = [document for document in python_documents(library(tmp_path)) if document.subset != "Python Reference"]
    docstrings = {
        "__init__": [
            "package\n\nAbout it.\n",
            "package.Outer\n\nA class.\n\nWith two paragraphs.\n",
            "package.Outer.method\n\nOf the class.\n",
            "package.Outer.method.inner\n\nOf the method.\n",
            "package.conditional\n\nUnder an if.\n",
        ],
        "accents": ["package.accents\n\nGröße.\n"],
    }
    names = ("__init__", "accents", "blank_docstring", "broken", "null", "old_escape")
    expected = []
    for path in [*(tmp_path / f"package/{name}.py" for name in names), tmp_path / "plain.py"]:
        text = path.read_text()
        expected.append(SourceDocument(text, "Github", group=text))
        expected += [SourceDocument(one, "Docstrings", group=text) for one in docstrings.get(path.stem, ())]
    assert found == expected
    assert not recwarn.list


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
