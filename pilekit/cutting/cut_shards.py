"""Cut a table's spans out of shards: the pieces of a document become documents of their own.

A table has the columns `shard`, `number`, `start` and `end` (characters). Lines of documents without a span are copied
byte for byte.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.compute as pc
import pyarrow.dataset

from pilekit.corpus import Manifest, Shard
from pilekit.documents import DocumentBatch
from pilekit.engine import Advance
from pilekit.errors import PilekitError, visible
from pilekit.shards.fingerprint import Inputs
from pilekit.shards.keep_mask import KeepMask
from pilekit.shards.random_access.document_reader import DocumentReader
from pilekit.shards.read.reader import OnError, read
from pilekit.shards.write.shard_writer import write_documents

SHORTEST_PIECE, MOST_PIECES = 200, 10
PARTS = ("untouched", "cut", "dropped")
COUNTS, BYTES_REMOVED = (*PARTS, "pieces", "spans", "characters_removed"), "bytes_removed"

Spans = Sequence[tuple[int, int]]


def pieces_around(text: str, spans: Spans, window: int) -> list[str]:
    """The pieces of a text without spans and `window` characters on each side, in whole words; [] drops it."""
    pieces, at = [], 0
    for start, end in spans:
        start, end = max(0, start - window), min(len(text), end + window)
        while start > 0 and not (text[start].isspace() or text[start - 1].isspace()):
            start -= 1
        while end < len(text) and not (text[end].isspace() or text[end - 1].isspace()):
            end += 1
        pieces.append(text[at:start].strip() if at < start else "")
        at = max(at, end)
    pieces = [piece for piece in (*pieces, text[at:].strip()) if len(piece) >= SHORTEST_PIECE]
    return pieces if len(pieces) <= MOST_PIECES else []


def spans_of(table: Path, shard: str) -> Iterator[tuple[int, list[tuple[int, int]]]]:
    """The number of each document of a shard that has spans, and its different spans in order; few are in memory."""
    dataset = pyarrow.dataset.dataset(table, format="parquet")
    columns = ["number", "start", "end"]
    batches = dataset.to_batches(columns=columns, filter=pc.field("shard") == shard, use_threads=False)
    rows = (row for batch in batches for row in zip(*(column.to_pylist() for column in batch.columns), strict=True))
    for number, of_document in groupby(rows, key=itemgetter(0)):
        yield number, sorted({(start, end) for _, start, end in of_document})


def cut_shard(
    shard: Shard,
    advance: Advance,
    *,
    table: Path,
    before: Mapping[str, int],
    pieces: Callable[[str, Spans], list[str]],
    path: Path | None,
    subsets: Sequence[str] | None,
    mask_of: Callable[[Shard], KeepMask | None] = lambda shard: None,
    manifest: Manifest,
    on_error: OnError,
    ahead: bool,
    inputs: Inputs,
) -> tuple[dict[str, dict[str, int]], list[Path]]:
    """Write the shard at `path`; returns the counts of each subset, and the paths written.

    before    documents of each subset, counted by an earlier pass
    pieces    cuts the spans out of a text; a document without pieces is dropped
    path      None: write nothing, and read only the documents with spans
    subsets   leave out the documents of all other subsets; None: keep all
    mask_of   gives the shard's mask; leave out the documents that it does not keep
    """
    waiting, counts = spans_of(table, shard.name), dict[str, dict[str, int]]()
    number, spans = next(waiting, (-1, []))

    def count(subset: str, **more: int) -> None:
        of_subset = counts.setdefault(subset, dict.fromkeys((*COUNTS, BYTES_REMOVED), 0))
        for name, amount in more.items():
            of_subset[name] += amount

    def cut(subset: str, text: str) -> list[str]:
        nonlocal number, spans
        left = pieces(text, spans)
        characters = len(text) - sum(map(len, left))
        size = len(text.encode()) - sum(len(piece.encode()) for piece in left)
        counted = {"cut" if left else "dropped": 1, "pieces": len(left), "spans": len(spans)}
        count(subset, **counted, untouched=-1, characters_removed=characters, bytes_removed=size)
        number, spans = next(waiting, (-1, []))
        return left

    def cut_batches(reader: Iterable[DocumentBatch], mask: KeepMask | None) -> Iterator[DocumentBatch]:
        for read_batch in reader:
            batch = read_batch if mask is None else read_batch.where(mask.keeps(read_batch.numbers))
            for subset, documents in Counter(batch.subsets).items():
                count(subset, untouched=documents)
            at, replaced = {one: index for index, one in enumerate(batch.numbers.tolist())}, dict[int, list[str]]()
            while (index := at.get(number)) is not None:
                replaced[index] = cut(batch.subsets[index], batch.texts[index])
            yield batch.with_pieces(replaced)

    if path is None:
        for subset, documents in before.items():
            count(subset, untouched=documents)
        numbers = np.array([number for number, _ in spans_of(table, shard.name)], np.int64)
        with closing(DocumentReader(shard, None, manifest=manifest, advance=advance)) as documents_of:
            for document in documents_of.increasing(numbers):
                cut(document.subset, document.text)
        files = []
    else:
        with read(shard, subsets, on_error, manifest=manifest, advance=advance, ahead=ahead) as reader:
            files = write_documents(path, cut_batches(reader, mask_of(shard)), lambda: inputs.check(shard))
    if number >= 0:
        raise PilekitError(f"{visible(shard.path)}: changed while it was read; run the same command again")
    return counts, files


def summed(
    shards: Sequence[dict[str, Any]], read_counts: Sequence[dict[str, Any]], counted: Sequence[str] = COUNTS
) -> dict[str, Any]:
    """The summary of all shards' counts, largest subsets first; PilekitError if they do not add up.

    shards        the counts of `cut_shard` for each shard
    read_counts   an earlier pass's counts of each: `read` by subset, `skipped` and `others`
    counted       the counts to sum
    """
    subsets: dict[str, dict[str, int]] = {}
    for cut, before in zip(shards, read_counts, strict=True):
        for name, documents in before["read"].items():
            counts = subsets.setdefault(name, dict.fromkeys(("read", *counted), 0))
            counts["read"] += documents
            for count in counted:
                counts[count] += cut.get(name, {}).get(count, 0)
    subsets = dict(sorted(subsets.items(), key=lambda item: (-item[1]["read"], item[0])))
    total = {name: sum(counts[name] for counts in subsets.values()) for name in ("read", *counted)}
    skipped, left_out = (sum(before[name] for before in read_counts) for name in ("skipped", "others"))
    for name, counts in (("all", total), *subsets.items()):
        if counts["read"] != sum(counts[part] for part in PARTS):
            shown = ", ".join(f"{counts[part]:,} {part}" for part in ("read", *PARTS))
            raise PilekitError(f"documents got lost ({visible(name)}): {shown}; please report this")
    all_read = total.pop("read") + skipped + left_out
    named = {name: total.pop(name) for name in PARTS}
    return {"read": all_read, **named, "skipped": skipped, "left_out": left_out, **total, "subsets": subsets}
