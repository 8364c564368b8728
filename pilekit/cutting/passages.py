"""The passages that occur most often: cuts with the same earliest place, counted by a sort of `repeats.parquet`."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset
import pyarrow.parquet as pq

from pilekit.artifacts.sort.external_sort import RowSort, with_first
from pilekit.artifacts.sort.scratch_files import Scratch
from pilekit.corpus import Corpus, Manifest, Shard
from pilekit.shards.index.format import find_index
from pilekit.shards.random_access.document_reader import DocumentReader

_PLACE = ["first_shard", "first_number", "first_start"]


@dataclass(frozen=True)
class FrequentPassage:
    """A passage: its count, its text at its first cut, and some of its rows in `repeats.parquet`."""

    count: int
    text: str
    rows: list[dict[str, Any]]


def frequent_passages(
    table: Path, corpus: Corpus, *, most: int, rows: int, scratch: Scratch, subset: str | None = None
) -> list[FrequentPassage]:
    """The `most` passages that occur most often, each with up to `rows` rows; `corpus` has the shards.

    subset   its exact name; only cuts in its documents count
    """
    codes, best = dict[str, int](), Counter[int]()  # best: the number of rows of each passage, by its first row
    before, of_subset = 0, pc.scalar(True) if subset is None else pc.field("subset") == subset
    with RowSort(scratch.folder, 4, scratch.memory) as sort, pq.ParquetFile(table) as file:
        for batch in file.iter_batches(1 << 14, columns=[*_PLACE, "subset"]):
            numbered = batch.append_column("row", pa.array(np.arange(before, before + len(batch))))
            before, chosen = before + len(batch), pa.table(numbered).filter(of_subset).to_pydict()
            shards = [codes.setdefault(name, len(codes)) for name in chosen["first_shard"]]
            columns = (shards, chosen["first_number"], chosen["first_start"], chosen["row"])
            sort.add(np.stack([np.asarray(column).astype(np.uint64) for column in columns]))
        for _, first in with_first(sort.chunks(), 3):
            row, counts = np.unique(first[3], return_counts=True)
            best.update(dict(zip(row.tolist(), counts.tolist(), strict=True)))
            last = int(first[3, -1])  # More of its rows may follow.
            best = Counter({**dict(_largest(best)[:most]), last: best[last]})
    largest = _largest(best)[:most]
    dataset, cuts, numbers = pyarrow.dataset.dataset(table, format="parquet"), [], defaultdict[str, set[int]](set)
    for place in dataset.take([row for row, _ in largest], columns=_PLACE).to_pylist():
        fields = [pc.field(name) == value for name, value in place.items()]
        cuts.append(dataset.head(rows, filter=fields[0] & fields[1] & fields[2] & of_subset).to_pylist())
        numbers[cuts[-1][0]["shard"]].add(cuts[-1][0]["number"])
    texts = document_texts([shard for shard in corpus.shards if shard.name in numbers], numbers, corpus.manifest)
    passages = []
    for (_, count), passage_cuts in zip(largest, cuts, strict=True):
        first = passage_cuts[0]
        text = texts[first["shard"], first["number"]][first["start"] : first["end"]]
        passages.append(FrequentPassage(count + 1, text, passage_cuts))
    return passages


def document_texts(
    shards: Iterable[Shard], numbers: Mapping[str, Collection[int]], manifest: Manifest
) -> dict[tuple[str, int], str]:
    """The texts of the documents with these numbers in each shard, by the shard's name and the number."""
    texts = {}
    for shard in shards:
        with closing(DocumentReader(shard, find_index(shard, manifest), manifest=manifest)) as reader:
            for document in reader.read(sorted(numbers[shard.name])):
                texts[shard.name, document.number] = document.text
    return texts


def _largest(counts: Counter[int]) -> list[tuple[int, int]]:
    return sorted(counts.items(), key=lambda item: (-item[1], item[0]))
