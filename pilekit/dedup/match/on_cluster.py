"""Match on a cluster: a task finds the rows of some bands on one node, and the driver merges the tasks' files.

A band is a column of all sketches, so the nodes exchange nothing. A task takes a whole node, with the memory that
matching takes locally. It reads sketches and exact copies from shared storage, sorts on its node's own disk, and writes
a file that is complete or absent, so a resumed run reuses it. The rows equal those of one `find_candidates` call.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from pilekit.artifacts.atomic_write import write_atomically
from pilekit.dedup.match.candidates import Candidates, find_candidates
from pilekit.dedup.match.population import Flags, Population
from pilekit.dedup.scratch_space import read_flags, write_flags
from pilekit.engine import Advance, Ray, scratch_folder
from pilekit.shards.each_shard import await_files

_Make = Callable[[Path], Population]


def find_on_cluster(
    engine: Ray, make: _Make, bands: int, copies: Flags, folder: Path, memory: int, lock: Path, advance: Advance
) -> Candidates:
    """`find_candidates`, in which each node takes a share of the bands.

    make      makes the population on a node, given a folder on its own disk; can be pickled
    folder    for the tasks' files, on shared storage
    memory    bytes to use on each node
    lock      the lock of the output folder
    """
    nodes = min(bands, max(1, sum(map(bool, engine.cpus()))))
    groups = [group.tolist() for group in np.array_split(np.arange(bands), nodes)]
    files = [folder / f"{group[0]}-{group[-1]}.rows" for group in groups]
    names, items = [f"bands {file.stem}" for file in files], list(zip(groups, files, strict=True))
    shared, own, threads = write_flags(folder, copies), engine.scratch, engine.threads(nodes)
    work = functools.partial(_match, make=make, copies=shared, scratch=own, memory=memory, threads=threads)
    list(engine.imap_shards(work, items, names, nodes, advance, lock, memory))
    await_files(files)
    candidates = Candidates(len(copies), scratch_folder(engine.scratch), 3 * memory // 8)
    for path in files:
        with path.open("rb") as file:
            while file.peek(1):
                candidates.add(np.load(file))
    return candidates


def _match(
    item: tuple[Sequence[int], Path],
    advance: Advance,
    *,
    make: _Make,
    copies: Path,
    scratch: Path | None,
    memory: int,
    threads: int,
) -> None:
    """Write tables of the bands' rows, ascending and distinct."""
    (bands, path), own = item, scratch_folder(scratch)
    population = make(own)
    if path.exists():
        advance(2 * population.documents * len(bands))
        return
    flags = read_flags(copies, 0, population.documents)
    found = find_candidates(population, bands, flags, own, memory, jobs=threads, advance=advance)
    with found.rows, write_atomically(path) as file:
        for table in found.rows.chunks():
            np.save(file, table)
