"""Helpers for the tests of reading: documents of batches, frames, the one line of an error, the memory of a script."""

from __future__ import annotations

import io
import subprocess
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
import zstandard

from pilekit.documents import DocumentBatch
from pilekit.errors import PilekitError
from pilekit.shards.read.reader import read
from pilekit.shards.write.seekable_frames import read_seek_table

Found = list[tuple[int, str, str]]


def documents(batches: object) -> Found:
    found: Found = []
    for batch in batches:  # type: ignore[attr-defined]
        assert isinstance(batch, DocumentBatch)
        found += list(zip(batch.numbers.tolist(), batch.texts, batch.subsets, strict=True))
    return found


def frames_of(path: Path) -> list[bytes]:
    """The text of each frame, read through the seek table at the end of the file."""
    data, position, frames = path.read_bytes(), 0, []
    table = read_seek_table(io.BytesIO(data), len(data))
    assert table is not None
    for stored, decoded in table:
        frame = data[position : position + stored]
        assert zstandard.get_frame_parameters(frame).has_checksum
        frames.append(zstandard.ZstdDecompressor().decompress(frame))
        assert len(frames[-1]) == decoded
        position += stored
    return frames


def error(path: Path | str, reading: Callable[..., Iterable[object]] = read, *arguments: Any, **options: Any) -> str:
    """The one-line error of reading this shard to its end."""
    with pytest.raises(PilekitError) as raised:
        list(reading(path, *arguments, **options))
    message = str(raised.value)
    assert "\n" not in message
    assert str(path) in message
    return message


def value_and_memory(script: str, path: Path) -> tuple[int, int]:
    """A script's variable `value`, and how many KiB its process grew at most after its imports."""
    # Not ru_maxrss: a child process inherits its parent's.
    script = f"""
import re, sys
from pathlib import Path
import pyarrow.parquet
from pilekit import read, PilekitError
def peak(): return int(re.search(r"VmHWM:\\s+(\\d+)", Path("/proc/self/status").read_text())[1])
before = peak()
{script}
print(value, peak() - before)
"""
    result = subprocess.run([sys.executable, "-c", script, str(path)], check=True, capture_output=True, text=True)
    value, memory = result.stdout.split()
    return int(value), int(memory)
