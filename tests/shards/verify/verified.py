"""Helpers for the tests of verify: shards to damage, and a slow way to find their frames."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path

import zstandard

from pilekit.corpus.shard import shard_of
from pilekit.shards.index.build import index_of
from pilekit.shards.verify.findings import Finding
from pilekit.shards.verify.verify import Verification, verify_corpus
from tests.shards.making import flipped, write_shard, zstd_frame

CUT = "no seek table, index or sum"
CHANGE = "no checksums, index or sum"


def verify(path: Path | str, **options: object) -> Verification:
    return verify_corpus(path, jobs=1, **options)  # type: ignore[arg-type]


def findings(path: Path | str, **options: object) -> tuple[Finding, ...]:
    return verify(path, **options).findings


def only(path: Path | str, **options: object) -> Finding:
    [finding] = findings(path, **options)
    assert "\n" not in finding.problem
    return finding


def note(path: Path, what: str) -> bool:
    return any(what in line for line in verify(path).notes)


@dataclass(frozen=True)
class Frame:
    """The place of a frame in a test's shard, found the slow way: the library decodes each frame."""

    begin: int
    end: int
    line: int  # of its first line, from 1


def frames_of(data: bytes) -> list[Frame]:
    found: list[Frame] = []
    position, line = 0, 1
    while data[position : position + 4] == b"\x28\xb5\x2f\xfd":
        decoder = zstandard.ZstdDecompressor().decompressobj()
        text = decoder.decompress(data[position:])
        end = len(data) - len(decoder.unused_data)
        found.append(Frame(position, end, line))
        position, line = end, line + text.count(b"\n")
    return found


def write(path: Path, lines: list[bytes], frame_bytes: int = 4096) -> Path:
    return write_shard(path, lines, frame_bytes)


def flip(path: Path, position: int, bit: int = 0) -> None:
    path.write_bytes(flipped(path.read_bytes(), position, 1 << bit))


def index(path: Path) -> Path:
    return Path(index_of(shard_of(str(path))).path)


def sums(path: Path, name: str = "SHA256SUMS") -> Path:
    place = path.parent / name
    place.write_text(f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}\n")
    return place


def released(path: Path, lines: list[bytes]) -> Path:
    """A shard as the Pile was released: one frame, no checksum, no content size."""
    path.write_bytes(zstd_frame(b"".join(line + b"\n" for line in lines)))
    return path
