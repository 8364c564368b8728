"""Shards without what a table of spans names: pieces of documents, each a document of its own.

A table has the columns `shard`, `number`, `start` and `end` (characters). Lines of documents without a span are copied
byte for byte.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from pilekit.corpus import Manifest, Shard
from pilekit.documents import DocumentBatch
from pilekit.engine import Advance
from pilekit.errors import PilekitError, visible
from pilekit.pipeline.shard_job import write_documents
from pilekit.shards.fingerprint import Inputs
from pilekit.shards.keep_mask import KeepMask
from pilekit.shards.read.reader import OnError, read

SHORTEST_PIECE, MOST_PIECES = 200, 10
PARTS = ("untouched", "cut", "dropped")
COUNTS, BYTES_REMOVED = (*PARTS, "pieces", "spans", "characters_removed"), "bytes_removed"

Spans = Sequence[tuple[int, int]]


def pieces_around(text: str, spans: Spans, window: int) -> list[str]:
    """What is left of a text without spans and `window` characters on each side, in whole words; [] drops it."""
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


def read_spans(table: Path, shard: str) -> dict[int, list[tuple[int, int]]]:
    """The different spans of each document of a shard that has any, in order."""
    rows = pq.read_table(table, columns=["number", "start", "end"], filters=[("shard", "==", shard)])
    columns = (rows[name].to_pylist() for name in ("number", "start", "end"))
    spans: dict[int, list[tuple[int, int]]] = defaultdict(list)
    for number, start, end in sorted(set(zip(*columns, strict=True))):
        spans[number].append((start, end))
    return dict(spans)


def cut_shard(
    shard: Shard,
    advance: Advance,
    *,
    table: Path,
    pieces: Callable[[str, Spans], list[str]],
    path: Path | None,
    subsets: Sequence[str] | None,
    mask_of: Callable[[Shard], KeepMask | None] = lambda shard: None,
    manifest: Manifest,
    on_error: OnError,
    ahead: bool,
    inputs: Inputs,
) -> tuple[dict[str, dict[str, int]], list[Path]]:
    """Write the shard at `path`, or none; returns the counts of each subset, and the paths written.

    pieces    gives what is left of a text without its spans; the document goes if that is nothing
    subsets   leave out the documents of all others; None: leave out none
    mask_of   gives the shard's mask; leave out the documents that it does not keep
    """
    waiting, mask = read_spans(table, shard.name), mask_of(shard)
    counts: dict[str, dict[str, int]] = {}
    with read(shard, subsets, on_error, manifest=manifest, advance=advance, ahead=ahead) as reader:

        def cut() -> Iterator[DocumentBatch]:
            for read_batch in reader:
                batch = read_batch if mask is None else read_batch.where(mask.keeps(read_batch.numbers))
                replaced: dict[int, list[str]] = {}
                for index, (number, subset) in enumerate(zip(batch.numbers.tolist(), batch.subsets, strict=True)):
                    of_subset = counts.setdefault(subset, dict.fromkeys((*COUNTS, BYTES_REMOVED), 0))
                    spans = waiting.pop(number, None)
                    if spans is None:
                        of_subset["untouched"] += 1
                        continue
                    text = batch.texts[index]
                    left = replaced[index] = pieces(text, spans)
                    of_subset["cut" if left else "dropped"] += 1
                    of_subset["pieces"] += len(left)
                    of_subset["spans"] += len(spans)
                    of_subset["characters_removed"] += len(text) - sum(map(len, left))
                    of_subset[BYTES_REMOVED] += len(text.encode()) - sum(len(piece.encode()) for piece in left)
                yield batch.with_pieces(replaced)

        files = [] if path is None else write_documents(path, cut(), lambda: inputs.check(shard))
        if path is None:
            for _ in cut():
                pass
    if waiting:
        raise PilekitError(f"{visible(shard.path)}: changed while it was read; run the same command again")
    return counts, files


def summed(
    shards: Sequence[dict[str, Any]], read_counts: Sequence[dict[str, Any]], counted: Sequence[str] = COUNTS
) -> dict[str, Any]:
    """The summary of all shards' counts, largest subsets first; PilekitError if they do not add up.

    shards        what `cut_shard` counted of each shard
    read_counts   what a pass before it read of each: `read` by subset, `skipped` and `others`
    counted       what is summed
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
