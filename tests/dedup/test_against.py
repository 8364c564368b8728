"""Deduplicating against an earlier run removes what one run over both corpora would remove."""

from __future__ import annotations

import random
import shutil
from pathlib import Path
from typing import Any

import pytest

from pilekit import PilekitError
from pilekit.dedup.run import deduplicate
from tests.dedup import reference
from tests.dedup.checking import check, corpus_documents, removed_rows, write_corpus
from tests.dedup.planted import planted
from tests.dedup.test_run import lines_of


@pytest.fixture(scope="module")
def halves(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`a/00`, `a/01` and `b/00`, with pairs across."""
    folder = tmp_path_factory.mktemp("halves")
    lines = lines_of(planted(100, 7, alone=20).texts)
    random.Random(1).shuffle(lines)
    lines += lines[:20]
    return write_corpus(folder, {"a/00": lines[:70], "a/01": lines[70:120], "b/00": lines[120:]})


def test_against_an_earlier_run_is_both_together_with_the_earlier_first(halves: Path, tmp_path: Path) -> None:
    both, first, second = tmp_path / "both", tmp_path / "first", tmp_path / "second"
    deduplicate(halves, keep="first", out=both, jobs=1)
    deduplicate(halves / "a", keep="first", out=first, jobs=1)
    deduplicate(halves / "b", keep="first", against=first, out=second, jobs=1)

    def rows(out: Path, prefix: str) -> list[dict[str, Any]]:
        found = removed_rows(out)
        for row in found:
            row["shard"] = prefix + row["shard"]
            row["kept_shard"] = ("a/" if row.pop("kept_corpus") == "against" else prefix) + row["kept_shard"]
        return found

    together = rows(both, "")
    assert rows(first, "a/") == [row for row in together if row["shard"].startswith("a/")]
    assert rows(second, "b/") == [row for row in together if row["shard"].startswith("b/")]
    assert {row["kept_corpus"] for row in removed_rows(second)} == {"this", "against"}


def test_against_with_the_longest_kept(halves: Path, tmp_path: Path) -> None:
    deduplicate(halves / "a", out=tmp_path / "first", jobs=1)
    deduplicate(halves / "b", against=tmp_path / "first", out=tmp_path / "second", jobs=1)
    earlier = corpus_documents(halves / "a")
    kept = {name: earlier[name] for name in set(earlier) - check(tmp_path / "first", earlier)}
    removed = check(tmp_path / "second", corpus_documents(halves / "b"), against=kept)
    # Of a pair across, the document of the second corpus is removed, even if it is much longer.
    earlier_sets = [reference.shingles(document.text) for document in kept.values()]
    for name, document in corpus_documents(halves / "b").items():
        shingles = reference.shingles(document.text)
        assert name in removed or max(reference.jaccard(shingles, other) for other in earlier_sets) < 0.8


def test_an_earlier_run_brings_those_that_it_was_made_against(halves: Path, tmp_path: Path) -> None:
    """Runs in turn equal one run: the third run finds documents that resemble those of the first."""
    lines = [document.line for document in corpus_documents(halves).values()]
    parts = {"a": lines[::3], "b": lines[1::3], "c": [*lines[2::3], *lines[:40:3]]}
    write_corpus(tmp_path / "data", {f"{name}/{name}": part for name, part in parts.items()})
    deduplicate(tmp_path / "data", keep="first", out=tmp_path / "all", jobs=1)
    against = None
    found: list[dict[str, Any]] = []
    for name in parts:
        deduplicate(tmp_path / "data" / name, keep="first", against=against, out=tmp_path / name, jobs=1)
        found += removed_rows(tmp_path / name)
        against = tmp_path / name
    kept_in = {(row["shard"][0], row["kept_shard"][0]): row.pop("kept_corpus") for row in found}
    assert {("b", "a"), ("c", "a"), ("c", "b"), ("c", "c")} <= set(kept_in)
    assert all((corpus == "this") == (one == other) for (one, other), corpus in kept_in.items())
    together = removed_rows(tmp_path / "all")
    for row in together:
        assert row.pop("kept_corpus") == "this"
        row["shard"], row["kept_shard"] = row["shard"][2:], row["kept_shard"][2:]
    assert found == together

    def fails(match: str) -> None:
        with pytest.raises(PilekitError, match=match):
            deduplicate(tmp_path / "data" / "c", keep="first", against=tmp_path / "b", out=tmp_path / "c", jobs=1)

    (tmp_path / "a").rename(tmp_path / "elsewhere")
    fails("b: was made against an earlier run that cannot be used: .*/a: was not written by pilekit")
    deduplicate(tmp_path / "data" / "b", keep="first", out=tmp_path / "a", jobs=1)
    fails("a: is not the run any more that .*/b was made against")
    shutil.rmtree(tmp_path / "a")
    (tmp_path / "elsewhere").rename(tmp_path / "a")
    deduplicate(tmp_path / "data" / "c", keep="first", against=tmp_path / "b", out=tmp_path / "c", jobs=1)


def test_what_an_earlier_run_must_be(halves: Path, tmp_path: Path) -> None:
    shutil.copytree(halves / "a", tmp_path / "a")
    first = tmp_path / "first"
    deduplicate(tmp_path / "a", out=first, jobs=1, write=False)

    def fails(match: str, **options: Any) -> None:
        with pytest.raises(PilekitError, match=match):
            deduplicate(halves / "b", against=first, out=tmp_path / "second", jobs=1, **options)
        assert not (tmp_path / "second").exists()

    fails("ngram 5, now it is 4", ngram=4)
    fails("threshold 0.8, now it is 0.7", threshold=0.7)
    fails("num_perm 126, now it is 256", num_perm=256)
    fails("keep longest, now it is first", keep="first")
    header = (first / "pilekit.json").read_bytes()
    (first / "pilekit.json").write_bytes(header.replace(b'"finished": true', b'"finished": false'))
    fails("not finished")
    (first / "pilekit.json").write_bytes(header)
    shard = tmp_path / "a" / "01.jsonl.zst"
    whole = shard.read_bytes()
    shard.write_bytes(whole[:-20])
    fails(r"01\.jsonl\.zst: is not the shard any more")
    shard.unlink()
    fails(r"01\.jsonl is not where it was")
    shutil.rmtree(first)
    fails("was not written by pilekit")
