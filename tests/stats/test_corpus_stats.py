"""Counts of a corpus equal those of a plain loop over the standard library's JSON."""

from __future__ import annotations

import json
import math
import statistics
import subprocess
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zstandard
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pilekit import Corpus, PilekitError, load_tokenizer
from pilekit.stats import counting
from pilekit.stats.counting import Counts
from pilekit.stats.summary import CorpusStats, corpus_stats
from tests.shards import making


def slow_stats(paths: list[Path]) -> dict[str, dict[str, Any]]:
    """The same by the `zstd` command and the standard library alone, a document at a time."""
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
    assert set(found) == {"documents", "bytes", "skipped", "subsets"}
    assert found["documents"] == sum(subset["documents"] for subset in expected.values())
    assert found["bytes"] == sum(subset["bytes"] for subset in expected.values())
    assert set(found["subsets"]) == set(expected)
    for name, figures in expected.items():
        for key, value in figures.items():
            tolerance = {"median_bytes": 0.01, "p99_bytes": 0.01, "mean_bytes": 1e-12, "share": 1e-12}.get(key, 0)
            assert found["subsets"][name][key] == pytest.approx(value, rel=tolerance, abs=0), (name, key)


def write_shard(path: Path, lines: list[bytes]) -> Path:
    path.write_bytes(making.zstd_frame(b"".join(line + b"\n" for line in lines)))
    return path


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(shards=st.lists(st.lists(making.lines(), min_size=1, max_size=30), min_size=1, max_size=3))
def test_as_an_independent_count(tmp_path: Path, shards: list[list[bytes]]) -> None:
    paths = [write_shard(tmp_path / f"{number}.jsonl.zst", lines) for number, lines in enumerate(shards)]
    assert_same(corpus_stats(paths, copies=True, jobs=1), slow_stats(paths))


def test_real_text_as_an_independent_count(real_corpus: Path) -> None:
    path = real_corpus / "minipile-00.jsonl.zst"
    assert_same(corpus_stats(path, copies=True), slow_stats([path]))


@pytest.fixture
def two_shards(tmp_path: Path) -> list[Path]:
    generator = np.random.default_rng(0)

    def lines(count: int) -> list[bytes]:
        texts = ["é€𝄞 x" * int(size) for size in generator.integers(0, 60, count)]  # short enough to repeat
        return [making.record(text, str(generator.choice(making.LABELS))) for text in texts]

    return [
        write_shard(tmp_path / "a.jsonl.zst", lines(500)),
        write_shard(tmp_path / "b.jsonl.zst", [*lines(100), making.record("only here", "New")]),
    ]


def test_any_number_of_processes_gives_the_same(two_shards: list[Path]) -> None:
    alone = corpus_stats(two_shards, copies=True, jobs=1)
    amounts: list[int] = []
    assert corpus_stats(two_shards, copies=True, jobs=2, advance=amounts.append).to_dict() == alone.to_dict()
    assert sum(amounts) == sum(path.stat().st_size for path in two_shards)
    assert_same(alone, slow_stats(two_shards))
    assert alone.total.copies == sum(subset.copies or 0 for subset in alone.subsets)
    assert alone.total.copies


def test_a_copy_is_the_later_document_in_corpus_order(tmp_path: Path) -> None:
    first = write_shard(tmp_path / "0.jsonl.zst", [making.record("same", "ArXiv")])
    second = write_shard(tmp_path / "1.jsonl.zst", [making.record("same", "Github"), making.record("same", "ArXiv")])
    subsets = corpus_stats([second, first], copies=True).to_dict()["subsets"]
    assert {name: figures["copies"] for name, figures in subsets.items()} == {"ArXiv": 1, "Github": 1}


def test_selected_subsets_only(two_shards: list[Path]) -> None:
    expected = slow_stats(two_shards)["ArXiv"]
    stats = corpus_stats(two_shards, subsets=["ArXiv"])
    assert [subset.name for subset in stats.subsets] == ["ArXiv"]
    assert (stats.total.documents, stats.total.bytes) == (expected["documents"], expected["bytes"])
    assert stats.total.share == 1


def test_the_largest_subset_comes_first_and_what_was_not_asked_for_is_left_out(two_shards: list[Path]) -> None:
    stats = corpus_stats(two_shards)
    sizes = [subset.bytes for subset in stats.subsets]
    assert sizes == sorted(sizes, reverse=True)
    keys = {"documents", "bytes", "share", "mean_bytes", "median_bytes", "p99_bytes"}
    assert {frozenset(figures) for figures in stats.to_dict()["subsets"].values()} == {frozenset(keys)}
    json.dumps(stats.to_dict(), allow_nan=False)


def test_the_papers_share_comes_from_the_manifest(two_shards: list[Path]) -> None:
    shares = {subset.name: subset.paper_share for subset in corpus_stats(two_shards).subsets}
    assert shares["Github"] == pytest.approx(0.0759)
    assert shares["New"] is None
    bare = corpus_stats(Corpus(two_shards, manifest="demo")).subsets
    assert all(subset.paper_share is None for subset in bare)


