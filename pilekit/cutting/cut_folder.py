"""`CutFolder`: the tables in a finished folder of `pilekit decontaminate` or `pilekit substrings`.

Rows are read from the Parquet file when they are asked for, so memory does not depend on the number of cuts.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset

from pilekit.artifacts.header import Header, finished_header, read_header
from pilekit.corpus import Shard
from pilekit.corpus.manifest import recorded_manifest
from pilekit.cutting.job import FOUND, PATHS
from pilekit.cutting.result import REPEATS
from pilekit.cutting.verdicts import HITS
from pilekit.dedup.show.removed_pairs import readable
from pilekit.errors import PilekitError, counted, shortened
from pilekit.shards.fingerprint import unchanged_shard

KINDS = {"decontamination": (HITS, "pilekit decontaminate"), "substrings": (REPEATS, "pilekit substrings")}
"""The kinds of folders, each with its table of cuts and its command."""

Row = dict[str, Any]


class CutFolder:
    """A finished folder of `pilekit decontaminate` or `pilekit substrings`; PilekitError for any other."""

    def __init__(self, folder: Path):
        kind = read_header(folder).kind
        if kind not in KINDS:
            commands = " or ".join(f"`{command}`" for _, command in KINDS.values())
            raise PilekitError(f'{folder}: holds a "{shortened(kind, 60)}"; name a folder that {commands} wrote')
        table, command = KINDS[kind]
        self.folder, self.kind, self.command = folder, kind, command
        self.header: Header = finished_header(folder, kind, command)
        self.table, self.manifest = folder / table, recorded_manifest(self.header.parameters)

    @property
    def paths(self) -> dict[str, str]:
        """Where each shard was, by its name."""
        return self.noted(PATHS)

    def shards(self) -> list[Shard]:
        """The shards that were searched; PilekitError if one is gone or changed."""
        return [self.shard(name, path) for name, path in self.paths.items()]

    def count(self, subset: str | None = None) -> int:
        """The number of rows of the table, of a subset alone by its exact name."""
        with readable(self.table, self.command) as table:
            return int(table.count_rows(filter=_with_values(subset=subset)))

    def subsets(self) -> list[str]:
        """The subsets with cuts, by name."""
        with readable(self.table, self.command) as table:
            names = (pc.unique(batch["subset"]).to_pylist() for batch in table.to_batches(columns=["subset"]))
            return sorted(set().union(*names))

    def rows(self, start: int, most: int, **values: Any) -> list[Row]:
        """Up to `most` rows from the `start`-th of those with these values on, in the order of the table."""

        def rows_from_start(table: pa.dataset.Dataset) -> Iterator[Row]:
            before = 0
            for batch in table.to_batches(filter=_with_values(**values), use_threads=False):
                yield from batch.slice(max(0, start - before)).to_pylist() if before + len(batch) > start else []
                before += len(batch)

        with readable(self.table, self.command) as table:
            return list(islice(rows_from_start(table), most))

    def spread(self, count: int, subset: str | None = None) -> tuple[list[Row], int]:
        """Up to `count` spans of `pilekit decontaminate`, evenly over their lengths, and the number of all spans.

        The shortest span is first. A span of several records comes with the record that shares the most of it.
        """
        with readable(self.table, self.command) as table:
            columns = table.to_table(
                ["number", "start", "words", "ngrams", "shard"], filter=_with_values(subset=subset)
            )
            number, start, words, ngrams = (column.to_numpy() for column in columns.columns[:4])
            shard = columns["shard"].combine_chunks()
            other_shard = pc.not_equal(shard[1:], shard[:-1]).to_numpy(zero_copy_only=False).astype(bool)
            other_span = other_shard | (np.diff(number) != 0) | (np.diff(start) != 0)
            # The rows of a span follow one another. Of each span, the first row with the most n-grams is taken.
            begins = np.flatnonzero(np.append(True, other_span)[: len(number)])
            most = np.maximum.reduceat(ngrams, begins) if len(begins) else ngrams
            span = np.searchsorted(begins, np.arange(len(number)), "right") - 1
            best = np.flatnonzero(ngrams == most[span])
            best = best[np.unique(span[best], return_index=True)[1]]
            by_length = best[np.argsort(words[best], kind="stable")]
            turns = np.arange(min(count, len(by_length)))
            chosen = by_length[turns * max(0, len(by_length) - 1) // max(1, len(turns) - 1)]
            rows = table.filter(_with_values(subset=subset)).take(chosen).to_pylist() if len(chosen) else []
            return rows, len(by_length)

    def shard(self, name: str, path: str) -> Shard:
        """The file at `path`, which the job read as `name`; PilekitError if it is gone or changed."""
        return unchanged_shard(self.folder, name, path, self.header.inputs[name])

    def noted(self, name: str) -> dict[str, str]:
        """The paths of files that the job noted as `name`, by their names."""
        try:
            paths: dict[str, str] = self.header.results[FOUND]["result"][name]
        except (KeyError, TypeError):
            raise PilekitError(
                f"{self.folder}: does not tell where its files were, as an earlier pilekit wrote it; remove "
                f"it and run the same `{self.command}` again"
            ) from None
        return paths


def evidence(row: Row) -> str:
    """What a row of a table proves, in a few words."""
    if "words" in row:
        verdict = row.get("verdict", "text")  # An earlier pilekit gave none.
        before = "" if verdict == "text" else f"{verdict}: "
        after = "" if row.get("cut", True) else "; not cut"
        return f"{before}{counted(row['words'], 'word')}, {counted(row['ngrams'], 'n-gram')} of the record{after}"
    return f"{counted(row['bytes'], 'byte')}"


def _with_values(**values: Any) -> pc.Expression:
    """A filter for rows with these values; None stands for any."""
    expression = pc.scalar(True)
    for name, value in values.items():
        expression = expression if value is None else expression & (pc.field(name) == value)
    return expression
