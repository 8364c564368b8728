"""Batches for tests, divided in any way, with their lines, and shards of such lines."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import orjson

from pilekit.documents import DocumentBatch
from pilekit.shards.write.shard_writer import ShardWriter
from tests.shards.making import unzstd


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


def write_shard(path: Path, texts: Sequence[str], subsets: Sequence[str] | None = None) -> Path:
    """A shard of such lines, in any form; its folder is made."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with ShardWriter(path) as writer:
        writer.write(batch(texts, subsets, path.name))
    return path


def lines_of(folder: Path) -> dict[str, list[bytes]]:
    """The lines of each compressed shard of a folder, by the name of the shard."""
    return {path.stem: unzstd(path).split(b"\n")[:-1] for path in sorted(folder.glob("*.zst"))}


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
