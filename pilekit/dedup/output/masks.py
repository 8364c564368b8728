"""Keep masks: one bit for each line of a shard, from the shard's sketch and the removed documents.

The shard is read only if some subsets were left out of the comparison and it has lines that are not documents, because
the sketch does not list these.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from pilekit.corpus import Manifest, Shard
from pilekit.dedup.match.population import Population
from pilekit.dedup.output.removed_table import Decisions
from pilekit.dedup.sketch.shingles import Int64
from pilekit.dedup.sketch.sketch_format import check_unchanged
from pilekit.shards.fingerprint import Fingerprint
from pilekit.shards.keep_mask import write_mask
from pilekit.shards.read.reader import read

_AT_A_TIME = 1 << 20


def mask_shard(
    path: Path,
    shard: Shard,
    population: Population,
    place: int,
    decisions: Decisions,
    *,
    only: bool,
    manifest: Manifest,
) -> Int64:
    """Write the keep mask of a shard; returns (documents, bytes of text) kept of each subset, int64 [2, labels].

    place   the index of the shard's sketch in `population.sketches`
    only    leave out documents that were not sketched, rather than keep them
    """
    header = population.sketches[place].header
    passed = {name for name in header.counts if header.subsets is not None and name not in header.subsets}
    counts = np.zeros((2, len(population.labels)), dtype=np.int64)
    kept = np.zeros(header.lines, dtype=np.bool_)
    if passed and not only:
        for name in passed:
            counts[:, population.labels.index(name)] = header.counts[name]
        if sum(documents for documents, _ in header.counts.values()) == header.lines:
            kept[:] = True
        else:
            with read(shard, None, "skip", manifest=manifest) as reader:
                for batch in reader:
                    kept[batch.numbers] = True
    first, end = population.base[place : place + 2].tolist()
    for begin in range(first, end, _AT_A_TIME):
        rows = population.table[begin : min(end, begin + _AT_A_TIME)]
        stays = ~decisions.removed(begin, begin + len(rows))
        kept[rows["number"]] = stays
        rows = rows[stays]
        np.add.at(counts[0], rows["label"], 1)
        np.add.at(counts[1], rows["label"], rows["text_bytes"])
    check_unchanged(shard, population.sketches[place])
    write_mask(path, shard.name, Fingerprint(header.size, header.sample), kept)
    return counts
