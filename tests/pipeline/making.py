"""Batches for tests, divided in any way, with their lines."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import orjson

from pilekit.documents import DocumentBatch


def batch(
    texts: Sequence[str], subsets: Sequence[str] | None = None, shard: str = "00.jsonl", first: int = 0
) -> DocumentBatch:
    """A batch of `texts`, numbered from `first`; its lines have a spelling that pilekit's encoder never writes."""
    labels = list(subsets) if subsets is not None else ["ArXiv"] * len(texts)
    lines = [
        b' {"meta" : {"pile_set_name":%s}, "text":%s, "more": 1.0} ' % (orjson.dumps(label), orjson.dumps(text))
        for text, label in zip(texts, labels, strict=True)
    ]
    return DocumentBatch(list(texts), labels, shard, np.arange(first, first + len(texts)), lines)


def cut(whole: DocumentBatch, lengths: Sequence[int]) -> Iterator[DocumentBatch]:
    """The documents of `whole` in batches of these lengths (0 gives an empty batch), the rest in a last one."""
    start = 0
    for length in [*lengths, len(whole)]:
        end = min(start + length, len(whole))
        yield whole.take(range(start, end))
        start = end


def identities(batches: Iterator[DocumentBatch]) -> list[tuple[str, int, str, str]]:
    """(shard, number, subset, text) of every document; no batch may be empty."""
    found = []
    for one in batches:
        assert len(one) > 0, "an empty batch was passed on"
        found += list(zip([one.shard] * len(one), one.numbers.tolist(), one.subsets, one.texts, strict=True))
    return found
