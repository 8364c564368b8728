"""The plan of a corpus and its reason, and the bytes read and indexes made to choose it."""

from __future__ import annotations

import functools
import gzip
import random
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard

from pilekit.corpus import Corpus
from pilekit.shards.index.build import index_corpus
from pilekit.shards.read import open as opening
from pilekit.shards.write.reframe import reframe_corpus
from pilekit.stream.read import read_plan
from pilekit.stream.read.read_plan import MOST_DECODED
from tests.refusing import refused
from tests.stream.corpora import record, write_shard


def text_of(size: int, seed: int = 0) -> bytes:
    """About `size` bytes of lines, made quickly; they compress about tenfold."""
    rng = random.Random(seed)
    block = b"".join(record(rng.randbytes(50).hex(), "ArXiv") + b"\n" for _ in range(1000))
    return block * (size // len(block) + 1)


def single_frame(data: bytes, *, size_told: bool = False) -> bytes:
    """One frame, without its size as in the Pile, at level 1 for speed."""
    if size_told:
        return zstandard.ZstdCompressor(level=1).compress(data)
    stream = zstandard.ZstdCompressor(level=1).compressobj()
    return stream.compress(data) + stream.flush()


choose_plan = functools.partial(read_plan.choose_plan, held_bytes=0)
"""Every corpus counts as too large for memory."""


@pytest.fixture(scope="module")
def long_text() -> bytes:
    return text_of(MOST_DECODED + (1 << 20))


def test_one_long_frame_is_read_in_turn_and_makes_no_index(tmp_path: Path, long_text: bytes) -> None:
    for name, data in (("00", single_frame(long_text)), ("01", single_frame(long_text, size_told=True))):
        folder = tmp_path / name
        folder.mkdir()
        (folder / f"{name}.jsonl.zst").write_bytes(data)
        chosen = choose_plan(Corpus(folder))
        assert chosen.name == "sequential"
        assert chosen.indexes == ()
        assert chosen.reason.startswith(f"{name}.jsonl has frames of 9 MiB or more, ")
        assert sorted(path.name for path in folder.iterdir()) == [f"{name}.jsonl.zst"]
        # An index says the same, more exactly.
        index_corpus(folder)
        assert choose_plan(Corpus(folder)).reason.startswith(f"{name}.jsonl has frames of 9 MiB or more, ")


def test_finding_out_reads_little_of_a_long_frame(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = random.Random(0)
    data = b"".join(record(rng.randbytes(500_000).hex(), "ArXiv") + b"\n" for _ in range(40))
    (tmp_path / "00.jsonl.zst").write_bytes(single_frame(data))
    read, plainly = list[int](), opening._StoredFile.read

    def counted(self: opening._StoredFile, size: int = -1) -> bytes:
        found = plainly(self, size)
        read.append(len(found))
        return found

    monkeypatch.setattr(opening._StoredFile, "read", counted)
    assert choose_plan(Corpus(tmp_path)).name == "sequential"
    assert MOST_DECODED / 4 < sum(read) < 2 * MOST_DECODED < len(data) / 2


@pytest.mark.parametrize("held", [True, False])
@pytest.mark.parametrize("form", ["frames", "single", "plain"])
def test_small_frames_are_entered_anywhere_and_indexed(tmp_path: Path, form: str, held: bool) -> None:
    held_bytes = 64 << 20 if held else 0
    for number in range(3):
        write_shard(tmp_path / f"{number:02d}", [record("x", "ArXiv")] * 50, form)  # type: ignore[arg-type]
    corpus, told = Corpus(tmp_path), list[int]()
    chosen = choose_plan(corpus, advance=told.append, held_bytes=held_bytes)
    assert chosen.name == "random"
    assert ("held whole" in chosen.reason) == held
    assert [index.header.documents for index in chosen.indexes] == [50] * 3
    assert all(index.built for index in chosen.indexes)
    assert sum(told) == corpus.size
    again = choose_plan(corpus, held_bytes=held_bytes)
    assert (again.name, again.reason) == (chosen.name, chosen.reason)
    assert [index.header for index in again.indexes] == [index.header for index in chosen.indexes]
    assert not any(index.built for index in again.indexes)


def test_what_reframe_writes_is_entered_anywhere(tmp_path: Path, long_text: bytes) -> None:
    (tmp_path / "raw").mkdir()
    (tmp_path / "raw" / "00.jsonl.zst").write_bytes(single_frame(long_text))
    reframe_corpus(Corpus(tmp_path / "raw"), tmp_path / "new")
    chosen = choose_plan(Corpus(tmp_path / "new"))
    assert chosen.name == "random"
    assert chosen.reason == "all shards have frames small enough to be decoded for a few documents"
    # The seek table alone is enough: the index is removed, and made again.
    for index in (tmp_path / "new").rglob("*.index.parquet"):
        index.unlink()
    again = choose_plan(Corpus(tmp_path / "new"))
    assert again.name == "random"
    assert again.indexes[0].built


def test_a_long_frame_behind_a_short_one_is_found_by_the_index(tmp_path: Path, long_text: bytes) -> None:
    line = record("first", "ArXiv") + b"\n"
    (tmp_path / "00.jsonl.zst").write_bytes(zstandard.compress(line) + single_frame(long_text))
    chosen = choose_plan(Corpus(tmp_path))
    assert (chosen.name, chosen.indexes) == ("sequential", ())


def test_gzip_has_one_frame_and_parquet_its_row_groups(tmp_path: Path, long_text: bytes) -> None:
    short = long_text[:1_000_000].rpartition(b"\n")[0]
    rng = random.Random(0)
    table = pa.table({"text": [rng.randbytes(5_000).hex() for _ in range(1200)], "pile_set_name": ["ArXiv"] * 1200})
    for name, data, rows in (("sequential", long_text, 1_000_000), ("random", short, 100)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "00.jsonl.gz").write_bytes(gzip.compress(data, 1))
        pq.write_table(table, tmp_path / name / "01.parquet", row_group_size=rows)
        for shard in ("00.jsonl.gz", "01.parquet"):
            chosen = choose_plan(Corpus(tmp_path / name / shard))
            assert (chosen.name, len(chosen.indexes)) == (name, name == "random")


def test_text_that_cannot_be_held_however_small_when_stored(tmp_path: Path, long_text: bytes) -> None:
    held_bytes = 2 * len(long_text)
    for number in range(3):
        (tmp_path / f"{number:02d}.jsonl.zst").write_bytes(single_frame(long_text))
    corpus = Corpus(tmp_path)
    assert corpus.size < len(long_text)
    assert choose_plan(corpus, held_bytes=held_bytes).name == "sequential"
    (tmp_path / "00.jsonl.zst").unlink()
    assert choose_plan(Corpus(tmp_path), held_bytes=held_bytes).name == "random"


def test_standard_input_is_read_as_it_comes() -> None:
    assert choose_plan(Corpus("-")).name == "sequential"


def test_bad_lines_and_damage_are_errors(tmp_path: Path) -> None:
    write_shard(tmp_path / "bad" / "00", [record("x", "ArXiv"), b"not json", record("y", "ArXiv")], "frames")
    for _ in range(2):  # the second time from the index that the call with "skip" made
        refused(r"00\.jsonl\.zst, line 2: is not JSON.*--on-error skip", choose_plan, Corpus(tmp_path / "bad"))
        assert choose_plan(Corpus(tmp_path / "bad"), on_error="skip").indexes[0].header.skipped == 1
    (tmp_path / "00.jsonl.zst").write_bytes(single_frame(text_of(1_000_000))[:-100])
    for held in (0, 64 << 20):
        refused(r"00\.jsonl\.zst: is cut off", choose_plan, Corpus(tmp_path / "00.jsonl.zst"), held_bytes=held)
