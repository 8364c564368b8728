"""verify finds a shard's problems with their places, and names the checks that were not possible."""

from __future__ import annotations

import gzip
import random
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from pilekit.corpus import Corpus, load_manifest, shard_of
from pilekit.shards.read.open import ReadOptions
from pilekit.shards.verify.shard import ShardCheck
from pilekit.shards.verify.verify import verify_corpus
from tests.shards.making import record, some_lines, zstd_frame
from tests.shards.verify.verified import CHANGE, CUT, findings, flip, frames_of, index, note, only, sums, verify, write


def test_of_very_many_findings_of_a_kind_a_hundred_are_listed(tmp_path: Path) -> None:
    path = write(tmp_path / "00.jsonl.zst", [record(f"{i}") for i in range(150)], frame_bytes=1)
    for frame in frames_of(path.read_bytes()):
        flip(path, frame.end - 1)
    found = findings(path)
    assert [finding.frame for finding in found] == [*range(100), None]
    assert found[-1].problem == "50 more frames are damaged"
    found = findings(write(path, [record("good"), *[b"bad"] * 1234]))
    assert [finding.line for finding in found] == [*range(2, 102), None]
    assert found[-1].problem == "1,134 more bad lines"
    found = findings(write(path, [record("text", f"label {i % 150}") for i in range(1500)]))
    assert [finding.line for finding in found] == [*range(1, 101), None]
    assert all('10 documents labelled "label ' in finding.problem for finding in found[:100])
    assert "500 more documents" in found[-1].problem


def test_bad_lines_have_their_reason_and_byte(tmp_path: Path) -> None:
    path = tmp_path / "00.jsonl"
    odd = [b"not json", b"", b'{"text": 5}', b'{"meta": {}}', b"\xff", b"[]"]
    long = record("long" * (1 << 20), "unheard-of")
    lines = [*odd, *some_lines(9000), long, b"not json", *some_lines(10)]
    path.write_bytes(b"\n".join(lines))
    found = findings(path)
    expected = [number for number, line in enumerate(lines) if line in odd and line] + [lines.index(long)]
    assert [(finding.line, finding.byte, finding.frame) for finding in found] == [
        (number + 1, sum(len(line) + 1 for line in lines[:number]), None) for number in expected
    ]
    reasons = ["not JSON", '"text" is a number', 'no "text"', "not valid UTF-8", "is a list", "not JSON"]
    for finding, reason in zip(found, reasons, strict=False):
        assert reason in finding.problem
        assert "--on-error skip" in finding.problem
    path = tmp_path / "00.jsonl.gz"
    path.write_bytes(gzip.compress(b"\n".join([record("text"), b"bad"])))
    assert [(finding.line, finding.byte, finding.frame) for finding in findings(path)] == [(2, None, None)]


def test_a_bad_line_in_any_frame_has_its_line(tmp_path: Path) -> None:
    lines = some_lines(300)
    bad = sorted(random.Random(0).sample(range(299), 20))
    for number in bad:
        lines[number] = lines[number][:-1]
    lines[299] = record("text", "unheard-of")
    path = write(tmp_path / "00.jsonl.zst", lines)
    frames = frames_of(path.read_bytes())
    found = findings(path)
    assert [finding.line for finding in found] == [*(number + 1 for number in bad), 300]
    for finding in found:
        assert finding.line is not None
        number = sum(frame.line <= finding.line for frame in frames) - 1
        assert (finding.frame, finding.byte) == (number, frames[number].begin)


def test_labels_that_the_manifest_does_not_list(tmp_path: Path) -> None:
    labels = ["Github", "Gitub", "ArXiv", "Gitub", "\x1b[31mred", *["Github"] * 9000, "Gitub"]
    lines = [record("text", label) for label in labels]
    unlabelled = [b'{"text": "unlabelled"}', b'{"text": "another", "meta": {}}']
    path = write(tmp_path / "00.jsonl.zst", [b"", *lines, *unlabelled])
    found = findings(path)
    assert [finding.line for finding in found] == [3, 6, 9008]
    assert '3 documents labelled "Gitub"' in found[0].problem
    assert r'1 document labelled "\x1b[31mred"' in found[1].problem
    assert "2 documents without label" in found[2].problem
    assert "meta.pile_set_name" in found[2].problem
    assert all("--manifest" in finding.problem for finding in found)
    # A manifest without subsets accepts all labels unchanged.
    (tmp_path / "own.toml").write_text('name = "own"\n')
    assert verify_corpus(Corpus(str(path), str(tmp_path / "own.toml")), jobs=1).ok


