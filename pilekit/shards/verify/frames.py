"""The frames of a zstd shard against what a seek table or an index says of them.

A decoder cannot go on behind damage, and nothing in a frame says where the next one begins. A table or an index does:
with one, every frame is checked by itself, and of two frames that ran into each other the first is the damaged one.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import zip_longest
from typing import BinaryIO, NamedTuple

from pilekit.shards.index.format import ShardIndex
from pilekit.shards.index.scan import IndexScan
from pilekit.shards.read.damage import ShardDamage
from pilekit.shards.read.zstd_frames import decompress_frame_at, is_skippable
from pilekit.shards.verify.findings import FindingList

SeekTable = list[tuple[int, int]]


class KnownFrame(NamedTuple):
    """What is known of a frame without decoding it: where it begins and, if told, its text's bytes and first line."""

    offset: int
    size: int | None
    line: int | None


def known_frames(file: BinaryIO, table: SeekTable | None, index: ShardIndex | None) -> list[KnownFrame]:
    """The frames that the seek table lists or, without one, the index; none if there is neither.

    Lines are the index's, for the frames on which both agree.
    """
    lines = {} if index is None else dict(zip(index.frames.offset.tolist(), index.frames.line.tolist(), strict=True))
    if table is None:
        return [KnownFrame(offset, None, line + 1) for offset, line in lines.items()]
    return [
        KnownFrame(offset, size, None if (line := lines.get(offset)) is None else line + 1)
        for offset, size in _listed(file, table)
    ]


def locate(damage: ShardDamage, begins: list[int], read: int, lines: int) -> tuple[int | None, int, str, bool]:
    """What stopped reading: (frame, its first suspect byte, what is wrong, whether all its lines are suspect).

    Without frames (gzip) all lines from that byte on.

    begins   where frames begin, as far as that is known, and behind them where the last one ends
    read     how many frames reading came to
    lines    how many lines were read
    """
    number = damage.frame
    if damage.since is not None:
        place = f"it lies in bytes {damage.since:,} to {damage.byte:,} and was noticed after {lines:,} lines"
        return number, damage.since, f"{damage.reason} ({place})", True
    if number is None:
        return None, damage.byte, damage.reason, False
    if 0 < number == read < len(begins) and begins[number] != damage.byte:
        number -= 1  # No frame was where none should be: the one before ended there, and is the damaged one.
    elif not (number + 1 < len(begins) and damage.byte > begins[number + 1]):
        return number, damage.byte, damage.reason, False
    return number, begins[number], f"frame {number} does not end where the next one begins; fetch it again", True


def check_frames(file: BinaryIO, frames: list[KnownFrame], first: int, damage: FindingList, other: FindingList) -> None:
    """Decode each of the frames from number `first` on by itself; adds what is damaged, and what has another size."""
    for number, frame in enumerate(frames[first:], first):
        try:
            decoded = sum(map(len, decompress_frame_at(file, frame.offset, number=number)))
        except ShardDamage as found:
            damage.add(found.reason, frame=number, line=frame.line, byte=frame.offset)
        else:
            if frame.size not in (None, decoded):
                other.add(_wrong_size(number, decoded, frame.size), frame=number, line=frame.line, byte=frame.offset)


def compare_table(file: BinaryIO, table: SeekTable, scan: IndexScan, findings: FindingList) -> None:
    """Whether the seek table lists just the frames that were read; the first that differs is told."""
    begins, texts = scan.frames.offset.tolist(), [*scan.frames.text_offset.tolist(), scan.content_bytes]
    read = [(begin, texts[number + 1] - texts[number]) for number, begin in enumerate(begins)]
    for number, (listed, found) in enumerate(zip_longest(_listed(file, table), read)):
        if listed != found:
            line = int(scan.frames.line[number]) + 1 if found else None
            byte = min(frame[0] for frame in (listed, found) if frame)
            if listed and found and listed[0] == found[0]:
                what = _wrong_size(number, found[1], listed[1])
            else:
                what = f"frame {number} is not where the seek table says; write the file anew with pilekit reframe"
            findings.add(what, frame=number, line=line, byte=byte)
            return


def _listed(file: BinaryIO, table: SeekTable) -> Iterator[tuple[int, int]]:
    """(offset, decoded bytes) of the zstd frames in a table, which lists skippable ones too."""
    offset = 0
    for stored, decoded in table:
        if decoded or not _is_skippable_at(file, offset):
            yield offset, decoded
        offset += stored


def _is_skippable_at(file: BinaryIO, offset: int) -> bool:
    file.seek(offset)
    return is_skippable(file.read(4))


def _wrong_size(number: int, size: int, listed: int | None) -> str:
    return (
        f"frame {number} decodes to {size:,} bytes, the seek table says {listed:,}; write the file anew with "
        "pilekit reframe"
    )