def test_bad_lines_stop_the_count_or_are_counted(tmp_path: Path) -> None:
    lines = [making.record("good"), b"bad", b'{"text": 1}', b"  ", making.record("good")]
    paths = [write_shard(tmp_path / f"{number}.jsonl.zst", lines[number:]) for number in range(2)]
    with pytest.raises(PilekitError, match="line 2"):
        corpus_stats(paths)
    stats = corpus_stats(paths, on_error="skip", jobs=2)
    assert stats.to_dict()["skipped"] == 4
    bad_lines = [(Path(bad.path).name, bad.line) for bad in stats.skipped.examples]
    assert bad_lines == [("0.jsonl.zst", 2), ("0.jsonl.zst", 3), ("1.jsonl.zst", 1), ("1.jsonl.zst", 2)]
    assert stats.total.documents == 3


def test_damage_is_an_error_even_when_bad_lines_are_skipped(tmp_path: Path) -> None:
    path = write_shard(tmp_path / "a.jsonl.zst", making.some_lines(2000))
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(PilekitError, match=r"a\.jsonl\.zst"):
        corpus_stats(path, on_error="skip")


def test_no_document_at_all(tmp_path: Path) -> None:
    stats = corpus_stats(write_shard(tmp_path / "a.jsonl.zst", [b"", b" "]), copies=True)
    assert stats.to_dict() == {"documents": 0, "bytes": 0, "skipped": 0, "subsets": {}}
    assert math.isnan(stats.total.median_bytes)
    assert stats.total.copies == 0


def test_empty_texts_count_as_documents(tmp_path: Path) -> None:
    stats = corpus_stats(write_shard(tmp_path / "a.jsonl.zst", [making.record("")] * 3), copies=True)
    figures = {"documents": 3, "bytes": 0, "share": 0, "mean_bytes": 0, "median_bytes": 0, "p99_bytes": 0, "copies": 2}
    assert stats.to_dict()["subsets"]["Github"] == figures
    assert stats.total.tokens_per_byte is None


def test_too_many_labels_are_an_error_with_the_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(counting, "MAX_SUBSETS", 100)
    counts = Counts()
    assert counts.rows([f"https://{i}" for i in range(100)]).tolist() == list(range(100))
    with pytest.raises(PilekitError, match="label_path"):
        counts.rows(["one more"])


def test_tokens_are_those_of_the_tokenizer_without_eod(tmp_path: Path) -> None:
    import tokenizers

    model = tokenizers.Tokenizer(tokenizers.models.BPE())
    model.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    model.decoder = tokenizers.decoders.ByteLevel()
    alphabet = tokenizers.pre_tokenizers.ByteLevel.alphabet()
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=300, initial_alphabet=sorted(alphabet), special_tokens=["<|endoftext|>"], show_progress=False
    )
    model.train_from_iterator(["some words to train on, some more words"], trainer)
    model.save(str(tmp_path / "tokenizer.json"))
    texts = ["some words", "", "é€𝄞", "<|endoftext|>", "more\nwords " * 50]
    paths = [
        write_shard(tmp_path / "0.jsonl.zst", [making.record(text, "ArXiv") for text in texts]),
        write_shard(tmp_path / "1.jsonl.zst", [making.record(text, "Github") for text in texts[:2]]),
    ]
    tokenizer = load_tokenizer(tmp_path / "tokenizer.json")
    expected = [len(tokenizer.encode_batch([text])[0]) for text in texts]
    for jobs in (1, 2):
        stats = corpus_stats(paths, tokenizer=str(tmp_path / "tokenizer.json"), jobs=jobs)
        subsets = stats.to_dict()["subsets"]
        assert subsets["ArXiv"]["tokens"] == sum(expected)
        assert subsets["Github"]["tokens"] == sum(expected[:2])
        assert stats.total.tokens == sum(expected) + sum(expected[:2])
        assert "copies" not in subsets["ArXiv"]


def test_other_fields_and_labels_by_manifest(tmp_path: Path) -> None:
    manifest = tmp_path / "other.toml"
    manifest.write_text('name = "other"\ntext_field = "content"\nlabel_path = "source"\n')
    write_shard(tmp_path / "a.jsonl.zst", [b'{"content": "abc", "source": "here"}', b'{"content": "d"}'])
    stats = corpus_stats(Corpus(tmp_path / "a.jsonl.zst", manifest=manifest))
    assert {subset.name: subset.bytes for subset in stats.subsets} == {"here": 3, "(none)": 1}


def test_plain_and_gzip_shards(tmp_path: Path) -> None:
    data = b"\n".join([making.record("abc"), making.record("é", "ArXiv")])
    (tmp_path / "a.jsonl").write_bytes(data)
    (tmp_path / "b.jsonl").write_bytes(data)
    subprocess.run(["gzip", str(tmp_path / "b.jsonl")], check=True)
    (tmp_path / "c.jsonl.zst").write_bytes(zstandard.compress(data))
    stats = corpus_stats(tmp_path)
    assert {subset.name: (subset.documents, subset.bytes) for subset in stats.subsets} == {
        "Github": (3, 9),
        "ArXiv": (3, 6),
    }
