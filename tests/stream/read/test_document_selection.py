"""Selections from deduplicated corpora, and by damaged indexes. Subsets and repeats are in test_documents.py."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

from pilekit.corpus import Corpus
from pilekit.dedup.drop_duplicates import DropDuplicates
from pilekit.dedup.run import dedup_corpus
from pilekit.shards.keep_mask import read_mask
from pilekit.stream.pile_stream import PileStream
from pilekit.stream.read.document_selection import StreamDocuments
from pilekit.stream.read.read_plan import choose_plan
from tests.refusing import refused
from tests.stream.collecting import read_in_turn
from tests.stream.corpora import made, record, text, write_shard


def select(folder: Path, **options: Any) -> StreamDocuments:
    corpus = Corpus(folder)
    return StreamDocuments(corpus, choose_plan(corpus, on_error="skip"), **options)


def test_unknown_labels_are_other(tmp_path: Path) -> None:
    made(tmp_path, [20])
    found = select(tmp_path, subsets=("ArXiv",))
    assert found.ids_of(["ArXiv", "unheard of"]).tolist() == [found.subset_ids[name] for name in ("ArXiv", "(other)")]


def test_damage_in_the_rows_of_an_index_is_told(tmp_path: Path) -> None:
    made(tmp_path, [200])
    choose_plan(Corpus(tmp_path))
    (place,) = tmp_path.glob("*.index.parquet")
    column = pq.ParquetFile(place).metadata.row_group(0).column(0)
    data = bytearray(place.read_bytes())
    data[column.data_page_offset + column.total_compressed_size - 5] ^= 1
    place.write_bytes(data)
    refused(r"index\.parquet: is damaged .* make it again with `pilekit index`", select, tmp_path, subsets=("ArXiv",))


@pytest.fixture(scope="module")
def deduplicated(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path, list[tuple[str, int, str]]]:
    """(a corpus, its dedup, the documents kept: shard, number, label)."""
    folder = tmp_path_factory.mktemp("deduplicated")
    rng = random.Random(8)
    repeated = [text(rng, 60) for _ in range(5)]
    corpus = made(
        folder / "corpus", [80, 80], text_of=lambda rng: rng.choice(repeated) if rng.random() < 0.3 else text(rng, 60)
    )
    dedup_corpus(Corpus(corpus.folder), out=folder / "dedup", write=False)
    masks = {name: read_mask(folder / "dedup" / "masks" / f"{name}.mask") for name in corpus.shards}
    kept = [line for line in corpus.lines if masks[line.shard].keeps(np.array([line.number]))[0]]
    assert 0 < len(kept) < len(corpus.lines)
    return corpus.folder, folder / "dedup", [(line.shard, line.number, line.subset) for line in kept]


@pytest.mark.parametrize("in_turn", [False, True])
def test_of_a_dedup(deduplicated: tuple[Path, Path, list[tuple[str, int, str]]], in_turn: bool) -> None:
    corpus, dedup, kept = deduplicated
    for subsets in (None, ["ArXiv"], ["Github", "Pile-CC"]):
        with read_in_turn(in_turn):
            stream = PileStream(corpus, tokenizer=None, epochs=1, shuffle=False, subsets=subsets, dedup=dedup)
        found: list[Any] = list(stream)
        assert [(one.shard, one.number) for one in found] == [
            (shard, number) for shard, number, label in kept if subsets is None or label in subsets
        ]


def test_a_dedup_of_shards_that_end_with_blank_lines(tmp_path: Path) -> None:
    for name, lines in (("00", [record(f"text {i}", "ArXiv") for i in range(5)] + [b""] * 20), ("01", [b"", b" "])):
        write_shard(tmp_path / "data" / name, lines, "plain")
    dedup_corpus(tmp_path / "data", out=tmp_path / "dedup", write=False)
    assert select(tmp_path / "data", dedup=DropDuplicates(tmp_path / "dedup")).count == 5


def test_a_dedup_of_other_shards(deduplicated: tuple[Path, Path, list[tuple[str, int, str]]], tmp_path: Path) -> None:
    _, dedup, _ = deduplicated
    lines = read_mask(dedup / "masks" / "01.jsonl.mask").header.lines
    for name, count, folder, words in (
        ("00", 5, dedup, r"00\.jsonl: has 5 lines, but what was deduplicated in .* has \d+; run"),
        ("01", lines, dedup, r"01\.jsonl: document \d+ is not the one that was deduplicated in"),
        ("07", 5, dedup, r"07\.jsonl: was not deduplicated in"),
        ("08", 5, tmp_path / "nowhere", "nowhere"),
    ):
        write_shard(tmp_path / name / name, [record(f"another {i}", "ArXiv") for i in range(count)], "plain")
        refused(words, PileStream, tmp_path / name, None, dedup=folder)
