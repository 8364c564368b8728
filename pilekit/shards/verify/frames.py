"""Compare frames with a seek table or an index; after damage, check each later frame separately.

A decoder cannot resume after damage, because a frame does not say where the next one begins. A seek table or an index
does, so every later frame can be checked. If a frame does not end where the next one begins, it is the damaged one,
although the decoder may have noticed only in the next.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise, zip_longest
from typing import BinaryIO, NamedTuple

from pilekit.errors import counted
from pilekit.shards.index.format import ShardIndex
from pilekit.shards.index.scan import ShardScan
from pilekit.shards.read.read_errors import ShardDamage
from pilekit.shards.read.zstd_frames import decompress_frame_at, is_skippable
from pilekit.shards.verify.findings import FindingList

SeekTable = list[tuple[int, int]]


class KnownFrame(NamedTuple):
    """A frame that was not decoded: where it begins and, if known, its text's bytes and first line."""

    offset: int
    size: int | None
    line: int | None


def known_frames(file: BinaryIO, table: SeekTable | None, index: ShardIndex | None) -> list[KnownFrame]:
    """The frames that the seek table lists or, without a table, the index.

    Only the index knows lines. With a table, a frame has a line if the index has a frame at the same offset.
    """
    indexed = () if index is None else zip(index.frames.offset.tolist(), index.frames.line.tolist(), strict=True)
    lines = {offset: line + 1 for offset, line in indexed}
    if table is None:
        return [KnownFrame(offset, None, line) for offset, line in lines.items()]
    return [KnownFrame(offset, size, lines.get(offset)) for offset, size in _frames_of_table(file, table)]


def locate(damage: ShardDamage, begins: list[int], read: int, lines: int) -> tuple[int | None, int, str, bool]:
    """The damage that ended reading: (frame, first suspect byte, reason, whether lines that were read are suspect).

    Suspect lines are those of the frame; without frames (gzip), all lines.

    begins   where the known frames begin, then where the last frame ends
    read     how many frames the reader reached
    lines    how many lines were read
    """
    number = damage.frame
    if damage.since is not None:
        place = f"it lies in bytes {damage.since:,} to {damage.byte:,} and was noticed after {counted(lines, 'line')}"
        return number, damage.since, f"{damage.reason} ({place})", True
    if number is None:
        return None, damage.byte, damage.reason, False
    # The damaged frame is the one before, if it did not end where this one begins, or this one, if it runs on.
    begins_elsewhere = 0 < number == read < len(begins) and damage.byte != begins[number]
    runs_on = number + 1 < len(begins) and damage.byte > begins[number + 1]
    if not begins_elsewhere and not runs_on:
        return number, damage.byte, damage.reason, False
    number -= begins_elsewhere
    return number, begins[number], f"frame {number} does not end where the next one begins; fetch it again", True


def check_frames(
    file: BinaryIO, frames: list[KnownFrame], first: int, damage: FindingList, wrong_sizes: FindingList
) -> None:
    """Decode each frame from number `first` on separately; add findings to `damage` and `wrong_sizes`."""
    for number, frame in enumerate(frames[first:], first):
        try:
            decoded = sum(map(len, decompress_frame_at(file, frame.offset, number=number)))
        except ShardDamage as error:
            damage.add(error.reason, frame=number, line=frame.line, byte=frame.offset)
        else:
            if frame.size not in (None, decoded):
                problem = _wrong_size(number, decoded, frame.size)
                wrong_sizes.add(problem, frame=number, line=frame.line, byte=frame.offset)


def compare_table(file: BinaryIO, table: SeekTable, scan: ShardScan, findings: FindingList) -> None:
    """Add the first frame that differs from its entry in the seek table."""
    sizes = [end - begin for begin, end in pairwise([*scan.frames.text_offset.tolist(), scan.content_bytes])]
    read = zip(scan.frames.offset.tolist(), sizes, strict=True)
    for number, (listed, decoded) in enumerate(zip_longest(_frames_of_table(file, table), read)):
        if listed == decoded:
            continue
        if listed and decoded and listed[0] == decoded[0]:
            problem = _wrong_size(number, decoded[1], listed[1])
        else:
            problem = f"frame {number} is not where the seek table says; write the file again with pilekit reframe"
        line = int(scan.frames.line[number]) + 1 if decoded else None
        findings.add(problem, frame=number, line=line, byte=min(frame[0] for frame in (listed, decoded) if frame))
        return


def _frames_of_table(file: BinaryIO, table: SeekTable) -> Iterator[tuple[int, int]]:
    """(offset, decoded bytes) of the zstd frames in a table, which lists skippable frames too."""
    offset = 0
    for stored, decoded in table:
        file.seek(offset)
        if decoded or not is_skippable(file.read(4)):
            yield offset, decoded
        offset += stored


def _wrong_size(number: int, size: int, listed: int | None) -> str:
    return (
        f"frame {number} decodes to {size:,} bytes, the seek table says {listed:,}; write the file again with "
        "pilekit reframe"
    )
