"""How often a stream with weights by step decodes the same text, estimated from a sample of frames.

A unit has documents of one subset, and the frames that hold them are decoded for this unit alone. So in an epoch of
each subset, a frame is decoded once for each unit that has a document in it: once for each subset where units are
larger than what a frame has of a subset. Which documents a unit has is known without reading anything.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from pilekit.shards.random_access.frame_cache import WHOLE_BYTES
from pilekit.stream.read.document_selection import StreamDocuments
from pilekit.stream.read.token_files import TokenCorpus

_FRAMES = 512
"""The most frames that are looked at."""


def decodings_per_epoch(
    selected: StreamDocuments, units: Mapping[str, int], *, frames: int = _FRAMES, whole_bytes: int = WHOLE_BYTES
) -> float | None:
    """How many times, on average, text is decoded in an epoch of each subset; None if no text is decoded repeatedly.

    units         the documents in a unit of each subset, by exact name
    frames        look at most at so many frames, evenly over the corpus
    whole_bytes   a corpus with no more bytes of text is held in memory

    A byte counts as often as its frame is decoded, and frames without a document of these subsets do not count. Nothing
    is decoded of token files and plain shards. Of documents that `copies` uses again the first use alone counts.
    """
    indexes = selected.plan.indexes
    if isinstance(selected.corpus, TokenCorpus) or sum(index.header.content_bytes for index in indexes) <= whole_bytes:
        return None
    ends = np.cumsum([0 if index.header.storage == "plain" else len(index.frames) for index in indexes])
    chosen = np.unique(np.linspace(0, ends[-1], min(frames, int(ends[-1])), endpoint=False).astype(np.int64))
    decoded = text = 0
    for shard, index in enumerate(indexes):
        begin, end = np.searchsorted(chosen, [ends[shard - 1] if shard else 0, ends[shard]])
        if begin == end:
            continue
        of_shard = chosen[begin:end] - (ends[shard - 1] if shard else 0)
        first_lines = np.append(index.frames.line, index.header.lines)
        sizes = np.diff(index.frames.text_offset, append=index.header.content_bytes)[of_shard]
        times = np.zeros(len(of_shard), np.int64)
        for name, unit in units.items():
            documents = selected.of_subset(name)
            firsts, behind = (documents.before(shard, first_lines[of_shard + more]) for more in (0, 1))
            times += np.where(firsts < behind, (behind - 1) // unit - firsts // unit + 1, 0)
        decoded += int((times * sizes).sum())
        text += int(sizes[times > 0].sum())
    return decoded / text if text else None
