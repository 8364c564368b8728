"""Choose some removals, from the least similar to the most similar, for a person to judge the threshold by.

The similarities of the chosen near-duplicates are spread evenly over the range: nothing is random. Exact copies come
only when there are no more near-duplicates.
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

_EXACT, _NOT_WANTED = 2.0, 3.0

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
    similarity = _similarities(path, subset, min_similarity)
    near, exact = np.flatnonzero(similarity <= 1), np.flatnonzero(similarity == _EXACT)
    order = near[np.argsort(similarity[near], kind="stable")]
    wanted = min(count, len(order))
    # The last rows up to evenly spaced similarities; each row at most once, so later ones move on.
    places, turns = np.arange(wanted), np.arange(wanted)
    if wanted:
        targets = np.linspace(similarity[order[0]], similarity[order[-1]], wanted)
        places = np.maximum.accumulate(np.searchsorted(similarity[order], targets, "right") - 1 - turns) + turns
    chosen = order[np.minimum(places, len(order) - wanted + turns)]
    copies = min(len(exact), count - wanted)
    chosen = np.append(chosen, exact[(2 * np.arange(copies) + 1) * len(exact) // (2 * max(1, copies))])
    found = _rows(path, np.sort(chosen))
    found.sort(key=lambda pair: (pair.reason == "exact", pair.similarity, pair.shard, pair.number))
    return found, len(near) + len(exact)


def subsets_of(path: Path) -> list[str]:
    """The subsets of the removed documents, by name."""
    found: set[str] = set()
    for rows in _batches(path, ["subset"]):
        found.update(rows["subset"].unique().cast(pa.string()).to_pylist())
    return sorted(found)


def _similarities(path: Path, subset: str | None, least: float) -> npt.NDArray[np.float64]:
    """The similarity in each row; `_EXACT` for an exact copy, `_NOT_WANTED` for a row of another choice."""
    found = [np.empty(0)]
    for rows in _batches(path, ["subset", "similarity", "reason"]):
        given = rows["similarity"].to_numpy()
        similarity = np.where(_equal(rows["reason"], "exact"), _EXACT, given)
        similarity[given < least] = _NOT_WANTED
        if subset is not None:
            similarity[~_equal(rows["subset"], subset)] = _NOT_WANTED
        found.append(similarity)
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
