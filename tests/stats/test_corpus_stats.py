"""Counts of a corpus equal those of a plain loop over the standard library's JSON."""

from __future__ import annotations

import json
import math
import statistics
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pilekit import Corpus, PilekitError, load_tokenizer
from pilekit.stats.result import CorpusStats
from pilekit.stats.summary import corpus_stats
from tests.shards import making
from tests.tokenize.making import byte_level_bpe


def slow_stats(paths: list[Path]) -> dict[str, dict[str, Any]]:
    """The same by the standard library alone, a document at a time."""
    sizes: dict[str, list[int]] = defaultdict(list)
    copies: dict[str, int] = defaultdict(int)
    seen = set()
    for path in paths:
        for _, text, label in making.slow_documents(making.unzstd(path)):
            sizes[label].append(len(text.encode()))
            copies[label] += text in seen
            seen.add(text)
    return {
        label: {
            "documents": len(found),
            "bytes": sum(found),
            "share": sum(found) / (sum(map(sum, sizes.values())) or 1),
            "mean_bytes": sum(found) / len(found),
            "median_bytes": statistics.median(found),
            "p99_bytes": float(np.quantile(found, 0.99)),
            "copies": copies[label],
        }
        for label, found in sizes.items()
    }


def assert_same(stats: CorpusStats, expected: dict[str, dict[str, Any]]) -> None:
    found = stats.to_dict()
    counted = {"documents", "bytes", *(["copies"] if stats.total.copies is not None else [])}
    assert set(found) == counted | {"skipped", "subsets"}
    assert stats.to_arrow().to_pylist() == [{"subset": name, **row} for name, row in found["subsets"].items()]
    for name in counted:
        assert found[name] == sum(subset[name] for subset in expected.values())
    sizes = [(-figures["bytes"], -figures["documents"], name) for name, figures in expected.items()]
    assert list(found["subsets"]) == [name for _, _, name in sorted(sizes)], "the largest first"
    for name, figures in expected.items():
        for key, value in figures.items():
            tolerance = {"median_bytes": 0.01, "p99_bytes": 0.01, "mean_bytes": 1e-12, "share": 1e-12}.get(key, 0)
            assert found["subsets"][name][key] == pytest.approx(value, rel=tolerance, abs=0), (name, key)
    json.dumps(found, allow_nan=False)


@given(shards=st.lists(st.lists(making.lines(), min_size=1, max_size=30), min_size=1, max_size=3))
def test_as_an_independent_count(tmp_path_factory: pytest.TempPathFactory, shards: list[list[bytes]]) -> None:
    folder = tmp_path_factory.mktemp("counted")
    paths = [making.write_shard(folder / f"{number}.jsonl.zst", lines) for number, lines in enumerate(shards)]
    assert_same(corpus_stats(paths, copies=True, jobs=1), slow_stats(paths))


def test_real_text_as_an_independent_count(real_corpus: Path) -> None:
    path = real_corpus / "minipile-00.jsonl.zst"
    assert_same(corpus_stats(path, copies=True), slow_stats([path]))


def stats_of(corpus: Corpus) -> object:
    try:
        stats = corpus_stats(corpus, copies=True, on_error="skip")
    except PilekitError as error:
        return str(error)
    return stats.to_dict(), [str(bad) for bad in stats.skipped.examples]


