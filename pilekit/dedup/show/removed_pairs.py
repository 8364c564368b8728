"""Choose some removals, from the least similar to the most similar, to judge the threshold by.

The similarities of the chosen near-duplicates are spread evenly over the range: nothing is random. Exact copies come
only when there are no more near-duplicates.
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
        facts = removed.to_table(["subset", "similarity", "reason"])
        similarity, exactly = facts["similarity"].to_numpy(), _equal(facts["reason"], "exact")
        wanted_rows = similarity >= min_similarity
        if subset is not None:
            wanted_rows &= _equal(facts["subset"], subset)
        near, exact = np.flatnonzero(wanted_rows & ~exactly), np.flatnonzero(wanted_rows & exactly)
        chosen = np.sort(_spread(similarity, near, exact, count))
        rows = removed.take(chosen, columns=list(RemovedPair.__dataclass_fields__)).to_pylist()
    found = [RemovedPair(**row) for row in rows]
    found.sort(key=lambda pair: (pair.reason == "exact", pair.similarity, pair.shard, pair.number))
    return found, len(near) + len(exact)


def _spread(similarity: npt.NDArray[np.float64], near: Int64, exact: Int64, count: int) -> Int64:
    """Up to `count` of the rows of near-duplicates, evenly over their similarities; if they are fewer, exact copies."""
    order = near[np.argsort(similarity[near], kind="stable")]
    wanted = min(count, len(order))
    # For evenly spaced similarities, the last row up to each; each row at most once, so later ones move on.
    places, turns = np.arange(wanted), np.arange(wanted)
    if wanted:
        targets = np.linspace(similarity[order[0]], similarity[order[-1]], wanted)
        places = np.maximum.accumulate(np.searchsorted(similarity[order], targets, "right") - 1 - turns) + turns
    chosen = order[np.minimum(places, len(order) - wanted + turns)]
    copies = min(len(exact), count - wanted)
    return np.append(chosen, exact[(2 * np.arange(copies) + 1) * len(exact) // (2 * max(1, copies))])


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
    equal: npt.NDArray[np.bool_] = pc.equal(column.cast(pa.string()), value).to_numpy()
    return equal
