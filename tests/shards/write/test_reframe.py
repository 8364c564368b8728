"""Reframing gives the same bytes of text in seekable frames, after damage and full disks too."""

from __future__ import annotations

import gzip
import io
import itertools
import os
import re
import shutil
import subprocess
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
import pyzstd
import xxhash
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from pilekit import Corpus, PilekitError
from pilekit.corpus import shard_of
from pilekit.shards import corpus_job
from pilekit.shards.index.format import find_index
from pilekit.shards.read.reader import read
from pilekit.shards.write.reframe import ReframeResult, copy_in_frames, reframe_corpus
from pilekit.shards.write.seekable_frames import read_seek_table
from tests.shards import making
from tests.shards.reading import documents, frames_of, value_and_memory
from tests.stopping import tree

SKIPPABLE = b"\x5e\x2a\x4d\x18\x05\x00\x00\x00hello"
KIB = 1 << 10


def slow_frames(text: bytes, size: int) -> list[bytes]:
    """The text of each frame, cut line by line."""
    frames, frame = [], b""
    for line in re.findall(rb"[^\n]*\n|[^\n]+", text):
        frame += line
        if len(frame) >= size:
            frames.append(frame)
            frame = b""
    return [*frames, frame] if frame or not frames else frames


def reframe(source: Path, out: Path, **options: int) -> ReframeResult:
    (reframed,) = reframe_corpus(source, out, **options)
    return reframed


@st.composite
def contents(draw: st.DrawFn) -> bytes:
    """The text of any shard: records, blank, bad and long lines, with or without a last newline."""
    line = st.one_of(
        making.lines(),
        st.just(b""),
        st.binary(max_size=40).map(lambda junk: junk.replace(b"\n", b"")),
        st.integers(1, 20_000).map(lambda length: making.record("x" * length)),
    )
    text = b"\n".join(draw(st.lists(line, max_size=30)))
    ends_a_frame = b"\n" + making.record("x" * 10_000) + b"\n"
    return text + draw(st.sampled_from([b"", b"\n", ends_a_frame]))


