"""The documents that `seen` is asked for: those of a file or a list, those that hold a text, and their copies."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Unpack

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset
import pyarrow.parquet as pq

from pilekit.artifacts.checked import reason_of_damage
from pilekit.corpus import Corpus
from pilekit.dedup.show.removed_pairs import removals
from pilekit.errors import PilekitError, shortened
from pilekit.pipeline.find_text import Counts, find_text
from pilekit.shards.work import Work

Place = tuple[str, int]
"""A document: shard and number."""


class _Line(msgspec.Struct):
    shard: str
    number: int


class Copy(msgspec.Struct, frozen=True):
    """A copy of an asked document, by a finished dedup.

    similarity   of the removed document to the kept one
    reason       "exact" or "near"
    """

    of: Place
    similarity: float
    reason: str


def listed_documents(source: str | Path | Iterable[Place]) -> list[Place]:
    """The documents of a list, or of a file: Parquet or JSON lines with `shard` and `number`, or lines of `grep`.

    PilekitError names the line that has no document.
    """
    if not isinstance(source, str | Path):
        return [(str(shard), int(number)) for shard, number in source]
    try:
        if str(source).endswith(".parquet"):
            columns = pq.read_table(source, columns=["shard", "number"])
            return list(zip(columns["shard"].to_pylist(), columns["number"].to_pylist(), strict=True))
        lines = Path(source).read_text(encoding="utf-8").splitlines()
    except (OSError, ValueError, pa.ArrowException, LookupError) as error:
        raise PilekitError(f"{source}: is no list of documents ({reason_of_damage(error)})") from error
    return [_place(line, f"{source}, line {number:,}") for number, line in enumerate(lines, 1) if line.strip()]


def _place(line: str, where: str) -> Place:
    try:
        if line.startswith("{"):
            document = msgspec.json.decode(line, type=_Line)
            return document.shard, document.number
    except msgspec.DecodeError:
        pass
    else:
        if match := re.match(r"(.+?)\s+([0-9]{1,18})(?:\s|$)", line):
            return match[1], int(match[2])
    raise PilekitError(
        f'{where}: names no document: {shortened(line, 60)}; write SHARD NUMBER, or {{"shard": "00.jsonl.zst", '
        '"number": 17}'
    )


def traced_documents(path: str | Path) -> list[Place]:
    """The documents that a file of `pilekit trace` names. PilekitError if it is none."""
    try:
        passages = pq.read_table(path, columns=["passages"])["passages"]
        places = pc.list_flatten(pc.struct_field(pc.list_flatten(passages), "places"))
        shards, numbers = pc.struct_field(places, "shard").to_pylist(), pc.struct_field(places, "number").to_pylist()
    except (OSError, ValueError, TypeError, pa.ArrowException, LookupError) as error:
        raise PilekitError(f"{path}: is no result of pilekit trace ({reason_of_damage(error)})") from error
    return list(dict.fromkeys(zip(shards, numbers, strict=True)))


def documents_with(text: str, corpus: Corpus, **work: Unpack[Work]) -> tuple[list[Place], dict[str, int]]:
    """The documents of a corpus that hold a text, character for character, and what was scanned."""
    if not text:
        raise PilekitError("the text is empty, and every document holds that; name some text")
    counts = Counts()
    with closing(find_text(corpus, re.escape(text), counts, **work)) as documents:
        places = [(document.shard, document.number) for document in documents]
    stored = sum(shard.size or 0 for shard in corpus.shards)
    scanned = {"shards": len(corpus.shards), "documents": counts.read.total(), "stored_bytes": stored}
    return places, {**scanned, "skipped": counts.skipped.count}


def copies_of(documents: Sequence[Place], dedup: str | Path) -> dict[Place, Copy]:
    """The other documents of the asked documents' clusters in a finished dedup of the run's data.

    A cluster is a kept document and those that were removed because they resemble it.
    """
    asked = dict.fromkeys(documents)
    with removals(Path(dedup) / "removed.parquet") as removed:
        kept_of = {place: kept for place, kept, _ in _removed(removed, "number", asked)}
        asked_of = {kept_of.get(place, place): place for place in reversed(asked)}
        copies: dict[Place, Copy] = {}
        for place, kept, (similarity, reason) in _removed(removed, "kept_number", asked_of):
            for other in (place, kept) if place in asked else (place,):
                if other not in asked:
                    copies.setdefault(other, Copy(asked_of[kept], similarity, reason))
    return copies


def _removed(
    removed: pa.dataset.Dataset, column: str, chosen: Mapping[Place, object]
) -> Iterator[tuple[Place, Place, tuple[float, str]]]:
    """(removed document, kept one, similarity and reason) of the rows whose document of this column is chosen."""
    shard = column.replace("number", "shard")
    numbers = pa.array({number for _, number in chosen}, pa.int64())
    for batch in removed.to_batches(filter=pc.field(column).isin(numbers) & (pc.field("kept_corpus") != "against")):
        for row in batch.to_pylist():
            if (row[shard], row[column]) in chosen:
                kept = row["kept_shard"], row["kept_number"]
                yield (row["shard"], row["number"]), kept, (row["similarity"], row["reason"])
