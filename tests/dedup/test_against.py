"""Deduplicating against an earlier run removes what one run over both corpora would remove."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from pilekit import PilekitError
from pilekit.dedup.run import dedup_corpus
from tests.dedup import reference
from tests.dedup.checking import check, corpus_documents, removed_rows, write_corpus
from tests.dedup.planted import planted_corpus


@pytest.fixture(scope="module")
def halves(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`a/00`, `a/01` and `b/00`, with pairs across."""
    folder = tmp_path_factory.mktemp("halves")
    lines = [one.line for one in corpus_documents(planted_corpus(folder / "planted", 100, 7)).values()]
    return write_corpus(folder / "data", {"a/00": lines[:70], "a/01": lines[70:120], "b/00": lines[120:]})


def test_against_with_the_longest_kept(halves: Path, tmp_path: Path) -> None:
    dedup_corpus(halves / "a", out=tmp_path / "first", jobs=1)
    dedup_corpus(halves / "b", against=tmp_path / "first", out=tmp_path / "second", jobs=1)
    earlier = corpus_documents(halves / "a")
    kept = {name: earlier[name] for name in set(earlier) - check(tmp_path / "first", earlier)}
    removed = check(tmp_path / "second", corpus_documents(halves / "b"), against=kept)
    # Of a pair across, the document of the second corpus is removed, even if it is much longer.
    earlier_sets = [reference.shingles(document.text) for document in kept.values()]
    for name, document in corpus_documents(halves / "b").items():
        shingles = reference.shingles(document.text)
        assert name in removed or max(reference.jaccard(shingles, other) for other in earlier_sets) < 0.8


def test_runs_in_turn_equal_one_run_over_all_with_the_earlier_first(halves: Path, tmp_path: Path) -> None:
    """An earlier run brings those that it was made against: the third run finds documents that resemble the first's."""
    lines = [document.line for document in corpus_documents(halves).values()]
    parts = {"a": lines[::3], "b": lines[1::3], "c": [*lines[2::3], *lines[:40:3]]}
    write_corpus(tmp_path / "data", {f"{name}/{name}": part for name, part in parts.items()})
    dedup_corpus(tmp_path / "data", keep="first", out=tmp_path / "all", jobs=1)
    found: list[dict[str, Any]] = []
    for before, name in ((None, "a"), ("a", "b"), ("b", "c")):
        against = None if before is None else tmp_path / before
        dedup_corpus(tmp_path / "data" / name, keep="first", against=against, out=tmp_path / name, jobs=1)
        rows = removed_rows(tmp_path / name)
        assert all((row["kept_corpus"] == "this") == (row["kept_shard"] == row["shard"]) for row in rows)
        found += rows
    assert {row["kept_corpus"] for row in found} == {"this", "against"}
    together = [
        {**row, "shard": row["shard"][2:], "kept_shard": row["kept_shard"][2:]}
        for row in removed_rows(tmp_path / "all")
    ]
    assert [{**row, "kept_corpus": "this"} for row in found] == together

    def fails(match: str) -> None:
        with pytest.raises(PilekitError, match=match):
            dedup_corpus(tmp_path / "data" / "c", keep="first", against=tmp_path / "b", out=tmp_path / "c", jobs=1)

    (tmp_path / "a").rename(tmp_path / "elsewhere")
    fails("b: was made against an earlier run that cannot be used: .*/a: there is no such folder")
    dedup_corpus(tmp_path / "data" / "b", keep="first", out=tmp_path / "a", jobs=1)
    fails("a: has changed since .*/b was made against it")
    shutil.rmtree(tmp_path / "a")
    (tmp_path / "elsewhere").rename(tmp_path / "a")
    dedup_corpus(tmp_path / "data" / "c", keep="first", against=tmp_path / "b", out=tmp_path / "c", jobs=1)


def test_an_earlier_run_must_have_the_same_settings_and_unchanged_shards(halves: Path, tmp_path: Path) -> None:
    shutil.copytree(halves / "a", tmp_path / "a")
    first = tmp_path / "first"
    dedup_corpus(tmp_path / "a", out=first, jobs=1, write=False)

    def fails(match: str, **options: Any) -> None:
        with pytest.raises(PilekitError, match=match):
            dedup_corpus(halves / "b", against=first, out=tmp_path / "second", jobs=1, **options)
        assert not (tmp_path / "second").exists()

    fails("ngram 5, now it is 4", ngram=4)
    fails("threshold 0.8, now it is 0.7", threshold=0.7)
    fails("num_perm 126, now it is 256", num_perm=256)
    fails("keep longest, now it is first", keep="first")
    shard = tmp_path / "a" / "01.jsonl.zst"
    whole = shard.read_bytes()
    shard.write_bytes(whole[:-20])
    fails(r"01\.jsonl\.zst: has changed since")
    shard.unlink()
    fails(r"01\.jsonl is not where it was")
