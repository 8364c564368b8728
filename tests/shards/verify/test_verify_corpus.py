"""verify of a corpus: sums, notes, several shards at a time, progress, and indexes that disagree with their shards."""

from __future__ import annotations

import contextlib
import hashlib
from dataclasses import replace
from itertools import chain, repeat
from pathlib import Path

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard

from pilekit.corpus import Corpus
from pilekit.corpus.shard import shard_of
from pilekit.errors import PilekitError
from pilekit.shards.index.build import index_of
from pilekit.shards.index.format import ShardIndex, index_places
from pilekit.shards.index.metadata import index_metadata
from pilekit.shards.verify.verify import verify_corpus
from tests.shards.making import flipped, record, some_lines, unzstd, write_shard
from tests.shards.reading import value_and_memory
from tests.shards.verify.verified import CHANGE, CUT, findings, flip, index, note, only, released, sums, verify, write


def test_a_good_shard_and_a_wrong_sum(shard: Path) -> None:
    found = verify(shard)
    assert (found.findings, found.notes, found.shards, found.stored_bytes) == ((), (), 1, shard.stat().st_size)
    made = index(shard)
    place = sums(shard, "elsewhere")
    assert verify(shard, sums=place).notes == (f"sums are taken from {place}",)
    digits = hashlib.sha256(b"other").hexdigest()
    place.write_text(f"{digits}  {shard.name}\n")
    finding = only(shard, sums=place)
    assert (finding.shard, finding.frame, finding.line, finding.byte) == ("00.jsonl", None, None, None)
    for part in (digits[:12], hashlib.sha256(shard.read_bytes()).hexdigest()[:12], str(place)):
        assert part in finding.problem
    assert verify(shard).ok, "it is not in the root under a standard name"
    place.rename(shard.parent / "SHA256SUMS.txt")
    assert "SHA256SUMS.txt" in only(shard).problem
    sums(shard)  # SHA256SUMS has priority over SHA256SUMS.txt
    assert verify(shard.parent).ok
    made.unlink()
    flip(shard, 100)
    sums(shard)
    [damage] = findings(shard)  # Damage is hashed to the end: the sum is that of the damaged file.
    assert damage.frame == 0
    table = verify(shard).to_arrow()
    assert table.to_pylist() == verify(shard).to_dict()["findings"]
    assert found.to_arrow().schema == table.schema


def test_unlisted_and_missing_files(shard: Path) -> None:
    write(shard.parent / "train" / "02.jsonl.zst", [record("text")])
    place = sums(shard)
    with place.open("a") as file:
        file.writelines(f"{'0' * 64}  {name}\n" for name in ("train/01.jsonl.zst", "README", "LICENSE"))
    (shard.parent / "README").write_text("text")
    found = verify(shard.parent)
    assert [finding.shard for finding in found.findings] == ["LICENSE", "train/01.jsonl.zst"]
    assert all("is not there" in finding.problem for finding in found.findings)
    assert f"train/02.jsonl: no sum in {place}" in found.notes
    assert "2 listed files are no shards and were not checked; sha256sum -c checks them" in found.notes
    assert verify(shard).ok, "nobody asked for the others"
    assert verify(str(shard.parent / "*.zst")).ok
    assert verify_corpus(Corpus(str(shard.parent)), jobs=1).ok


def test_arguments_that_cannot_be_used(shard: Path) -> None:
    place = shard.parent / "sums"
    place.write_text(f"{'0' * 64}  corpus/00.jsonl.zst\n")
    with pytest.raises(PilekitError, match=r"names corpus/00\.jsonl\.zst, the shards in .* are 00\.jsonl\.zst;"):
        verify(shard, sums=place)
    place.write_text("nonsense\n")
    with pytest.raises(PilekitError, match="sums, line 1"):
        verify(shard, sums=place)
    with pytest.raises(PilekitError, match="no such file"):
        verify(shard, sums=shard.parent / "none")
    with pytest.raises(PilekitError, match="standard input"):
        verify("-")


