"""Each stage keeps the documents that a plain loop keeps, for any batches; a `Write` shard is whole or absent."""

from __future__ import annotations

import gzip
import math
import pickle
import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pilekit.documents import Document, DocumentBatch
from pilekit.errors import PilekitError
from pilekit.pipeline.functions import document_map
from pilekit.pipeline.pipeline import Pipeline
from pilekit.pipeline.stages import Match, MinBytes, Sample, Select, Write, document_hashes
from pilekit.shards.read.reader import read
from tests.pipeline.making import batch, cut, identities
from tests.shards import making
from tests.shards.editing import slow_edit

LENGTHS = st.lists(st.integers(0, 8))
LABELS = ["ArXiv", "Github", "PubMed Central", "USPTO Backgrounds", "(none)", "ArXiv"]


def test_select_in_any_spelling() -> None:
    def kept(stage: Select) -> list[str]:
        return [subset for _, _, subset, _ in identities(stage(iter([batch(list("abcdef"), LABELS)])))]

    assert kept(Select("GitHub", "PMC", "pile_upsto")) == ["Github", "PubMed Central", "USPTO Backgrounds"]
    assert kept(Select("arxiv")) == ["ArXiv", "ArXiv"]
    assert kept(Select("Books3")) == []
    assert Select(["GitHub", "PMC"]) == Select("GitHub", "PMC") == pickle.loads(pickle.dumps(Select("Github", "PMC")))
    with pytest.raises(PilekitError, match=r"(?i)arxive?.*ArXiv"):
        Select("ArXive")
    for nothing in ((), ([],)):
        with pytest.raises(PilekitError, match="would keep nothing"):
            Select(*nothing)


@given(
    st.lists(st.text("abAB \n\xe9", max_size=8), max_size=20),
    st.sampled_from(["a", "^b", "b$", r"(?i)ab+", r"\bA\b", r"(?s)a.b", r"(?m)^a$", "\xe9", ""]),
    LENGTHS,
)
def test_match_as_re_search(texts: list[str], regex: str, lengths: list[int]) -> None:
    stage = pickle.loads(pickle.dumps(Match(regex)))
    kept = identities(stage(cut(batch(texts), lengths)))
    assert [(n, text) for _, n, _, text in kept] == [
        (n, text) for n, text in enumerate(texts) if re.search(regex, text)
    ]


@given(st.lists(st.text(st.characters(codec="utf-8"), max_size=6), max_size=20), st.integers(0, 12), LENGTHS)
def test_min_bytes_counts_utf8(texts: list[str], minimum: int, lengths: list[int]) -> None:
    kept = identities(MinBytes(minimum)(cut(batch(texts), lengths)))
    assert [(n, text) for _, n, _, text in kept] == [
        (n, text) for n, text in enumerate(texts) if len(text.encode()) >= minimum
    ]


def test_wrong_arguments_are_one_clear_line() -> None:
    for regex in ("(", r"\1", "(?<\x1b[31m", 5):
        with pytest.raises(PilekitError, match="is no regular expression") as caught:
            Match(regex)  # type: ignore[arg-type]
        assert str(caught.value).isprintable()
    for fraction in (-0.1, 1.1, math.nan):
        with pytest.raises(PilekitError, match="between 0 and 1"):
            Sample(fraction)


SEEDS = st.integers(-(2**70), 2**70)


def sampled(fraction: float, seed: int, shard: str, count: int) -> set[int]:
    return {number for _, number, _, _ in identities(Sample(fraction, seed)(iter([batch([""] * count, shard=shard)])))}


@given(st.floats(0, 1), SEEDS, st.sampled_from(["00.jsonl", "train/0.jsonl", "(stdin)", "\udcff.jsonl"]), LENGTHS)
def test_a_sample_does_not_depend_on_batches(fraction: float, seed: int, shard: str, lengths: list[int]) -> None:
    whole = batch([f"text {i}" for i in range(100)], shard=shard, first=7)
    stage = Sample(fraction, seed)
    chosen = identities(stage(cut(whole, lengths)))
    assert chosen == identities(stage(iter([whole])))
    assert {*chosen} >= {*identities(Sample(fraction / 2, seed)(iter([whole])))}, "samples are nested"
    # Several ranks with different batches make the same decisions.
    parts = list(cut(whole, lengths))
    by_rank = [identities(stage(iter(parts[rank::3]))) for rank in range(3)]
    assert sorted(chosen) == sorted(one for part in by_rank for one in part)


