"""A few of the removals, from one end of the similarities to the other, for a person to judge the threshold by.

The range of similarities among the near-duplicates is cut into as many equal steps as pairs are wanted, and each step
gives its share, evenly spaced over the corpus: nothing is random. `removed.parquet` is gone through twice, in bounded
memory. Exact copies come only when there are no more near-duplicates.
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
    """Up to `count` removals, the least similar first and exact copies last, and of how many they were chosen.

    path      of `removed.parquet`; PilekitError if it cannot be read
    subset    of the removed documents; exact name
    """
    cells = np.zeros(_CELLS + 1, dtype=np.int64)
    exact = 0
    for kinds, _ in _kinds(path, subset, min_similarity):
        cells += np.bincount(kinds[kinds >= 0], minlength=len(cells))
        exact += int(np.count_nonzero(kinds == _EXACT))
    near = int(cells.sum())
    steps = _steps(cells, count)
    sizes = np.bincount(steps, weights=cells, minlength=count).astype(np.int64)
    wanted = {step: _evenly(share, int(sizes[step])) for step, share in enumerate(_shares(sizes, count))}
    wanted[_EXACT] = _evenly(min(exact, max(0, count - near)), exact)
    seen = dict.fromkeys(wanted, 0)
    found: list[RemovedPair] = []
    for kinds, rows in _kinds(path, subset, min_similarity, whole=True):
        step_of = np.where(kinds >= 0, steps[kinds], kinds)
        for step, places in wanted.items():
            here = np.flatnonzero(step_of == step)
            chosen = [int(here[place - seen[step]]) for place in places if 0 <= place - seen[step] < len(here)]
            found += [RemovedPair(**rows.slice(row, 1).to_pylist()[0]) for row in chosen]
            seen[step] += len(here)
    found.sort(key=lambda pair: (pair.reason == "exact", pair.similarity, pair.shard, pair.number))
    return found, near + exact


def subsets_of(path: Path) -> list[str]:
    """The subsets of the removed documents, by name."""
    found: set[str] = set()
    for rows in _batches(path, ["subset"]):
        found.update(rows["subset"].unique().cast(pa.string()).to_pylist())
    return sorted(found)


def _kinds(
    path: Path, subset: str | None, min_similarity: float, whole: bool = False
) -> Iterator[tuple[Int64, pa.RecordBatch]]:
    """Rows, and of each its thousandth of similarity; or that it is an exact copy, or not asked for."""
    names = list(RemovedPair.__dataclass_fields__) if whole else ["subset", "similarity", "reason"]
    for rows in _batches(path, names):
        similarity = rows["similarity"].to_numpy()
        kinds = (similarity * _CELLS).astype(np.int64)
        kinds[_equal(rows["reason"], "exact")] = _EXACT
        if subset is not None:
            kinds[~_equal(rows["subset"], subset)] = _NOT_WANTED
        kinds[similarity < min_similarity] = _NOT_WANTED
        yield kinds, rows


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


def _steps(cells: Int64, count: int) -> Int64:
    """The step of each cell, int64 [cells]: those that are not empty lie in 0 .. count - 1."""
    filled = np.flatnonzero(cells)
    if not len(filled):
        return np.zeros(len(cells), dtype=np.int64)
    low, high = int(filled[0]), int(filled[-1])
    return np.clip((np.arange(len(cells)) - low) * count // (high - low + 1), 0, count - 1)


def _shares(sizes: Int64, count: int) -> list[int]:
    """How many each step gives: one each in turn, until there are `count` or no more."""
    shares = np.zeros(len(sizes), dtype=np.int64)
    while (left := count - int(shares.sum())) > 0 and (shares < sizes).any():
        givers = np.flatnonzero(shares < sizes)
        # Where not all of them get a turn any more, those that do are evenly spaced.
        shares[givers[_evenly(min(left, len(givers)), len(givers))]] += 1
    return [int(share) for share in shares]


def _evenly(share: int, size: int) -> list[int]:
    """So many of the places 0 .. size - 1, evenly spaced."""
    return [(2 * number + 1) * size // (2 * share) for number in range(share)]
