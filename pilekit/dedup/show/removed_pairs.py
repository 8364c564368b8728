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


def read_columns(*names: str) -> dict[str, Any]:
    """These columns, names as strings: a column of names has a dictionary for each batch, which groups do not allow."""
    numbers = ("number", "kept_number", "similarity")
    return {name: pc.field(name) if name in numbers else pc.field(name).cast(pa.string()) for name in names}


def spread_pairs(
    path: Path, count: int, *, subset: str | None = None, min_similarity: float = 0.0
) -> tuple[list[RemovedPair], int]:
    """Up to `count` removals, the least similar first and exact copies last, and the number they were chosen from.

    path      the path of `removed.parquet`; PilekitError if it cannot be read
    subset    the subset of the removed documents; exact name
    """
    columns = read_columns(*RemovedPair.__dataclass_fields__)
    wanted = columns["similarity"] >= min_similarity
    if subset is not None:
        wanted &= columns["subset"] == subset
    near, exact = (wanted & (columns["reason"] != "exact"), wanted & (columns["reason"] == "exact"))
    with readable(path) as removed:
        number, lowest, highest = 0, np.inf, -np.inf
        for batch in removed.to_batches(columns=["similarity"], filter=near):
            similarity = batch["similarity"].to_numpy()
            number += len(batch)
            lowest, highest = similarity.min(initial=lowest), similarity.max(initial=highest)
        targets = np.linspace(lowest, highest, min(count, number)) if number else np.zeros(0)
        held = removed.head(0, columns=columns)
        for batch in removed.to_batches(columns=columns, filter=near):
            held = pa.concat_tables([held, pa.table(batch)])
            held = held.take(_outermost(held["similarity"].to_numpy(), targets))
        exacts = removed.count_rows(filter=exact)
        copies, passed = min(exacts, count - len(targets)), 0
        places = (2 * np.arange(copies) + 1) * exacts // (2 * max(1, copies))
        chosen = [held.take(_spread(held["similarity"].to_numpy(), targets))]
        for batch in removed.to_batches(columns=columns, filter=exact):
            here = places[(places >= passed) & (places < passed + len(batch))] - passed
            chosen.append(pa.table(batch).take(here))
            passed += len(batch)
    return [RemovedPair(**row) for table in chosen for row in table.to_pylist()], number + exacts


def _outermost(similarity: Float64, targets: Float64) -> Int64:
    """The places of the rows by similarity that `_spread` may choose, whatever rows follow.

    Between two targets these are the first and the last rows, as many as there are targets.
    """
    order = np.argsort(similarity, kind="stable")
    between = np.searchsorted(targets, similarity[order])
    begins, ends = np.searchsorted(between, between), np.searchsorted(between, between, "right")
    places = np.arange(len(between))
    return order[(places - begins < len(targets)) | (ends - places <= len(targets))]


def _spread(similarity: Float64, targets: Float64) -> Int64:
    """For each target, the last sorted similarity up to it; each is taken once, so a later target takes the next."""
    turns = np.arange(len(targets))
    places = np.maximum.accumulate(np.searchsorted(similarity, targets, "right") - 1 - turns) + turns
    return np.minimum(places, len(similarity) - len(targets) + turns)


def subsets_of(path: Path) -> list[str]:
    """The subsets of the removed documents, by name."""
    with readable(path) as removed:
        return sorted(pc.unique(removed.to_table(read_columns("subset"))["subset"]).to_pylist())


@contextmanager
def readable(path: Path, remedy: str = "`pilekit dedup` again") -> Iterator[pa.dataset.Dataset]:
    """The table at `path`; PilekitError if it cannot be read, which says to run `remedy`."""
    try:
        yield pa.dataset.dataset(path, format="parquet")
    except FileNotFoundError:
        raise PilekitError(f"{visible(path)}: is not there; run {remedy}") from None
    except (pa.ArrowException, OSError, LookupError, TypeError) as error:
        reason = visible(str(error).split("\n", 1)[0], 200)
        raise PilekitError(f"{visible(path)}: cannot be read ({reason}); run {remedy}") from error
