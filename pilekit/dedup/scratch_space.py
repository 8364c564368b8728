"""How much disk a run needs.

Bytes on disk:

    sketches    24 a document and 8 for each band: 192 with 21 bands
    matching    up to 96 a document: keys that occur twice, pairs, names and decisions
    sets        1.4 for each byte of text of the documents that may have a duplicate, and 8 for each document
    clean       as much as the shards take now, plus 3 %; scratch files are removed first

All but the sets are estimated before the first step, for documents of 2 KB as stored, as in the Pile. The number of
candidates is known after matching, so the sets are checked then.
"""

from __future__ import annotations

STORED_BYTES_PER_DOCUMENT = 2000


def bytes_needed(stored_bytes: int, bands: int, *, clean: bool) -> int:
    """The most bytes that shards of this size need: sketches, then files for matching, then clean shards."""
    documents = stored_bytes // STORED_BYTES_PER_DOCUMENT
    return documents * (24 + 8 * bands) + max(96 * documents, int(1.03 * stored_bytes) * clean)


def set_bytes(text_bytes: int, documents: int) -> int:
    """Size of the shingle sets of candidates with this much text, in a corpus of this many documents."""
    return int(1.4 * text_bytes) + 8 * documents