def test_a_sample_has_the_right_share_and_seeds_and_shards_are_independent() -> None:
    whole, count = batch([""] * 1000), 20_000
    assert list(Sample(0)(iter([whole]))) == []
    assert list(Sample(1)(iter([whole]))) == [whole]
    for fraction in (0.001, 0.1, 0.9):
        deviation = math.sqrt(count * fraction * (1 - fraction))
        for seed, shard in ((0, "train/00.jsonl"), (3, "train/01.jsonl")):
            assert abs(len(sampled(fraction, seed, shard, count)) - count * fraction) < 6 * deviation, (seed, shard)
    chosen = [sampled(0.5, seed, shard, count) for seed, shard in [(0, "a"), (1, "a"), (0, "b"), (10, ""), (1, "0")]]
    for i, one in enumerate(chosen):
        for other in chosen[i + 1 :]:
            assert abs(len(one & other) - count / 4) < 6 * math.sqrt(count * 3 / 16)


def test_hashes_never_change() -> None:
    hashes = document_hashes("train/00.jsonl", np.arange(64_000), 0)
    assert hashes.dtype == np.uint64
    assert len(set(hashes.tolist())) == 64_000
    # A saved run must find the same documents again.
    pinned = [5212983447380300398, 6358292716557915118, 2813167849731756270]
    assert document_hashes("train/00.jsonl", np.array([0, 9, 10**12]), -5).tolist() == pinned


def test_write_copies_lines_and_changes_only_changed_texts(tmp_path: Path) -> None:
    @document_map
    def repaired(document: Document) -> str:
        return document.text.replace("\ufffd", "?")

    for name in ("out.jsonl.zst", "out.jsonl.gz", "out.jsonl"):
        path = tmp_path / name
        batches = [batch(["a", "long enough", "\xe9\n\u2028"]), batch([]), batch(["another long \ufffd"], first=9)]
        passed = identities(Pipeline([MinBytes(4), repaired, Write(path)])(iter(batches)))
        assert [text for *_, text in passed] == ["long enough", "\xe9\n\u2028", "another long ?"]
        assert batches[0].lines is not None
        assert batches[2].lines is not None
        stored = {".zst": making.unzstd, ".gz": lambda path: gzip.decompress(path.read_bytes())}.get(path.suffix)
        *copied, changed = (stored(path) if stored else path.read_bytes()).split(b"\n")[:-1]
        assert copied == batches[0].lines[1:]
        assert changed == slow_edit(bytes(batches[2].lines[0]), "another long ?")
        assert [text for *_, text in identities(read(path))] == [text for *_, text in passed]
    assert list(Write(tmp_path / "empty.jsonl.zst")(iter([]))) == []
    assert making.unzstd(tmp_path / "empty.jsonl.zst") == b""


def failing() -> Iterator[DocumentBatch]:
    yield batch(["one"])
    raise PilekitError("the shard is damaged")


@pytest.mark.parametrize("before", [None, b"an earlier result\n"])
def test_write_is_whole_or_absent(tmp_path: Path, before: bytes | None) -> None:
    path = tmp_path / "out.jsonl"
    Write(path)(failing())
    assert not path.exists(), "nothing is opened before the first batch is asked for"
    if before is not None:
        path.write_bytes(before)
    for how in ("upstream fails", "consumer leaves", "consumer throws"):
        out = Write(path)(failing() if how == "upstream fails" else iter([batch(["one"]), batch(["two"], first=1)]))
        next(out)
        if how == "upstream fails":
            with pytest.raises(PilekitError, match="damaged"):
                next(out)
        elif how == "consumer leaves":
            out.close()  # type: ignore[attr-defined]
        else:
            with pytest.raises(KeyboardInterrupt):
                out.throw(KeyboardInterrupt())  # type: ignore[attr-defined]
        assert (path.read_bytes() if path.exists() else None) == before
        assert [file for file in tmp_path.iterdir() if file != path] == []
