"""A corpus without a manifest: text_field and label describe it as one does, and manifest= is taken with a path."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import orjson
import pytest

import pilekit
from pilekit import Corpus, PileDocuments, PilekitError, load_manifest, read, read_documents

LINES = [{"content": "some words of the web", "from": {"kind": "web"}}, {"content": "a book", "from": {"kind": "book"}}]
MANIFEST = 'name = "mine"\ntext_field = "content"\nlabel_path = "from.kind"\n'


@pytest.fixture
def mine(tmp_path: Path) -> Path:
    (tmp_path / "mine.toml").write_text(MANIFEST)
    (tmp_path / "data").mkdir()
    (tmp_path / "data/00.jsonl").write_bytes(b"\n".join(map(orjson.dumps, LINES)))
    return tmp_path


CALLS: dict[str, Callable[[Any, Path, Any], Any]] = {
    "stats": lambda data, out, manifest: pilekit.corpus_stats(data, manifest=manifest).to_dict(),
    "read": lambda data, out, manifest: [list(batch) for batch in read(data, manifest=manifest)],
    "documents": lambda data, out, manifest: list(PileDocuments(data, manifest=manifest)),
    "index": lambda data, out, manifest: [one.header for one in pilekit.index_corpus(data, manifest=manifest)],
    "verify": lambda data, out, manifest: pilekit.verify_corpus(data, manifest=manifest).to_dict(),
    "select": lambda data, out, manifest: pilekit.select_corpus(
        data, out, subsets=["web"], manifest=manifest
    ).to_dict(),
    "clean": lambda data, out, manifest: pilekit.clean_corpus(data, rules="gopher", manifest=manifest).to_dict(),
    "reframe": lambda data, out, manifest: pilekit.reframe_corpus(data, out, manifest=manifest),
    "dedup": lambda data, out, manifest: pilekit.dedup_corpus(data, out, jobs=1, manifest=manifest).to_dict(),
    "substrings": lambda data, out, manifest: pilekit.substrings_corpus(data, out, manifest=manifest).to_dict(),
}


@pytest.mark.parametrize("name", CALLS)
def test_a_manifest_by_its_path_is_that_of_the_corpus(mine: Path, name: str) -> None:
    expected = CALLS[name](Corpus(mine / "data", mine / "mine.toml"), mine / "one", None)
    assert CALLS[name](mine / "data", mine / "two", mine / "mine.toml") == expected
    with pytest.raises(PilekitError, match=r"a Corpus has its own manifest; give manifest= to Corpus\(\)"):
        CALLS[name](Corpus(mine / "data"), mine / "three", "demo")


def test_text_field_and_label_are_a_manifest_without_subsets(mine: Path) -> None:
    corpus = Corpus(mine / "data", text_field="content", label="from.kind")
    assert corpus.manifest.record == load_manifest(mine / "mine.toml").record
    assert [(one.text, one.subset) for batch in read(corpus) for one in batch] == [
        ("some words of the web", "web"),
        ("a book", "book"),
    ]
    [one] = read_documents(mine / "data/00.jsonl", [1], manifest=load_manifest(text_field="content", label="other"))
    assert (one.text, one.subset) == ("a book", "(none)")


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (
            {"manifest": "demo", "label": "a"},
            "a manifest says where text and label are; leave out text_field and label",
        ),
        ({"label": "a..b"}, r'label = "a\.\.b": must be the path of a field, such as source or meta\.source'),
        ({"text_field": 3}, "text_field = 3: must be text that is not empty"),
    ],
)
def test_wrong_fields_are_refused(mine: Path, given: dict[str, Any], message: str) -> None:
    with pytest.raises(PilekitError, match=message):
        Corpus(mine / "data", **given)
