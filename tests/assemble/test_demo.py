"""The texts of the demo's corpus, its sources, and the corpus that is assembled from them."""

from __future__ import annotations

import json
import re
from collections import Counter, defaultdict
from pathlib import Path

import pytest

from pilekit import Corpus, PilekitError, dedup_corpus, load_manifest
from pilekit.assemble.demo import demo_corpus, write_demo_sources
from pilekit.assemble.demo_story import PHRASE, STORY, write_story
from pilekit.assemble.demo_texts import (
    CHUNK_BYTES,
    EDITS,
    LEAST_WORDS,
    MAX_FILE_BYTES,
    SourceDocument,
    arithmetic_document,
    arithmetic_documents,
    python_documents,
    reposts,
)
from tests.assemble.reference import records_of
from tests.dedup import reference
from tests.stopping import tree

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


def test_arithmetic_has_one_kind_of_exact_questions_a_document_the_same_on_every_machine() -> None:
    # Seeded by a string, so neither hash randomization nor the platform enters: the very text is known.
    for number, (question, answer) in enumerate(
        [
            ("What is the sum of 260 and 64?", "324"),
            ("Subtract 93 from 96.", "3"),
            ("What is 98 times 4627?", "453446"),
            ("What is 786464 divided by 9?", "786464/9"),
            ("What is the remainder when 433740 is divided by 48?", "12"),
            ("What is the greatest common divisor of 7528 and 162?", "2"),
            ("What is the least common multiple of 91706 and 80?", "3668240"),
            ("Which is bigger: 6 or 31?", "31"),
            ("Is 7 a multiple of 702?", "False"),
        ]
    ):
        text = arithmetic_document(number)
        lines = text.removesuffix("\n").split("\n")
        assert lines[:2] == [question, answer]
        assert len({re.sub(r"\d+", "", question) for question in lines[::2]}) == 1
        assert text.isascii()
        assert CHUNK_BYTES <= len(text) < CHUNK_BYTES + len(lines[-1]) + len(lines[-2]) + 2
    assert len({arithmetic_document(number, seed) for number in range(30) for seed in (0, 1)}) == 60
    sizes = [len(document.text) for document in arithmetic_documents(30_000, seed=3)]
    assert sum(sizes) >= 30_000 > sum(sizes[:-1])


def test_the_corpus_holds_out_files_with_their_docstrings_and_edited_copies(tmp_path: Path) -> None:
    demo_corpus(tmp_path / "corpus", arithmetic_bytes=400_000, library=library(tmp_path / "library"))
    shards = records_of(tmp_path / "corpus")
    assert [len(Corpus(tmp_path / "corpus").split(split).shards) for split in ("train", "val", "test")] == [4, 1, 1]
    groups: dict[str, str] = {}
    subsets = load_manifest("demo").subsets
    for subset in subsets:
        lines = (tmp_path / "sources" / f"{subset.name}.jsonl").read_text().splitlines()
        groups |= {record["text"]: record["group"] for record in map(json.loads, lines)}
    homes = defaultdict(set)
    copies: Counter[str] = Counter()
    for name, records in shards.items():
        for record in records:
            homes[groups[record["text"]]].add(name.split("/")[0])
            copies[record["meta"]["pile_set_name"]] += name.startswith("train")
    assert all(len(home) == 1 for home in homes.values())
    assert set(copies) == {subset.name for subset in subsets}
    demo_corpus(f"{tmp_path}/again/corpus", arithmetic_bytes=400_000, library=f"{tmp_path}/library")
    assert records_of(tmp_path / "again/corpus") == shards


def test_finished_sources_are_kept_and_a_library_without_python_files_is_refused(tmp_path: Path) -> None:
    source, folder = library(tmp_path / "library"), tmp_path / "sources"
    assert write_demo_sources(folder, arithmetic_bytes=50_000, library=source)
    before = tree(folder)
    assert not write_demo_sources(folder, arithmetic_bytes=50_000, library=source)
    with pytest.raises(PilekitError, match=r"sources: was made with other settings: seed is 0 there, 1 here; .*--out"):
        write_demo_sources(folder, arithmetic_bytes=50_000, library=source, seed=1)
    assert tree(folder) == before
    (tmp_path / "empty").mkdir()
    with pytest.raises(PilekitError, match=r"no Python files in .*empty"):
        write_demo_sources(tmp_path / "new", library=tmp_path / "empty")


def test_the_story_has_no_word_twice_and_its_copies_are_found(tmp_path: Path) -> None:
    assert write_story(tmp_path / "planted")
    before = tree(tmp_path)
    assert not write_story(tmp_path / "planted")
    assert tree(tmp_path) == before
    words = re.findall(r"\w+", STORY.lower())
    assert len(words) == len(set(words))
    assert PHRASE in STORY
    summary = dedup_corpus(tmp_path / "planted", tmp_path / "unique", write=False, jobs=1).summary
    assert (summary["read"], summary["exact"], summary["near"]) == (3, 1, 1)


@pytest.mark.slow
def test_this_pythons_corpus_has_10_to_20_megabytes_and_every_subset_in_every_shard(tmp_path: Path) -> None:
    demo_corpus(tmp_path / "corpus")
    shards = records_of(tmp_path / "corpus").values()
    assert 10_000_000 < sum(len(record["text"].encode()) for records in shards for record in records) < 20_000_000
    for records in shards:
        found = Counter(record["meta"]["pile_set_name"] for record in records)
        assert set(found) == {"Github", "Docstrings", "Python Reference", "DM Mathematics"}
