"""Choose some removals, from the least similar to the most similar, to judge the threshold by.

The similarities of the chosen near-duplicates are spread evenly over the range: nothing is random. Exact copies come
only when there are no more near-duplicates.

The table is read in batches, twice: first for counts and the range, then for the rows. Memory holds a batch, and as
many rows for each place in the range as are chosen.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset

from pilekit.errors import PilekitError, visible

Int64 = npt.NDArray[np.int64]
Float64 = npt.NDArray[np.float64]


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

    path      the path of `removed.parquet`; PilekitError if it cannot be read
    subset    the subset of the removed documents; exact name
    """
    with readable(path) as removed:
        near, exact, lowest, highest = 0, 0, np.inf, -np.inf
        for _, similarity, is_near, is_exact in _batches(removed, subset, min_similarity):
            near, exact = near + int(is_near.sum()), exact + int(is_exact.sum())
            lowest = min(lowest, similarity[is_near].min(initial=np.inf))
            highest = max(highest, similarity[is_near].max(initial=-np.inf))
        wanted = min(count, near)
        targets, held = np.linspace(lowest, highest, wanted) if wanted else np.zeros(0), np.zeros((2, 0))
        copies = min(exact, count - wanted)
        places = (2 * np.arange(copies) + 1) * exact // (2 * max(1, copies))
        chosen, passed = [], 0
        for first, similarity, is_near, is_exact in _batches(removed, subset, min_similarity):
            rows = np.stack([similarity, first + np.arange(len(similarity))])
            held = _outermost(np.concatenate([held, rows[:, is_near]], axis=1), targets)
            here = np.flatnonzero(is_exact)
            chosen.append(first + here[places[(places >= passed) & (places < passed + len(here))] - passed])
            passed += len(here)
        chosen.append(held[1, _spread(held[0], targets)].astype(np.int64))
        order = np.sort(np.concatenate(chosen))
        rows_of = removed.take(order, columns=list(RemovedPair.__dataclass_fields__)).to_pylist()
    found = [RemovedPair(**row) for row in rows_of]
    found.sort(key=lambda pair: (pair.reason == "exact", pair.similarity, pair.shard, pair.number))
    return found, near + exact


def _batches(
    removed: pa.dataset.Dataset, subset: str | None, least: float
) -> Iterator[tuple[int, Float64, npt.NDArray[np.bool_], npt.NDArray[np.bool_]]]:
    """For each batch: its first row, the similarities, and which rows are wanted near-duplicates and exact copies."""
    first = 0
    for batch in removed.to_batches(columns=["subset", "similarity", "reason"]):
        similarity, exactly = batch["similarity"].to_numpy(), _equal(batch["reason"], "exact")
        wanted = similarity >= least
        if subset is not None:
            wanted &= _equal(batch["subset"], subset)
        yield first, similarity, wanted & ~exactly, wanted & exactly
        first += len(batch)


def _outermost(rows: Float64, targets: Float64) -> Float64:
    """The rows, [similarity or row, rows], by similarity; those that `_spread` may choose, whatever rows follow.

    Between two targets these are the first and the last rows, as many as there are targets.
    """
    rows = rows[:, np.argsort(rows[0], kind="stable")]
    between = np.searchsorted(targets, rows[0])
    begins, ends = np.searchsorted(between, between), np.searchsorted(between, between, "right")
    places = np.arange(len(between))
    return rows[:, (places - begins < len(targets)) | (ends - places <= len(targets))]


def _spread(similarity: Float64, targets: Float64) -> Int64:
    """For each target the last place up to it in the sorted similarities; each at most once, so later ones move on."""
    turns = np.arange(len(targets))
    places = np.maximum.accumulate(np.searchsorted(similarity, targets, "right") - 1 - turns) + turns
    return np.minimum(places, len(similarity) - len(targets) + turns)


def subsets_of(path: Path) -> list[str]:
    """The subsets of the removed documents, by name."""
    with readable(path) as removed:
        return sorted(pc.unique(removed.to_table(["subset"])["subset"].cast(pa.string())).to_pylist())


@contextmanager
def readable(path: Path) -> Iterator[pa.dataset.Dataset]:
    """The table at `path`; PilekitError if it cannot be read."""
    try:
        yield pa.dataset.dataset(path, format="parquet")
    except FileNotFoundError:
        raise PilekitError(f"{visible(str(path))}: is not there; run `pilekit dedup` again") from None
    except (pa.ArrowException, OSError, LookupError, TypeError) as error:
        reason = visible(str(error).split("\n", 1)[0], 200)
        raise PilekitError(f"{visible(str(path))}: cannot be read ({reason}); run `pilekit dedup` again") from error


def _equal(column: Any, value: str) -> npt.NDArray[np.bool_]:
    equal: npt.NDArray[np.bool_] = pc.equal(column.cast(pa.string()), value).to_numpy(zero_copy_only=False)
    return equal
