"""Keep masks: one bit for each line of a shard, from the shard's sketch and the removed documents.

The shard is read only if some subsets were left out of the comparison and it has lines that are not documents, because
the sketch does not list these.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from pilekit.corpus import Manifest, Shard
from pilekit.dedup.scratch_space import read_flags
from pilekit.dedup.sketch.shingles import Int64
from pilekit.dedup.sketch.sketch_format import ShardSketch, check_unchanged
from pilekit.shards.corpus_job import Share
from pilekit.shards.fingerprint import Fingerprint
from pilekit.shards.keep_mask import write_mask
from pilekit.shards.read.reader import read
from pilekit.workers import Advance


def mask_shard(
    work: tuple[Shard, ShardSketch, Path, tuple[int, int]],
    advance: Advance,
    *,
    labels: Sequence[str],
    flags: Path,
    only: bool,
    manifest: Manifest,
    share: Share,
) -> Int64:
    """Write the keep mask of a shard; returns (documents, bytes of text) kept of each subset, int64 [2, labels].

    work    the shard, its sketch, the mask's path, and the first id of its documents and the one after its last
    flags   for each id, whether the document is removed
    only    leave out documents that were not sketched, rather than keep them
    """
    shard, sketch, path, (begin, end) = work
    header, code_of = sketch.header, {label: code for code, label in enumerate(labels)}
    passed = {name for name in header.counts if header.subsets is not None and name not in header.subsets}
    counts = np.zeros((2, len(labels)), dtype=np.int64)
    kept = np.zeros(header.lines, dtype=np.bool_)
    if passed and not only:
        for name in passed:
            counts[:, code_of[name]] = header.counts[name]
        if sum(documents for documents, _ in header.counts.values()) == header.lines:
            kept[:] = True
        else:
            with read(shard, None, "skip", manifest=manifest, ahead=share.ahead) as reader:
                for batch in reader:
                    kept[batch.numbers] = True
    stays = ~read_flags(flags, begin, end)
    codes = np.array([code_of[label] for label in sketch.subset_names], dtype=np.int64)
    for rows in sketch.chunks(["number", "text_bytes", "subset"]):
        some, stays = stays[: len(rows["number"])], stays[len(rows["number"]) :]
        kept[rows["number"]] = some
        of = codes[rows["subset"][some]]
        np.add.at(counts[0], of, 1)
        np.add.at(counts[1], of, rows["text_bytes"][some])
    check_unchanged(shard, sketch)
    write_mask(path, shard.name, Fingerprint(header.size, header.sample), kept)
    return counts
