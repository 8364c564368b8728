"""Counting from an index gives exactly the same JSON as counting the shard, with any options."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pilekit.corpus import Corpus, shard_of
from pilekit.errors import PilekitError
from pilekit.shards.fingerprint import Fingerprint, fingerprint
from pilekit.shards.index.build import build_index, index_corpus, index_of
from pilekit.shards.index.format import index_places
from pilekit.stats import counting
from pilekit.stats.summary import corpus_stats
from pilekit.workers import local
from tests.shards.index_reference import BAD_LINES
from tests.shards.making import LABELS, flipped, lines, record, zstd_frame

SOME = ["Github", "Gutenberg (PG-19)", "(none)"]
OPTIONS: list[dict[str, object]] = [
    {"copies": False, "subsets": None, "on_error": "raise"},
    {"copies": True, "subsets": None, "on_error": "skip"},
    {"copies": True, "subsets": ["ArXiv"], "on_error": "raise"},
    {"copies": False, "subsets": SOME, "on_error": "skip"},
]


def told(corpus: Corpus, **options: object) -> str:
    """The complete result for a corpus, or the one line of its error."""
    try:
        stats = corpus_stats(corpus, **options)  # type: ignore[arg-type]
    except PilekitError as error:
        return str(error)
    lengths = [subset.lengths.tolist() for subset in (*stats.subsets, stats.total)]
    return json.dumps([stats.to_dict(), list(map(str, stats.skipped.examples)), lengths])


def check(corpus: Corpus, *, good: bool = True, place: int = 0) -> None:
    """Count with every option, then again from indexes; with only good lines no shard is read."""

    def never(*arguments: object, **options: object) -> object:
        raise AssertionError("a shard was read, or a process started, although an index tells all")

    before = [told(corpus, **options) for options in OPTIONS]
    for shard in corpus.shards:
        build_index(shard, index_places(shard)[place], on_error="skip")
    with pytest.MonkeyPatch.context() as patch:
        if good:
            patch.setattr(counting, "document_rows", never)
            patch.setattr(local, "_in_processes", never)
        assert [told(corpus, jobs=2 if good else 1, **options) for options in OPTIONS] == before


@given(
    st.lists(st.lists(st.one_of(lines(), lines(), lines()), min_size=1, max_size=20), min_size=1, max_size=3),
    st.lists(st.sampled_from([*BAD_LINES, b""]), max_size=3),
)
def test_counts_agree(tmp_path_factory: pytest.TempPathFactory, shards: list[list[bytes]], bad: list[bytes]) -> None:
    folder = tmp_path_factory.mktemp("counted")
    for number, some in enumerate(shards):
        (folder / f"{number}.jsonl.zst").write_bytes(zstd_frame(b"\n".join([*some, *bad] if number else some)))
    check(Corpus(folder), good=len(shards) == 1 or not any(bad))


def test_counts_of_parquet_and_of_more_bad_lines_than_are_listed(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    rows = [{"text": "é" * i, "meta": {"pile_set_name": LABELS[i % 5]}} for i in range(50)]
    pq.write_table(pa.Table.from_pylist(rows), path, row_group_size=7)
    check(Corpus(path))
    path = tmp_path / "a.jsonl"
    path.write_bytes(b"bad\n" * 250 + record("good"))
    check(Corpus(path), good=False)
    assert json.loads(told(Corpus(path), on_error="skip"))[0]["skipped"] == 250


def test_wrong_arguments_are_refused_with_an_index_too(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(record("good") + b"\n")
    index_corpus(path)
    assert told(Corpus(path), subsets=[]).startswith("subsets is empty")
    path.write_bytes(record("good") + b"\nbad\n")
    index_corpus(path, on_error="skip")
    assert told(Corpus(path), on_error="skipp") == told(Corpus(path), on_error="raise")


def test_real_text(real_corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PILEKIT_CACHE", str(tmp_path))
    check(Corpus(real_corpus / "minipile-00.jsonl.zst"), place=-1)  # The last place is in the cache.


def test_of_a_shard_edited_in_place_the_index_is_not_counted(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "a.jsonl"
    text = b"".join(record(f"{i:04}", "ArXiv") + b"\n" for i in range(20_000))
    path.write_bytes(text)
    index = index_of(shard_of(str(path)))
    at = len(text) // 30 // 60 * 60  # between the pieces of the fingerprint
    edited = text[:at] + text[at : at + 500].replace(b"ArXiv", b"Books") + text[at + 500 :]
    assert len(edited) == len(text)
    assert edited != text
    with path.open("rb+") as file:
        file.write(edited)
    os.utime(path, ns=(0, Path(index.path).stat().st_mtime_ns + 1))  # clocks of file systems tick slowly
    assert fingerprint(str(path)) == Fingerprint(index.header.size, index.header.sample)
    counted = {subset.name: subset.documents for subset in corpus_stats(path).subsets}
    assert counted == Counter(json.loads(line)["meta"]["pile_set_name"] for line in edited.splitlines())
    assert "is older than its shard; make it again with `pilekit index" in caplog.text
    assert index_corpus(Corpus(path))[0].built
    # The index of a shard from the future is not made again and again.
    os.utime(path, (0, time.time() + 10_000))
    assert index_corpus(Corpus(path))[0].built
    assert not index_corpus(Corpus(path))[0].built


def test_a_damaged_index_is_not_counted_and_made_again(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(b"".join(record(str(i), LABELS[i % 3]) + b"\n" for i in range(1000)))
    before = told(Corpus(path), copies=True)
    index = Path(index_of(shard_of(str(path))).path)
    whole = index.read_bytes()
    group = pq.read_metadata(index).row_group(0)
    for column in map(group.column, range(1, 4)):
        index.write_bytes(flipped(whole, column.data_page_offset + column.total_compressed_size // 2))
        amounts: list[int] = []
        assert told(Corpus(path), copies=True, advance=amounts.append) == before
        assert sum(amounts) == path.stat().st_size
        assert re.search(r"index not used: .*index\.parquet: is damaged .* `pilekit index`", caplog.text)
    assert index_corpus(Corpus(path))[0].built
    assert index.read_bytes() == whole


def test_without_an_index_arrow_is_not_loaded(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(record("some words"))
    script = "import sys; from pilekit import corpus_stats; corpus_stats(sys.argv[1]); print('pyarrow' in sys.modules)"
    result = subprocess.run([sys.executable, "-c", script, str(path)], check=True, capture_output=True, text=True)
    assert result.stdout == "False\n"
