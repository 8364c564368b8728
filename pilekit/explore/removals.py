"""What `pilekit dedup` removed: pairs to judge the threshold by, and the duplicates of a document.

A document's cluster is the kept document and all documents that were removed because they resemble it. The browsed
corpus and the run may name a shard differently, so a shard of both is known by its path.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from pilekit.corpus import Corpus
from pilekit.corpus.manifest import recorded_manifest
from pilekit.corpus.shard import is_url
from pilekit.dedup.previous_runs import finished_run
from pilekit.dedup.result import REMOVED
from pilekit.dedup.show.removed_pairs import RemovedPair, pair_texts, read_columns, removals, spread_pairs, subsets_of
from pilekit.errors import PilekitError, visible
from pilekit.explore.comparison import compared
from pilekit.shards.index.build import index_of

MOST_LISTED = 50
"""Pairs, and members of a cluster, in a list."""


class Removals:
    """A finished folder of `pilekit dedup`; its shards get an index if they have none."""

    def __init__(self, folder: Path, corpus: Corpus | None):
        self._run = finished_run(folder)
        manifest = recorded_manifest(self._run.parameters)
        indexes = [index_of(shard, manifest=manifest, on_error="skip") for shard in self._run.shards]
        self.written = [index.path for index in indexes if index.built]
        self._table = folder / REMOVED
        self._browsed = browsed_names(corpus, {shard.name: shard.path for shard in self._run.shards})
        self._spread = functools.lru_cache(maxsize=16)(spread_pairs)

    def subsets(self) -> list[str]:
        """The subsets of the removed documents, by name."""
        return subsets_of(self._table)

    def pairs(self, subset: str | None) -> dict[str, Any]:
        """Removed documents, evenly over the similarities, the least similar first."""
        pairs, total = self._spread(self._table, MOST_LISTED, subset=subset)
        return {"pairs": [self._shown(pair) for pair in pairs], "of": total}

    def pair(self, shard: str, number: int) -> dict[str, Any]:
        """Compare a removed document with the kept one; `shard` is its name in the run."""
        pairs, _ = self._rows("number", number, shard=shard)
        if not pairs:
            raise PilekitError(f"{shard} {number}: was not removed")
        return {**self._shown(pairs[0]), **compared(*pair_texts(pairs, self._run)[0])}

    def cluster_of(self, shard: str, number: int) -> dict[str, Any] | None:
        """The cluster of a document of the browsed corpus; None for a shard that was not deduplicated.

        removed   the document's own row; None if it was kept
        cluster   the first rows of its kept document
        of        the number of these rows
        """
        names = [name for name, browsed in self._browsed.items() if browsed == shard]
        if not names:
            return None
        rows, _ = self._rows("number", number, shard=names[0])
        removed = rows[0] if rows else None
        kept_shard, kept_number = (removed.kept_shard, removed.kept_number) if removed else (names[0], number)
        is_earlier = removed is not None and removed.kept_corpus == "against"
        cluster, total = self._rows("kept_number", kept_number, is_earlier, kept_shard=kept_shard)
        return {
            "removed": self._shown(removed) if removed else None,
            "cluster": [self._shown(pair) for pair in cluster],
            "of": total,
        }

    def _rows(
        self, column: str, number: int, earlier: bool | None = None, **names: str
    ) -> tuple[list[RemovedPair], int]:
        """The most similar rows with this number in a column and these names in others, and how many rows have them.

        Few groups of rows have the number, and only these are read whole.
        """
        fields = list(RemovedPair.__dataclass_fields__)
        condition = pc.scalar(True)
        for name, value in names.items():
            condition &= pc.field(name) == value
        if earlier is not None:
            condition &= (pc.field("kept_corpus") == "against") == earlier
        with removals(self._table) as table, pq.ParquetFile(self._table) as file:
            matching = [table.head(0, columns=read_columns(*fields))]
            for group in range(file.num_row_groups):
                places = np.flatnonzero(file.read_row_group(group, [column])[column].to_numpy() == number)
                if len(places):
                    rows = file.read_row_group(group, fields).take(places)
                    matching.append(rows.cast(matching[0].schema).filter(condition))
        rows = pa.concat_tables(matching)
        order = [("similarity", "descending"), ("shard", "ascending"), ("number", "ascending")]
        return [RemovedPair(**row) for row in rows.sort_by(order).slice(0, MOST_LISTED).to_pylist()], len(rows)

    def _shown(self, pair: RemovedPair) -> dict[str, Any]:
        """A row for the page: names to show, `key` to ask for the pair, and the browsed shards of both documents."""
        shown = {name: visible(value, 100) if isinstance(value, str) else value for name, value in asdict(pair).items()}
        here = None if pair.kept_corpus == "against" else self._browsed.get(pair.kept_shard)
        return {**shown, "key": pair.shard, "here": self._browsed.get(pair.shard), "kept_here": here}


def browsed_names(corpus: Corpus | None, paths: Mapping[str, str]) -> dict[str, str]:
    """The names in the browsed corpus, by the run's names, of the shards that are in both.

    paths   the path from which the run read each shard
    """

    def real_path(path: str) -> str:
        return path if is_url(path) else os.path.realpath(path)

    browsed = {} if corpus is None else {real_path(shard.path): shard.name for shard in corpus.shards}
    return {name: browsed[real] for name, path in paths.items() if (real := real_path(path)) in browsed}
