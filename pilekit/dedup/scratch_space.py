"""Whether the disk has room for what a step will write, asked before it starts rather than found out at its end.

What is written, per document or byte of text:

    sketches    24 bytes a document and 8 for each band: 192 with 21 bands
    matching    up to 64 bytes a document: keys that occur twice, pairs
    sets        1.4 bytes for a byte of text of those documents that may have a duplicate, and 16 a document
    clean       what the shards take now, and 3 %

How many documents there are is known when they are sketched, and which may have a duplicate when they are matched; so
each step is checked when its turn comes, and with it the clean shards, which come when sets and matches are gone: what
will not fit is not found out hours later. Before the first, documents are taken to be of 2 KB as stored, as the Pile's
are. What is done by then stays, and the next run goes on from there.
"""

from __future__ import annotations

import shutil
from pathlib import Path

from pilekit.errors import PilekitError, visible

STORED_BYTES_PER_DOCUMENT = 2000


def sketch_bytes(documents: int, bands: int) -> int:
    """What sketches of so many documents take."""
    return documents * (24 + 8 * bands)


def match_bytes(documents: int) -> int:
    """What matching so many documents takes at its height."""
    return 64 * documents


def set_bytes(text_bytes: int, documents: int) -> int:
    """What the shingle sets take of so many documents with so much text in all."""
    return int(1.4 * text_bytes) + 16 * documents


def clean_bytes(stored_bytes: int) -> int:
    """What clean shards may take where the shards take so much."""
    return int(1.03 * stored_bytes)


def check_free_disk(folder: Path, needed: int, what: str) -> None:
    """Raise `PilekitError` if the disk of `folder` has less than so many bytes free; `what` is going to need them."""
    place = folder.resolve()
    while not place.exists():
        place = place.parent
    free = shutil.disk_usage(place).free
    if free < needed:
        raise PilekitError(
            f"{visible(str(folder))}: {what} needs about {_short(needed)}, the disk has {_short(free)} free; "
            "make room, or name a folder on another disk with --out"
        )


def _short(size: int) -> str:
    """So many bytes in GB, or in MB where they are fewer; never 0 for a few."""
    return f"{size / 1e9:,.1f} GB" if size >= 10**9 else f"{max(size / 1e6, 0.1 * (size > 0)):,.1f} MB"
