"""Choose some removals, from the least similar to the most similar, to judge the threshold by, and read their texts.

The similarities of the chosen near-duplicates are spread evenly over the range: nothing is random. Exact copies come
only when there are no more near-duplicates.

The table is read in batches, twice: first for counts and the range, then for the rows. Memory holds a batch, and as
many rows for each place in the range as are chosen.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset

from pilekit.corpus.manifest import recorded_manifest
from pilekit.dedup.output.removed_format import REMOVALS, RemovalsHeader
from pilekit.dedup.previous_runs import EarlierRun, runs_before
from pilekit.dedup.sketch.shingles import Int64, jaccard, shingle_set
from pilekit.display.progress import Report
from pilekit.errors import PilekitError, shortened
from pilekit.shards.index.format import find_index
from pilekit.shards.random_access.document_reader import DocumentReader

Float64 = npt.NDArray[np.float64]

MOST_HELD = 100_000_000
"""Characters of all texts in memory. Each text gets the same share, so that each shard is read once."""

_Key = tuple[int, str, int]
"""A document: the run's place, 0 for the given one, the shard's name, and the number."""


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

    path      the path of `removed.parquet`; PilekitError if it is damaged
    subset    the subset of the removed documents; exact name
    """
    columns = read_columns(*RemovedPair.__dataclass_fields__)
    is_chosen = columns["similarity"] >= min_similarity
    if subset is not None:
        is_chosen &= columns["subset"] == subset
    near, exact = (is_chosen & (columns["reason"] != "exact"), is_chosen & (columns["reason"] == "exact"))
    with removals(path) as removed:
        number, lowest, highest = 0, np.inf, -np.inf
        for batch in removed.to_batches(columns=["similarity"], filter=near):
            similarity = batch["similarity"].to_numpy()
            number += len(batch)
            lowest, highest = similarity.min(initial=lowest), similarity.max(initial=highest)
        targets = np.linspace(lowest, highest, min(count, number)) if number else np.zeros(0)
        nearest = removed.head(0, columns=columns)
        for batch in removed.to_batches(columns=columns, filter=near):
            nearest = pa.concat_tables([nearest, pa.table(batch)])
            nearest = nearest.take(_outermost(nearest["similarity"].to_numpy(), targets))
        exacts = removed.count_rows(filter=exact)
        copies, passed = min(exacts, count - len(targets)), 0
        places = (2 * np.arange(copies) + 1) * exacts // (2 * max(1, copies))
        chosen = [nearest.take(_spread(nearest["similarity"].to_numpy(), targets))]
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
    with removals(path) as removed:
        return sorted(pc.unique(removed.to_table(read_columns("subset"))["subset"]).to_pylist())


@contextmanager
def removals(path: Path) -> Iterator[pa.dataset.Dataset]:
    """The rows of the `removed.parquet` at `path`; PilekitError if it is damaged."""
    with REMOVALS.open_table(path, RemovalsHeader):
        yield pa.dataset.dataset(path, format="parquet")


@contextmanager
def readable(path: Path, remedy: str) -> Iterator[pa.dataset.Dataset]:
    """The table at `path`; PilekitError if it cannot be read, which says to run `remedy`."""
    try:
        yield pa.dataset.dataset(path, format="parquet")
    except FileNotFoundError:
        raise PilekitError(f"{path}: is not there; run {remedy}") from None
    except (pa.ArrowException, OSError, LookupError, TypeError, ValueError) as error:
        reason = shortened(str(error).split("\n", 1)[0], 200)
        raise PilekitError(f"{path}: cannot be read ({reason}); run {remedy}") from error


def pair_texts(
    pairs: Sequence[RemovedPair],
    run: EarlierRun,
    advance: Report = lambda *_: None,
    *,
    most_held: int = MOST_HELD,
) -> list[tuple[str, str]]:
    """(kept, removed) texts of each pair; long texts are cut to their beginning."""
    runs = [run, *(runs_before(run) if any(pair.kept_corpus == "against" for pair in pairs) else [])]
    keys = [[(0, pair.shard, pair.number), *_keepers(runs, pair)] for pair in pairs]
    all_keys = sorted({key for shard_keys in keys for key in shard_keys})
    shards = {(place, shard.name): shard for place, earlier_run in enumerate(runs) for shard in earlier_run.shards}
    total = sum(shards[key].size or 0 for key in {key[:2] for key in all_keys})
    texts: dict[_Key, str] = {}
    for (place, name), shard_keys in groupby(all_keys, itemgetter(0, 1)):
        manifest, shard = recorded_manifest(runs[place].parameters), shards[place, name]
        index, report = find_index(shard, manifest), lambda amount: advance("reading", amount, total)
        with closing(DocumentReader(shard, index, manifest=manifest, advance=report)) as reader:
            for document in reader.read([number for _, _, number in shard_keys]):
                texts[place, name, document.number] = document.text[: most_held // len(all_keys)]
    kept_and_removed = []
    for pair, (removed, *keepers) in zip(pairs, keys, strict=True):
        fitting = _most_fitting(
            [texts[key] for key in keepers], texts[removed], pair.similarity, run.parameters["ngram"]
        )
        kept_and_removed.append((fitting, texts[removed]))
    return kept_and_removed


def _keepers(runs: list[EarlierRun], pair: RemovedPair) -> list[_Key]:
    """The documents that may be the kept one: several earlier runs may have kept one of this shard and number."""
    key = (pair.kept_shard, pair.kept_number)
    if pair.kept_corpus != "against":
        return [(0, *key)]
    keepers = []
    for place, run in enumerate(runs[1:], 1):
        for shard, mask in zip(run.shards, run.masks(), strict=True):
            if shard.name == pair.kept_shard and pair.kept_number < mask.header.lines:
                keepers += [(place, *key)] * int(mask.keeps(np.array([pair.kept_number]))[0])
    return keepers


def _most_fitting(keepers: list[str], removed: str, similarity: float, ngram: int) -> str:
    """The kept text whose similarity to the removed one is `similarity`."""
    if len(keepers) == 1:
        return keepers[0]
    sets = [shingle_set(np.frombuffer(text.encode(), dtype=np.uint8), ngram) for text in (removed, *keepers)]
    distances = [abs(jaccard(keeper, sets[0]) - similarity) for keeper in sets[1:]]
    return keepers[distances.index(min(distances))]
