"""Count a shard from its index: what reading it would count, without reading it.

An index holds each document's subset, size and hash, and the bad lines, so all that `stats` tells follows from it, but
tokens. Its labels are numbered per group of 100,000 rows, so the work per document is a few numpy calls.
"""

from __future__ import annotations

from collections.abc import Collection

import numpy as np

from pilekit.corpus import Shard
from pilekit.shards.index.format import ShardIndex, bad_lines
from pilekit.shards.read.json_records import bad_line_error
from pilekit.shards.read.reader import OnError
from pilekit.stats.counting import Counts, TextHashes


def tells_all(index: ShardIndex, subsets: Collection[str] | None) -> bool:
    """Whether the index tells all that reading would.

    Reading only some subsets passes over lines of others without looking at them, so which bad lines it would meet is
    not known.
    """
    return subsets is None or not index.header.skipped


def count_indexed(
    shard: Shard,
    index: ShardIndex,
    counts: Counts,
    texts: TextHashes | None,
    *,
    subsets: Collection[str] | None,
    on_error: OnError,
) -> None:
    """Count all documents of an indexed shard into `counts`, and their texts' hashes into `texts` where given."""
    counts.skipped = bad_lines(shard, index)
    if counts.skipped.count and on_error == "raise":
        raise bad_line_error(counts.skipped.examples[0])
    for table in index.row_groups(["subset", "text_bytes", *([] if texts is None else ["text_hash"])]):
        subset = table["subset"].chunk(0)
        labels, codes = subset.dictionary.to_pylist(), subset.indices.to_numpy()
        row_of = np.full(len(labels), -1)
        # Only labels that occur: a dictionary may hold others.
        wanted = [code for code in np.unique(codes).tolist() if subsets is None or labels[code] in subsets]
        row_of[wanted] = counts.rows([labels[code] for code in wanted])
        rows = row_of[codes]
        chosen = np.flatnonzero(rows >= 0)
        counts.add(rows[chosen], table["text_bytes"].to_numpy()[chosen])
        if texts is not None:
            texts.hashes.append(table["text_hash"].to_numpy()[chosen])
            texts.rows.append(rows[chosen].astype(np.int16))