def test_a_line_that_is_too_long_has_its_place(tmp_path: Path) -> None:
    path = tmp_path / "00.jsonl"
    path.write_bytes(record("short") + b"\n" + record("long" * 300) + b"\n" + record("short"))
    check = ShardCheck(shard_of(str(path)), path.open("rb"), load_manifest(), None, hashed=False)
    [finding] = check.run(ReadOptions(max_document_bytes=1000)).findings
    assert finding.line == 2
    assert finding.problem.startswith("is longer than")


def test_plain_gzip_and_empty_files_and_checks_that_were_not_possible(tmp_path: Path) -> None:
    text = b"".join(line + b"\n" for line in some_lines(50))
    (tmp_path / "a.jsonl").write_bytes(text)
    path, packed = tmp_path / "b.jsonl.gz", gzip.compress(text)
    path.write_bytes(packed)
    found = verify(tmp_path)
    assert found.ok
    assert [line.partition(":")[0] for line in found.notes] == ["a.jsonl, b.jsonl", "a.jsonl"]
    path.write_bytes(packed[:-100])
    finding = only(tmp_path)
    assert (finding.shard, finding.frame, finding.byte) == ("b.jsonl", None, len(packed) - 100)
    assert "cut off" in finding.problem
    # Behind a wrong checksum no line is judged: the damage may be anywhere.
    packed = gzip.compress(b"\n".join([record("text", "unheard-of"), b"bad", b""]))
    for members in (1, 2):
        path.write_bytes(packed * members)
        assert len(findings(path)) == 1 + members
        flip(path, path.stat().st_size - 8)
        finding = only(path)
        assert (finding.frame, finding.line, finding.byte) == (None, 1, 0)
        assert "CRC" in finding.problem
        assert "was noticed after" in finding.problem
    path.unlink()
    for name in ("a.jsonl", "c.jsonl.gz", "d.jsonl.zst", "e.parquet"):
        (tmp_path / name).write_bytes(b"")
    assert [finding.shard for finding in findings(tmp_path)] == ["a.jsonl", "c.jsonl", "d.jsonl", "e.parquet"]
    path = tmp_path / "d.jsonl.zst"
    for checksum in (True, False):
        path.write_bytes(b"\x50\x2a\x4d\x18\x04\x00\x00\x00skip" + zstd_frame(record("text"), checksum=checksum))
        assert note(path, CHANGE) != checksum, "checksums are looked for in frames of text"


def test_parquet(tmp_path: Path) -> None:
    path = tmp_path / "00.parquet"
    rows = [{"text": f"document {i}", "meta": {"pile_set_name": "Github"}} for i in range(2000)]
    rows[1500]["text"] = None  # type: ignore[assignment]
    rows[1700]["meta"] = {"pile_set_name": "unheard-of"}
    pq.write_table(pa.Table.from_pylist(rows), path, row_group_size=300)
    found = findings(path)
    assert [(finding.line, finding.frame) for finding in found] == [(1501, 5), (1701, 5)]
    group = pq.read_metadata(path).row_group(5)
    assert {finding.byte for finding in found} == {group.column(0).dictionary_page_offset}
    rows[1500]["text"] = "text"
    rows[1700]["meta"] = {"pile_set_name": "ArXiv"}
    pq.write_table(pa.Table.from_pylist(rows), path, row_group_size=300)
    assert verify(path).ok
    assert note(path, CHANGE)
    assert not note(path, CUT)
    sums(path)
    index(path)
    assert verify(path).ok
    whole = path.read_bytes()
    path.write_bytes(whole[:-1])
    damage = findings(path)[0]
    assert damage.problem.startswith("is not a whole Parquet file")
    assert (damage.line, damage.byte) == (1, 0)
    path.write_bytes(whole)
    rows[1234]["text"] = "Document 1234"
    pq.write_table(pa.Table.from_pylist(rows), path, row_group_size=300)
    assert [(finding.line, finding.frame) for finding in findings(path)] == [(1235, 4), (None, None)]