@settings(max_examples=30)
@given(contents(), st.sampled_from([4 * KIB, 10_000]), st.sampled_from(["zstd", "gzip", "plain"]), st.data())
def test_every_byte_stays(
    tmp_path_factory: pytest.TempPathFactory, text: bytes, size: int, storage: str, data: st.DataObject
) -> None:
    folder = tmp_path_factory.mktemp("any")
    if storage == "plain" and text:
        source = folder / "a.jsonl"
        source.write_bytes(text)
    elif storage == "gzip":
        source = folder / "a.jsonl.gz"
        source.write_bytes(gzip.compress(text))
    else:
        borders = sorted(data.draw(st.sets(st.integers(0, len(text)), max_size=6)) | {0, len(text)})
        parts = [text[begin:end] for begin, end in itertools.pairwise(borders)] or [text]
        source = folder / "a.jsonl.zst"
        checksum = data.draw(st.booleans())
        source.write_bytes(SKIPPABLE.join(making.zstd_frame(part, checksum) for part in parts) + SKIPPABLE)
    reframed = reframe(source, folder / "out", frame_bytes=size)

    path = folder / "out" / "a.jsonl.zst"
    assert frames_of(path) == slow_frames(text, size)
    assert making.unzstd(path) == text
    expected = documents(reader := read(source, on_error="skip"))
    assert documents(read(path, on_error="skip")) == expected
    assert reframed == ReframeResult(
        "a.jsonl",
        documents=len(expected),
        bad_lines=reader.skipped.count,
        text_bytes=sum(len(found.encode()) for _, found, _ in expected),
        content_bytes=len(text),
        content_hash=xxhash.xxh3_128_hexdigest(text),
        stored_before=source.stat().st_size,
        stored_bytes=path.stat().st_size,
        frames=len(slow_frames(text, size)),
    )
    index = find_index(shard_of(str(path)))
    assert index is not None
    assert [tuple(row.values()) for row in index.columns(["number", "subset"]).to_pylist()] == [
        (number, subset) for number, _, subset in expected
    ]


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three shards of 2 MB of text each, in one frame, in many, and plain."""
    folder = tmp_path_factory.mktemp("corpus")
    texts = [b"".join(line + b"\n" for line in making.some_lines(6_000 + 7 * shard)) for shard in range(3)]
    (folder / "train").mkdir()
    (folder / "train" / "00.jsonl.zst").write_bytes(making.zstd_frame(texts[0]))
    parts = [texts[1][begin : begin + 300_000] for begin in range(0, len(texts[1]), 300_000)]
    (folder / "train" / "01.jsonl.zst").write_bytes(b"".join(map(making.zstd_frame, parts)))
    (folder / "val.jsonl").write_bytes(texts[2])
    return folder


def test_threads_and_processes_change_no_byte(corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written = []
    size = Corpus(corpus).size
    assert size is not None
    for number, (cpus, jobs) in enumerate([(1, 1), (4, 1), (4, 2)]):
        monkeypatch.setattr(corpus_job, "usable_cpus", lambda cpus=cpus: cpus)
        for _ in range(2):  # the second run finds everything done
            amounts: list[int] = []
            reframe_corpus(corpus, tmp_path / str(number), jobs=jobs, frame_bytes=200_000, advance=amounts.append)
            assert min(amounts) >= 0
            assert 0.99 * size <= sum(amounts) <= size
        written.append(tree(tmp_path / str(number)))
    names = ["train/00.jsonl.zst", "train/01.jsonl.zst", "val.jsonl.zst"]
    assert sorted(written[0]) == sorted(["pilekit.json", *names, *(f"{name}.index.parquet" for name in names)])
    assert written[1] == written[2] == written[0]
    lines = (corpus / "val.jsonl").read_bytes().splitlines()
    own = making.write_shard(tmp_path / "writer.jsonl.zst", lines, frame_bytes=200_000)
    assert own.read_bytes() == written[0]["val.jsonl.zst"]


def test_other_tools_read_the_output_and_their_output_can_be_reframed(corpus: Path, tmp_path: Path) -> None:
    text = making.unzstd(corpus / "train" / "00.jsonl.zst")
    path = tmp_path / "out" / "00.jsonl.zst"
    reframe(corpus / "train" / "00.jsonl.zst", tmp_path / "out", frame_bytes=100_000)
    assert pyzstd.decompress(path.read_bytes()) == text
    with pyzstd.SeekableZstdFile(path, "r") as file:
        for begin in range(0, len(text), 99_991):
            file.seek(begin)
            assert file.read(150_000) == text[begin : begin + 150_000]
    if shutil.which("zstd") is not None:
        assert subprocess.run(["zstd", "-dcq", str(path)], check=True, capture_output=True).stdout == text
    with pyzstd.SeekableZstdFile(tmp_path / "01.jsonl.zst", "w", max_frame_content_size=150_001) as file:
        file.write(text)
    data = (tmp_path / "01.jsonl.zst").read_bytes()
    assert {decoded for _, decoded in read_seek_table(io.BytesIO(data), len(data)) or []} >= {150_001}
    reframe(tmp_path / "01.jsonl.zst", tmp_path / "again", frame_bytes=100_000)
    assert (tmp_path / "again" / "01.jsonl.zst").read_bytes() == path.read_bytes()


def test_damage_is_reported_as_by_read_and_the_other_shards_are_finished(
    corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = (corpus / "train" / "01.jsonl.zst").read_bytes()
    damaged = tmp_path / "in" / "01.jsonl.zst"
    damaged.parent.mkdir()
    for cpus in (1, 2):
        monkeypatch.setattr(corpus_job, "usable_cpus", lambda cpus=cpus: cpus)
        for wrong in (data[: len(data) // 2] + b"\0" * 50 + data[len(data) // 2 + 50 :], data + b"tail", data[:-100]):
            damaged.write_bytes(wrong)
            with pytest.raises(PilekitError) as expected:
                list(read(damaged))
            with pytest.raises(PilekitError) as raised:
                reframe(damaged, tmp_path / "out")
            assert str(raised.value) == str(expected.value)
            assert re.search(r"frame \d+.* line \d", str(raised.value))
            assert not (tmp_path / "out").exists()
    (tmp_path / "in" / "00.jsonl").write_bytes(b"{}\n{}\n" + b"x" * 5_000_000 + b"\n{}\n")
    with pytest.raises(PilekitError, match=r"01\.jsonl\.zst: is cut off"):
        reframe_corpus(tmp_path / "in", tmp_path / "out", jobs=2)
    assert [path.name for path in (tmp_path / "out").rglob("*.zst")] == ["00.jsonl.zst"]
    shard = shard_of(str(tmp_path / "in/00.jsonl"))
    with pytest.raises(PilekitError, match=r"00\.jsonl, line 3: is longer than 4,999,999 bytes"):
        copy_in_frames(shard, io.BytesIO(), 4096, 3, 1, lambda amount: None, max_document_bytes=4_999_999)


def test_input_and_options_that_are_refused(corpus: Path, tmp_path: Path) -> None:
    (tmp_path / "a.parquet").touch()
    for source, why in [("-", "standard input"), (tmp_path / "a.parquet", "Parquet")]:
        with pytest.raises(PilekitError, match=rf"{why}.*select --format zst"):
            reframe_corpus(source, tmp_path / "out")
    for options in ({"frame_bytes": 4095}, {"frame_bytes": (1 << 30) + 1}, {"level": 0}, {"level": 23}):
        with pytest.raises(PilekitError, match="not "):
            reframe_corpus(corpus, tmp_path / "out", **options)
    assert not (tmp_path / "out").exists()


def damage_on_disk(monkeypatch: pytest.MonkeyPatch, change: Callable[[bytes], bytes]) -> None:
    """Simulate a disk that changes the shard when it is stored."""

    def fsync(descriptor: int) -> None:
        path = Path(f"/proc/self/fd/{descriptor}").readlink()
        if re.search(r"\.zst\.[0-9a-f]{8}\.partial$", path.name):
            path.write_bytes(change(path.read_bytes()))

    monkeypatch.setattr(os, "fsync", fsync)


def test_a_shard_that_the_disk_changed_is_not_published(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "00.jsonl").write_bytes(making.record("5") + b"\n")
    other = zstandard.ZstdCompressor(level=3, write_checksum=True).compress(making.record("6") + b"\n")
    changes: list[Callable[[bytes], bytes]] = [
        *(partial(making.flipped, at=at, mask=0x10) for at in (0, 40, -1)),
        lambda data: data[:-1],
        lambda data: other + data[len(other) :],  # a whole shard with the same seek table
    ]
    for change in changes:
        with (
            monkeypatch.context() as patch,
            pytest.raises(PilekitError, match="zst: the written file does not read back"),
        ):
            damage_on_disk(patch, change)
            reframe(tmp_path / "00.jsonl", tmp_path / "out")
        assert not (tmp_path / "out").exists()


MEMORY = """
from pilekit.shards import corpus_job
from pilekit.shards.write.reframe import reframe_corpus
corpus_job.usable_cpus = lambda: 4
value = reframe_corpus(sys.argv[1], sys.argv[1] + ".out")[0].content_bytes
"""


@pytest.mark.slow
def test_memory_does_not_grow_with_the_shard(tmp_path: Path) -> None:
    lines = b"".join(line + b"\n" for line in making.some_lines(15_000))
    used = []
    for times in (10, 30):
        source = tmp_path / f"{times}.jsonl.zst"
        source.write_bytes(making.zstd_frame(lines * times))
        content, kib = value_and_memory(MEMORY, source)
        assert content == len(lines) * times
        used.append(kib)
    assert used[1] < min(250_000, used[0] + 60_000)