def test_sums_of_the_manifest(tmp_path: Path) -> None:
    path, plain = write(tmp_path / "a.jsonl.zst", some_lines(5)), tmp_path / "b.jsonl"
    plain.write_bytes(record("text") + b"\n")
    right = {"a": hashlib.sha256(path.read_bytes()).hexdigest(), "b": hashlib.sha256(plain.read_bytes()).hexdigest()}

    def found(digits: dict[str, str], size: int, *, named: bool) -> list[str]:
        file = tmp_path / "own.toml"
        file.write_text(
            'name = "own"\n[release]\nfiles = [\n'
            f'{{ name = "a.jsonl.zst", bytes = {size}, sha256 = "{digits["a"]}" }},\n'
            f'{{ name = "b.jsonl.zst", bytes = 5, sha256 = "{"0" * 64}", uncompressed_sha256 = "{digits["b"]}" }},\n]\n'
        )
        verification = verify_corpus(Corpus(str(tmp_path), str(file)), use_manifest_sums=named, jobs=1)
        assert all("the manifest own says 111111111111" in finding.problem for finding in verification.findings)
        return [finding.shard for finding in verification.findings]

    size, wrong = path.stat().st_size, dict.fromkeys("ab", "1" * 64)
    assert found(right, size, named=True) == []
    assert found(wrong, size, named=True) == ["a.jsonl", "b.jsonl"]
    # A manifest that was not named counts only for files of exactly the released size.
    assert found(wrong, size, named=False) == ["a.jsonl"]
    assert found(wrong, size + 1, named=False) == []
    sums(path)  # has priority over the manifest
    assert found(wrong, size, named=False) == []


def test_a_changed_byte_of_a_released_shard_shows_against_sum_and_index_only(tmp_path: Path) -> None:
    path = released(tmp_path / "00.jsonl.zst", some_lines(100))
    whole, right = path.read_bytes(), unzstd(path)
    assert note(path, CUT)
    assert note(path, CHANGE)
    silent = None
    for position in range(len(whole)):
        flip(path, position)
        with contextlib.suppress(zstandard.ZstdError):
            if unzstd(path) != right and verify(path).ok:
                silent = path.read_bytes()
                break
        path.write_bytes(whole)
    assert silent is not None  # such bytes exist: the text is wrong, and nothing shows it
    path.write_bytes(whole)
    place = sums(path)
    assert verify(path).ok
    path.write_bytes(silent)
    assert "SHA-256" in only(path).problem
    place.unlink()
    path.write_bytes(whole)
    index(path)
    assert verify(path).notes == ()
    path.write_bytes(silent)
    pairs = zip(right.split(b"\n"), unzstd(path).split(b"\n"), strict=True)
    assert only(path).line == next(line for line, (here, there) in enumerate(pairs, 1) if here != there)


def test_several_processes_find_the_same_and_progress_ends_at_the_size(tmp_path: Path) -> None:
    for number in range(4):
        lines = [*some_lines(100), b"bad", record("text", f"label {number}")]
        flip(write(tmp_path / f"{number}.jsonl.zst", lines), 300 * number + 100)
    corpus = Corpus(str(tmp_path))
    cut = tmp_path / "2.jsonl.zst"
    gone = cut.stat().st_size - 1000
    cut.write_bytes(cut.read_bytes()[:1000])
    (tmp_path / "3.jsonl.zst").unlink()
    results = []
    for jobs in (1, 2, 4):
        done: list[int] = []
        results.append(verify_corpus(corpus, jobs=jobs, advance=done.append))
        assert corpus.size is not None
        assert sum(done) == corpus.size - gone
        assert all(amount >= 0 for amount in done)
    assert results[0] == results[1] == results[2]
    assert [finding.shard for finding in results[0].findings][-1] == "3.jsonl"
    assert results[0].findings[-1].problem == "no such file; check the path"
    assert len(results[0].findings) > 3


