"""Choose some removals, from the least similar to the most similar, for a person to judge the threshold by.

The range of similarities among the near-duplicates is cut into as many equal steps as pairs are wanted. Each step gives
its share, evenly spaced over the corpus: nothing is random. Exact copies come only when there are no more
near-duplicates.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from pilekit.errors import PilekitError, visible

_CELLS = 1000
_EXACT = -2
_NOT_WANTED = -1

Int64 = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class RemovedPair:
    """A row of `removed.parquet`: a document that was removed, and the kept one that it resembles."""

    shard: str
    number: int
    subset: str
    kept_shard: str
    kept_number: int
    kept_subset: str
    similarity: float
    reason: str
    kept_corpus: str


def spread_pairs(
    path: Path, count: int, *, subset: str | None = None, min_similarity: float = 0.0
) -> tuple[list[RemovedPair], int]:
    """Up to `count` removals, the least similar first and exact copies last, and the number they were chosen from.

    path      of `removed.parquet`; PilekitError if it cannot be read
    subset    of the removed documents; exact name
    """
    cells = _cells(path, subset, min_similarity)
    sizes = np.bincount(cells[cells >= 0], minlength=_CELLS + 1)
    steps = _steps(sizes, count)
    near, exact = np.flatnonzero(cells >= 0), np.flatnonzero(cells == _EXACT)
    rows = [near[steps[cells[near]] == step] for step in range(count)]
    shares = _shares(np.array([len(some) for some in rows]), count)
    chosen = [some[_evenly(share, len(some))] for some, share in zip(rows, shares, strict=True)]
    chosen.append(exact[_evenly(min(len(exact), max(0, count - len(near))), len(exact))])
    found = _rows(path, np.sort(np.concatenate(chosen)))
    found.sort(key=lambda pair: (pair.reason == "exact", pair.similarity, pair.shard, pair.number))
    return found, len(near) + len(exact)


def subsets_of(path: Path) -> list[str]:
    """The subsets of the removed documents, by name."""
    found: set[str] = set()
    for rows in _batches(path, ["subset"]):
        found.update(rows["subset"].unique().cast(pa.string()).to_pylist())
    return sorted(found)


def _cells(path: Path, subset: str | None, min_similarity: float) -> npt.NDArray[np.int16]:
    """For each row its thousandth of similarity, or `_EXACT`, or `_NOT_WANTED`."""
    found = [np.empty(0, dtype=np.int16)]
    for rows in _batches(path, ["subset", "similarity", "reason"]):
        similarity = rows["similarity"].to_numpy()
        cells = (similarity * _CELLS).astype(np.int16)
        cells[_equal(rows["reason"], "exact")] = _EXACT
        if subset is not None:
            cells[~_equal(rows["subset"], subset)] = _NOT_WANTED
        cells[similarity < min_similarity] = _NOT_WANTED
        found.append(cells)
    return np.concatenate(found)


def _rows(path: Path, numbers: Int64) -> list[RemovedPair]:
    """The rows with these ascending numbers."""
    found: list[RemovedPair] = []
    first = 0
    for rows in _batches(path, list(RemovedPair.__dataclass_fields__)):
        here = numbers[(numbers >= first) & (numbers < first + len(rows))] - first
        found += [RemovedPair(**row) for row in rows.take(pa.array(here)).to_pylist()]
        first += len(rows)
    return found


def _batches(path: Path, columns: list[str]) -> Iterator[pa.RecordBatch]:
    try:
        with pq.ParquetFile(path) as file:
            for name in set(columns) - set(file.schema_arrow.names):
                raise LookupError(f"it has no column {name}")
            yield from file.iter_batches(batch_size=1 << 16, columns=columns)
    except FileNotFoundError:
        raise PilekitError(f"{visible(str(path))}: is not there; run `pilekit dedup` again") from None
    except (pa.ArrowException, OSError, LookupError, TypeError) as error:
        reason = visible(str(error).split("\n", 1)[0], 200)
        raise PilekitError(f"{visible(str(path))}: cannot be read ({reason}); run `pilekit dedup` again") from error


def _equal(column: Any, value: str) -> npt.NDArray[np.bool_]:
    equal: npt.NDArray[np.bool_] = pc.equal(column.cast(pa.string()), value).to_numpy(zero_copy_only=False)
    return equal


def _steps(sizes: Int64, count: int) -> Int64:
    """The step of each cell, 0 .. count - 1 from the first cell that is not empty to the last; int64 [cells]."""
    filled = np.flatnonzero(sizes)
    if not len(filled):
        return np.zeros(len(sizes), dtype=np.int64)
    low, high = int(filled[0]), int(filled[-1])
    return np.clip((np.arange(len(sizes)) - low) * count // (high - low + 1), 0, count - 1)


def _shares(sizes: Int64, count: int) -> list[int]:
    """How many rows each step gives: one each in turn, until there are `count` or no more."""
    shares = np.zeros(len(sizes), dtype=np.int64)
    while (left := count - int(shares.sum())) > 0 and (shares < sizes).any():
        givers = np.flatnonzero(shares < sizes)
        # In the last turn the steps that give are evenly spaced.
        shares[givers[_evenly(min(left, len(givers)), len(givers))]] += 1
    return [int(share) for share in shares]


def _evenly(share: int, size: int) -> Int64:
    """This many of the places 0 .. size - 1, evenly spaced."""
    return (2 * np.arange(share) + 1) * size // (2 * max(1, share))
