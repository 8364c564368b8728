"""`corpus_stats`: the contents of a corpus, per subset.

Every shard is counted separately (counting.py), several at a time, and the counts are added up in the order of the
shards, so the result does not depend on the number of processes. Hashes of texts are compared here, in the order of the
corpus: of two equal documents the later one is the copy, whichever process was faster.
"""

from __future__ import annotations

import functools
from collections.abc import Collection, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack

import numpy as np
import numpy.typing as npt

from pilekit.corpus import Corpus, Described, Manifest, Source, subsets_or_all
from pilekit.shards.corpus_job import CorpusJob
from pilekit.shards.index.document_rows import load_scan
from pilekit.shards.index.format import Frames, ShardIndex, find_index
from pilekit.shards.read.absent_label import check_label
from pilekit.shards.work import Work, takes
from pilekit.stats.counting import CopyCounter, CountOptions, Counts, count_into_file, count_shard, hashes_from_file
from pilekit.stats.histogram import quantile
from pilekit.stats.result import CorpusStats, SubsetStats

if TYPE_CHECKING:
    from pilekit.tokenize import Tokenizer


@takes(Work)
def corpus_stats(
    corpus: Corpus | Source,
    *,
    subsets: Sequence[str] | None = None,
    tokenizer: Tokenizer | str | Path | Any | None = None,
    copies: bool = False,
    manifest: Described = None,
    **work: Unpack[Work],
) -> CorpusStats:
    """Count a corpus.

    corpus      a `Corpus`, or one or several paths, globs or URLs
    subsets     only their documents are counted, in any spelling the manifest knows; None: all
    tokenizer   counts tokens too; a `Tokenizer`, or an argument of `load_tokenizer`
    copies      also counts the documents whose text occurred before (equal 64-bit hash); takes about 10 bytes of memory
                a document; all other memory is constant. A cluster keeps hashes in the cache folder meanwhile
    manifest    describes the corpus at a path, as for `Corpus`
    work        on_error, jobs, advance, cluster: see `Work`

    A damaged shard is a `PilekitError` whatever `on_error` says. Shards with an index are read only for tokens.
    """
    corpus = Corpus.of(corpus, manifest)
    subsets = subsets_or_all(subsets, corpus.manifest)
    if tokenizer is not None:
        from pilekit.tokenize import load_tokenizer  # Importing it takes as long as counting a small shard.

        tokenizer = load_tokenizer(tokenizer)
    # Reading only some subsets skips lines of others, so an index cannot tell which bad lines reading would find.
    indexes: list[ShardIndex | None] = []
    for shard in corpus.shards:
        index = find_index(shard, corpus.manifest) if tokenizer is None else None
        indexes.append(None if index is not None and subsets is not None and index.header.skipped else index)
    to_read = [shard for shard, index in zip(corpus.shards, indexes, strict=True) if index is None]
    job = CorpusJob(corpus, **work)
    job = replace(job, jobs=job.processes(to_read))
    stored = sum(shard.size or 0 for shard in to_read) // (job.jobs or 1)
    options = CountOptions(corpus.manifest, subsets, tokenizer, copies, job.on_error, stored)
    if subsets is None and tokenizer is None:
        load_scan(job, to_read, hashed=copies)
    count = functools.partial(count_shard, options=options)
    counts = Counts()
    copy_counter = CopyCounter()
    no_frames = Frames(*[np.zeros(0, dtype=np.int64)] * 4)  # Counting needs none, and a shard of 43 GB has 1.4 MB.
    indexes = [index and replace(index, frames=no_frames) for index in indexes]
    items = list(zip(corpus.shards, indexes, strict=True))
    if copies and job.cluster is not None:
        files = job.each_file(functools.partial(count_into_file, count=count), items, "copies")
        results = ((shard_counts, hashes_from_file(file)) for file, shard_counts in files)
    else:
        results = job.each(count, items)
    with closing(results):
        for shard_counts, text_hashes in results:
            rows = counts.merge(shard_counts).astype(np.int16)
            text_hashes.reverse()
            while text_hashes:  # Each block is dropped once the counter has its hashes.
                hashes, local_rows = text_hashes.pop()
                copy_counter.add(hashes, rows[local_rows])
    check_label(corpus, counts.groups, subsets, per_subset=True)
    copied = copy_counter.copies(len(counts.groups)) if copies else None
    return _summary(counts, copied, tokenizer is not None, corpus.manifest, subsets)


def paper_shares(manifest: Manifest, selected: Collection[str] | None) -> dict[str, float]:
    """The manifest's share of each subset, of the whole corpus or of the selected subsets; 0 to 1."""
    weights = {subset.name: subset.weight_percent for subset in manifest.subsets if subset.weight_percent is not None}
    if selected is not None:
        weights = {name: weight for name, weight in weights.items() if name in selected}
    whole = 100 if selected is None else sum(weights.values())
    return {name: weight / whole for name, weight in weights.items()} if whole else {}


def _summary(
    counts: Counts,
    copies: npt.NDArray[np.int64] | None,
    has_tokens: bool,
    manifest: Manifest,
    selected: tuple[str, ...] | None,
) -> CorpusStats:
    all_bytes = int(counts.bytes.sum())

    joined: dict[str, list[str]] = {}
    for label, name in sorted(counts.joined.items()):
        joined.setdefault(name, []).append(label)

    def figures(name: str, rows: int | slice, paper_share: float | None) -> SubsetStats:
        lengths = counts.lengths[rows].reshape(-1, counts.lengths.shape[1]).sum(axis=0)
        documents, size = int(lengths.sum()), int(counts.bytes[rows].sum())
        return SubsetStats(
            name=name,
            documents=documents,
            bytes=size,
            share=size / all_bytes if all_bytes else 0.0,
            paper_share=paper_share,
            mean_bytes=size / documents if documents else float("nan"),
            median_bytes=quantile(lengths, 0.5),
            p99_bytes=quantile(lengths, 0.99),
            lengths=lengths,
            tokens=int(counts.tokens[rows].sum()) if has_tokens else None,
            copies=int(copies[rows].sum()) if copies is not None else None,
            joined=tuple(joined.get(name, ())),
        )

    shares = paper_shares(manifest, selected)
    subsets = [figures(name, row, shares.get(name)) for name, row in counts.groups.items()]
    subsets.sort(key=lambda subset: (-subset.bytes, -subset.documents, subset.name))
    return CorpusStats(tuple(subsets), figures("total", slice(None), None), counts.skipped, manifest.name, selected)
