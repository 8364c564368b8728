"""Records and shards for the tests, made on the spot, and the slow, obviously right way to read them."""

from __future__ import annotations

import json
from collections.abc import Iterable
from copy import copy
from dataclasses import replace
from pathlib import Path
from typing import Any

import zstandard
from hypothesis import strategies as st

from pilekit.corpus import Corpus
from pilekit.shards.write.seekable_frames import FRAME_BYTES
from pilekit.shards.write.shard_writer import ShardWriter

LABELS = ["Github", "ArXiv", "Pile-CC", "Gutenberg (PG-19)", "USPTO Backgrounds", "naïve “label”"]

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=60)
"""Any text that UTF-8 can hold, quotes, backslashes, controls and newlines included."""

tricky_texts = st.one_of(
    texts,
    st.sampled_from(LABELS).map(lambda label: '", "meta": {"pile_set_name": "' + label + '"}}'),
    st.sampled_from(LABELS).map(lambda label: 'x\\", "meta": {"pile_set_name": "' + label + '"}}\n'),
)

spellings = st.sampled_from(
    [
        {"separators": (", ", ": ")},
        {"separators": (",", ":")},
        {"separators": (",", ":"), "ensure_ascii": False},
        {"separators": (" , ", " : "), "ensure_ascii": False},
    ]
)


@st.composite
def lines(draw: st.DrawFn) -> bytes:
    """One line of a shard: a record in any spelling, sometimes without label, with further keys, or blank."""
    record: dict[str, Any] = {"text": draw(tricky_texts)}
    if draw(st.integers(0, 9)):
        record["meta"] = {"pile_set_name": draw(st.sampled_from(LABELS))}
    extra = draw(st.integers(0, 9))
    if extra == 0:
        record["added"] = draw(tricky_texts)
    elif extra == 1:
        record["meta"] = {**record.get("meta", {}), "url": draw(tricky_texts)}
    elif extra == 2:
        record = dict(reversed(record.items()))
    elif extra == 3:
        return b" \t\r"
    line = json.dumps(record, **draw(spellings))
    if draw(st.booleans()):
        line = line.replace("/", "\\/")
    return line.encode() + draw(st.sampled_from([b"", b"\r", b" "]))


def slow_documents(data: bytes, bad: list[int] | None = None) -> list[tuple[int, str, str]]:
    """(number, text, label) of every document in decompressed bytes, by the standard library alone.

    bad   takes the numbers of the lines that are no documents; None: there are none
    """
    documents = []
    for number, line in enumerate(data.split(b"\n")):
        if not line.strip():
            continue
        try:
            record = json.loads(line)
            record["text"].encode()
            documents.append((number, record["text"], record.get("meta", {}).get("pile_set_name", "(none)")))
        except (ValueError, KeyError, TypeError, AttributeError):
            if bad is None:
                raise
            bad.append(number)
    return documents


def record(text: str, label: str = "Github") -> bytes:
    return json.dumps({"text": text, "meta": {"pile_set_name": label}}).encode()


def some_lines(count: int) -> list[bytes]:
    """Distinct, hard to compress lines."""
    return [record(f"document {i} " + " ".join(str(i * k * 7919 % 1_000_003) for k in range(40))) for i in range(count)]


def zstd_frame(data: bytes, checksum: bool = False) -> bytes:
    """One frame as the Pile's tools wrote it: streamed, without content size, by default without checksum."""
    stream = zstandard.ZstdCompressor(level=3, write_checksum=checksum).compressobj()
    return stream.compress(data) + stream.flush()


def write_shard(path: Path, some: Iterable[bytes], frame_bytes: int = FRAME_BYTES) -> Path:
    """A shard of these lines, as pilekit writes it."""
    with ShardWriter(path, frame_bytes=frame_bytes) as writer:
        writer.write_lines(some)
    return path


def as_if_large(corpus: Corpus) -> Corpus:
    """The same corpus, whose shards say that each has a terabyte, so that the compiled scan reads them."""
    large = copy(corpus)
    large.shards = tuple(replace(shard, size=1 << 40) for shard in corpus.shards)
    return large


def flipped(data: bytes, at: int, mask: int = 1) -> bytes:
    """The bytes with some bits of one byte flipped."""
    changed = bytearray(data)
    changed[at] ^= mask
    return bytes(changed)


def unzstd(path: Path) -> bytes:
    """Decompress all frames with the library's own stream."""
    with path.open("rb") as file:
        return zstandard.ZstdDecompressor().stream_reader(file, read_across_frames=True).read()
