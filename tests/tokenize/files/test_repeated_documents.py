"""Documents that stand several times in token files, against plain loops and the first epoch of a stream."""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pilekit import DropDuplicates, PileStream, TokenFile, corpus_stats, dedup_corpus, load_tokenizer, tokenize_corpus
from pilekit.dedup.cluster_weights import ClusterWeights
from pilekit.tokenize.files.repeated_documents import places_of_uses
from tests.cli.running import run, run_json
from tests.refusing import refused
from tests.tokenize.files.conftest import shards_of


@given(uses=st.lists(st.integers(1, 7), max_size=40))
def test_uses_are_spread_over_the_shard(uses: list[int]) -> None:
    n, most = len(uses), max(uses, default=0)
    behind: list[list[int]] = [[] for _ in uses]
    for k in range(most):
        for document, count in enumerate(uses):
            if k < count:
                behind[(document + k * n // most) % n].append(document)
    found = [piece.tolist() for piece in places_of_uses(np.array(uses, np.int64))]
    assert [document for piece in found for document in piece] == [one for slot in behind for one in slot]


@pytest.fixture(scope="module")
def unique(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A corpus with exact copies, some documents without text, and its dedup."""
    rng = random.Random(3)
    texts = [" ".join(str(rng.randrange(10**6)) for _ in range(rng.randint(0, 30))) for _ in range(60)]
    folder = tmp_path_factory.mktemp("copies")
    shards = [[(texts[int(rng.paretovariate(0.5)) % 60], "ArXiv") for _ in range(150)] for _ in range(3)]
    data = shards_of(folder / "data", *shards)
    dedup_corpus(data, out=folder / "unique", write=False)
    return data, folder / "unique"


@pytest.mark.parametrize(("copies", "most"), [(1.0, 100), (0.5, 100), (1.0, 4)])
def test_files_have_what_a_streams_first_epoch_reads(
    unique: tuple[Path, Path], tokenizer: Path, tmp_path: Path, copies: float, most: int
) -> None:
    data, folder = unique
    weights: Any = ClusterWeights(DropDuplicates(folder), copies, most)
    options: Any = {"stages": [DropDuplicates(folder)], "append_eod": True}
    tokenized = tokenize_corpus(data, tmp_path / "p", tokenizer, weights=weights, **options)
    file = TokenFile(tmp_path / "p")
    table = file.documents
    assert table is not None
    places = [(row["shard"], row["number"]) for row in table.to_pylist()]
    stream = PileStream(data, tokenizer=None, epochs=1, dedup=folder, copies=copies, copies_max=most)
    wanted = Counter((one.shard, one.number) for one in stream if one.text)  # type: ignore[attr-defined]
    assert Counter(places) == wanted
    assert max(wanted.values()) > 3
    used = load_tokenizer(tokenizer)
    texts = {(one.shard, one.number): one.text for one in PileStream(data, tokenizer=None, epochs=1)}  # type: ignore[attr-defined]
    assert [used.decode(ids[:-1]) for ids in file] == [texts[place] for place in places]
    summary = tokenized.summary
    assert summary["documents"] == len(places) == summary["subsets"]["ArXiv"]["documents"]
    assert summary["tokens"] == file.tokens
    assert summary["bytes"] == sum(len(texts[place].encode()) for place in places)
    for jobs, name in ((3, "q"), (1, "r")):
        tokenize_corpus(data, tmp_path / name, tokenizer, weights=weights, jobs=jobs, **options)
        for end in ("_text_document.bin", "_text_document.idx", "_text_document.documents.parquet"):
            assert (tmp_path / f"{name}{end}").read_bytes() == (tmp_path / f"p{end}").read_bytes()
    refused("--copies: make them without", PileStream, tmp_path / "p", used, seq_len=64)


def test_all_copies_have_the_tokens_of_the_corpus(unique: tuple[Path, Path], tokenizer: Path, tmp_path: Path) -> None:
    """On the command line; copies without a dedup are wrong usage, and other copies another job."""
    data, folder = unique
    common = ("tokenize", data, "--tokenizer", tokenizer, "--out", tmp_path / "p")
    found = run_json(*common, "--dedup", folder, "--copies", 1, "--copies-max", 1000)
    assert found["tokens"] == corpus_stats(data, tokenizer=tokenizer).total.tokens
    assert "give --dedup too" in run(*common, "--copies", 0.5, exit_code=2).stderr
    refused("other settings: weights is", run, *common, "--dedup", folder, "--copies", 0.5)
    assert run_json(*common[:-1], tmp_path / "q", "--dedup", folder)["tokens"] < found["tokens"]
