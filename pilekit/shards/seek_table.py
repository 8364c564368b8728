"""The seek table of the zstd seekable format (facebook/zstd, contrib/seekable_format, version 0.1.0).

It is a skippable frame at the end of a file: per frame its stored and its decoded size, then a footer. Decoders that do
not know it skip it, so the file stays an ordinary `.zst`; tools that do can seek to any frame.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

SKIPPABLE_MAGIC = 0x184D2A5E
SEEKABLE_MAGIC = 0x8F92EAB1
MAX_FRAME_BYTES = 1 << 30
"""The largest decoded frame the format allows."""

_HEADER = struct.Struct("<II")
_ENTRY = struct.Struct("<II")
_FOOTER = struct.Struct("<IBI")


def seek_table(frames: Sequence[tuple[int, int]]) -> bytes:
    """The skippable frame for `frames`: (stored bytes, decoded bytes) of each, in order.

    Entries carry no checksums of their own (descriptor 0): every frame ends with one.
    """
    entries = b"".join(_ENTRY.pack(stored, decoded) for stored, decoded in frames)
    footer = _FOOTER.pack(len(frames), 0, SEEKABLE_MAGIC)
    return _HEADER.pack(SKIPPABLE_MAGIC, len(entries) + len(footer)) + entries + footer