@pytest.mark.slow
def test_memory_does_not_depend_on_the_size(tmp_path: Path) -> None:
    memory = []
    for repeats in (20_000, 200_000):
        path = tmp_path / f"{repeats}.jsonl.zst"
        thousand = [record("x" * 1000, label) for label in ("ArXiv", "Github") for _ in range(500)]
        index(write_shard(path, chain.from_iterable(repeat(thousand, repeats // 1000))))
        sums(path, f"{repeats}")
        script = f"""
from pilekit.shards.verify.verify import verify_corpus
value = int(verify_corpus(sys.argv[1], sums="{tmp_path}/{repeats}", jobs=1).ok)
"""
        ok, grown = value_and_memory(script, path)
        assert ok
        memory.append(grown)
    assert memory[1] < memory[0] + (50 << 10)


def test_an_index_of_other_documents_or_of_the_same_stored_otherwise(shard: Path) -> None:
    lines = some_lines(1200)
    place = index(shard)
    write(shard, lines, frame_bytes=8192)
    finding = only(shard)
    assert finding.line is None
    assert "with the same documents" in finding.problem
    for changed, line in ((lines[:1000], 1001), ([*lines, record("one more")], 1201), (lines[100:], 1)):
        finding = only(write(shard, changed))
        assert finding.line == line
        assert f"differ from line {line:,} on" in finding.problem
        assert "pilekit index" in finding.problem
    # An index in the cache is compared too.
    cached = Path(index_places(shard_of(str(shard)))[-1])
    assert cached != place
    cached.parent.mkdir(parents=True)
    place.rename(cached)
    assert str(cached) in only(shard).problem


def test_an_index_of_other_fields_is_told_and_its_documents_are_not_compared(tmp_path: Path) -> None:
    path = released(tmp_path / "00.jsonl.zst", some_lines(5))
    index(path)
    (tmp_path / "own.toml").write_text('name = "own"\nlabel_path = "source"\n')
    found = verify_corpus(Corpus(str(path), str(tmp_path / "own.toml")), jobs=1)
    assert found.ok
    assert found.notes[-1].startswith("00.jsonl: the index is of another text_field or label_path")
    assert CUT in found.notes[0], "such an index is no proof of the shard"


def rewrite(index: ShardIndex, table: pa.Table, **header: object) -> None:
    """Write the index again with other rows or figures, and right sums."""
    frames = index.frames
    if "frames" in header:
        frames, header = replace(frames, line_at=frames.line_at + np.arange(len(frames))), {}
    with pq.ParquetWriter(index.path, table.schema) as writer:
        writer.write_table(table)
        writer.add_key_value_metadata(index_metadata(msgspec.structs.replace(index.header, **header), frames))


def test_an_edited_row_of_an_index(tmp_path: Path) -> None:
    path = write(tmp_path / "00.jsonl.zst", [*some_lines(1200), b""])
    built = index_of(shard_of(str(path)))
    table = built.columns()
    for column, row in (("number", 0), ("number", 1199), ("subset", 123), ("text_bytes", 123), ("text_hash", 1199)):
        values = table.column(column).to_pylist()
        if column == "number":
            values[row:] = [value + 1 for value in values[row:]]
        else:
            values[row] = "ArXiv" if column == "subset" else values[row] ^ 1
        kind = table.schema.field(column)
        edited = pa.array(values, pa.uint64() if column == "text_hash" else None).cast(kind.type)
        rewrite(built, table.set_column(table.schema.get_field_index(column), kind, edited))
        finding = only(path)
        assert finding.problem.startswith(f"its index {built.path} says otherwise from line {row + 1:,} on")
        assert "pilekit index" in finding.problem
        assert finding.line == row + 1


def test_an_edited_figure_of_an_index(tmp_path: Path) -> None:
    path = write(tmp_path / "00.jsonl.zst", [*some_lines(100), b"", *[b"bad"] * 150])
    built = index_of(shard_of(str(path)), on_error="skip")
    table, header = built.columns(), built.header
    for figure in ("lines", "text_bytes", "content_bytes", "content_hash", "skipped", "examples", "frames"):
        value = {"content_hash": "0" * 32, "examples": [(102, "another"), *header.examples[1:]], "frames": 0}
        rewrite(built, table, **{figure: value[figure] if figure in value else getattr(header, figure) + 1})
        wrong, bad, *_ = findings(path)
        assert f"says otherwise of the whole shard ({figure})" in wrong.problem
        assert (wrong.line, bad.line) == (None, 102)


def test_a_damaged_index(shard: Path) -> None:
    place = index(shard)
    place.write_bytes(flipped(place.read_bytes(), place.stat().st_size // 2))
    assert only(shard).problem.startswith(f"its index {place}: is damaged")
    place.write_bytes(b"no index")
    assert "pilekit index" in only(shard).problem