def test_a_long_shard_is_scanned_and_counts_alike(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl.zst"
    rng = np.random.default_rng(0)
    sizes = [*rng.integers(0, 3000, 2000).tolist(), 5_000_000, *[0] * 10_000]
    good = (making.record("é" * (size % 7) + "x\n" * (size // 2), making.LABELS[size % 6]) for size in sizes)
    making.write_shard(path, [*good, b"{", b'{"text": 1}', b""])
    assert stats_of(making.as_if_large(Corpus(path))) == stats_of(Corpus(path))
    stored = path.read_bytes()
    path.write_bytes(stored[: len(stored) // 2])
    damage = stats_of(making.as_if_large(Corpus(path)))
    assert "a.jsonl.zst: is cut off" in str(damage), "damage is an error even when bad lines are skipped"
    assert damage == stats_of(Corpus(path))


def test_processes_change_nothing_and_subsets_are_selected(tmp_path: Path) -> None:
    generator = np.random.default_rng(0)
    texts = ["é€𝄞 x" * int(size) for size in generator.integers(0, 60, 600)]  # short enough to repeat
    lines = [making.record(text, str(generator.choice(making.LABELS))) for text in texts]
    paths = [
        making.write_shard(tmp_path / "a.jsonl.zst", lines[:500]),
        making.write_shard(tmp_path / "b.jsonl.zst", [*lines[500:], making.record("only here", "New")]),
    ]
    expected, amounts = slow_stats(paths), list[int]()
    alone = corpus_stats(paths, copies=True, jobs=1)
    assert corpus_stats(paths, copies=True, jobs=2, advance=amounts.append).to_dict() == alone.to_dict()
    assert sum(amounts) == sum(path.stat().st_size for path in paths)
    assert_same(alone, expected)
    assert alone.total.copies == sum(subset.copies or 0 for subset in alone.subsets)
    assert alone.total.copies
    shares = {subset.name: subset.paper_share for subset in alone.subsets}
    assert (shares["Github"], shares["New"]) == (pytest.approx(0.0759), None)

    some = corpus_stats(paths, subsets=["ArXiv", "github", "Books3"])  # there are no Books3
    whole = 8.96 + 7.59 + 12.07
    assert {subset.name: subset.paper_share for subset in some.subsets} == {
        "ArXiv": pytest.approx(8.96 / whole),
        "Github": pytest.approx(7.59 / whole),
    }
    assert some.to_dict()["selected"] == ["ArXiv", "Github", "Books3"]
    assert str(some).endswith("Paper %: among the selected subsets")
    assert "among the selected" not in str(alone)
    assert "selected" not in alone.to_dict()

    arxiv = corpus_stats(paths, subsets=["ArXiv"])
    assert [subset.name for subset in arxiv.subsets] == ["ArXiv"]
    assert (arxiv.total.documents, arxiv.total.bytes) == (expected["ArXiv"]["documents"], expected["ArXiv"]["bytes"])
    assert arxiv.total.share == 1
    assert "copies" not in arxiv.to_dict()["subsets"]["ArXiv"]


def test_bad_lines_stop_the_count_or_are_counted(tmp_path: Path) -> None:
    lines = [making.record("good"), b"bad", b'{"text": 1}', b"  ", making.record("good")]
    paths = [making.write_shard(tmp_path / f"{number}.jsonl.zst", lines[number:]) for number in range(2)]
    with pytest.raises(PilekitError, match="line 2"):
        corpus_stats(paths)
    stats = corpus_stats(paths, on_error="skip", jobs=2)
    assert stats.to_dict()["skipped"] == 4
    bad_lines = [(Path(bad.path).name, bad.line) for bad in stats.skipped.examples]
    assert bad_lines == [("0.jsonl.zst", 2), ("0.jsonl.zst", 3), ("1.jsonl.zst", 1), ("1.jsonl.zst", 2)]
    assert stats.total.documents == 3


def test_no_documents_and_empty_ones(tmp_path: Path) -> None:
    stats = corpus_stats(making.write_shard(tmp_path / "a.jsonl.zst", [b"", b" "]), copies=True)
    assert stats.to_dict() == {"documents": 0, "bytes": 0, "copies": 0, "skipped": 0, "subsets": {}}
    assert math.isnan(stats.total.median_bytes)
    assert stats.total.copies == 0
    stats = corpus_stats(making.write_shard(tmp_path / "a.jsonl.zst", [making.record("")] * 3), copies=True)
    figures = {"documents": 3, "bytes": 0, "share": 0, "mean_bytes": 0, "median_bytes": 0, "p99_bytes": 0, "copies": 2}
    assert stats.to_dict()["subsets"]["Github"] == {**figures, "joined": []}
    assert stats.total.tokens_per_byte is None


def test_tokens_are_those_of_the_tokenizer_without_eod(tmp_path: Path) -> None:
    place = tmp_path / "tokenizer.json"
    byte_level_bpe(300).save(str(place))
    texts = ["some words", "", "é€𝄞", "<|endoftext|>", "more\nwords " * 50]
    paths = [
        making.write_shard(tmp_path / "0.jsonl.zst", [making.record(text, "ArXiv") for text in texts]),
        making.write_shard(tmp_path / "1.jsonl.zst", [making.record(text, "Github") for text in texts[:2]]),
    ]
    tokenizer = load_tokenizer(place)
    expected = [len(tokenizer.encode_batch([text])[0]) for text in texts]
    for jobs in (1, 2):
        stats = corpus_stats(paths, tokenizer=str(place), jobs=jobs)
        tokens = {subset.name: subset.tokens for subset in stats.subsets}
        assert tokens == {"ArXiv": sum(expected), "Github": sum(expected[:2])}
        assert stats.total.tokens == stats.to_dict()["tokens"] == sum(expected) + sum(expected[:2])
