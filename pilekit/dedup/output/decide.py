"""Compare the candidates, and write the removed documents: as a proof for each, and as a flag for each id.

Each decision depends on the decisions before it, so this step runs in one process.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

from pilekit.dedup.compare.resolve import Counts, resolve
from pilekit.dedup.compare.shingle_store import ShingleStore
from pilekit.dedup.match.candidates import Candidates
from pilekit.dedup.match.population import Population
from pilekit.dedup.output.removed_table import Decisions, RemovedCounts, write_removed
from pilekit.engine import Advance


class Decided(NamedTuple):
    """The counts of the removed documents and of the comparison, and the file of flags, beside the shingle sets."""

    removed: RemovedCounts
    compared: Counts
    flags: Path


def decide(
    population: Population,
    decisions: Decisions,
    candidates: Candidates,
    folder: Path,
    memory: int,
    advance: Advance,
    *,
    sets: Path,
    threshold: float,
    path: Path,
    **about: Any,
) -> Decided:
    """Decide all candidates; `decisions` has the exact copies.

    folder   for files without names
    memory   bytes, of which a quarter maps shingle sets
    sets     the folder of the shingle sets
    path     of `removed.parquet`; `about`: further arguments of `write_removed`
    """
    store = ShingleStore(sets, population.base)
    compared = resolve(candidates, store, threshold, folder, memory // 4, decisions.add_near, advance=advance)
    return Decided(write_removed(path, population, decisions, **about), compared, decisions.write(sets))
