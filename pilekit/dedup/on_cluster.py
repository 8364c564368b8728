"""Exact copies, candidates and decisions on a cluster, where tasks hand files to each other.

A part of the exact copies is a range of the hash; a part of the candidates is some bands. A band is a column of all
sketches, so the nodes exchange nothing. A task takes a whole node, with the memory that the step takes locally. It
reads sketches and exact copies from shared storage, sorts on its node's own disk, and writes a file that is complete or
absent, so a resumed run reuses it. The rows equal those of one local call. Then one task reads all files and decides:
documents are decided one after the other.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from pilekit.artifacts.atomic_write import write_atomically
from pilekit.artifacts.external_sort import Table
from pilekit.dedup.match.candidates import Candidates, find_candidates
from pilekit.dedup.match.exact import find_exact
from pilekit.dedup.match.population import Flags, Population
from pilekit.dedup.output.removed_table import Decided, Decisions, decide
from pilekit.dedup.scratch_space import read_flags, write_flags
from pilekit.engine import Advance, Ray, scratch_folder
from pilekit.shards.each_shard import await_files

_Make = Callable[[Path], Population]
_COPIES = "copies-"


@dataclass(frozen=True)
class Nodes:
    """The nodes of a cluster; the steps are called in the order of the methods.

    make      makes the population on a node, given a folder on its own disk; can be pickled
    folder    for the tasks' files, on shared storage
    memory    bytes to use on each node
    lock      the lock of the output folder
    found     the tasks' files
    """

    engine: Ray
    make: _Make
    folder: Path
    memory: int
    lock: Path
    found: list[Path] = field(default_factory=list)

    def find_exact(self) -> Iterator[Table]:
        """`find_exact`, in which each node takes a range of the hash."""
        count = self._count()
        items = [((part, count), self.folder / f"{_COPIES}{part}-of-{count}.rows") for part in range(count)]
        return self._tables(items, lambda amount: None, None)

    def find_candidates(self, bands: int, copies: Flags, advance: Advance) -> Candidates:
        """`find_candidates`, in which each node takes a share of the bands."""
        groups = [group.tolist() for group in np.array_split(np.arange(bands), min(bands, self._count()))]
        items = [(group, self.folder / f"bands-{group[0]}-{group[-1]}.rows") for group in groups]
        candidates = Candidates(len(copies), scratch_folder(self.engine.scratch), 0)
        for table in self._tables(items, advance, write_flags(self.folder, copies)):
            candidates.flag(table)
        return candidates

    def decide(self, advance: Advance, **arguments: Any) -> Decided:
        """`decide`, with the copies and candidates found, as one task that takes a whole node."""
        work = functools.partial(_decide, make=self.make, scratch=self.engine.scratch, memory=self.memory, **arguments)
        made = self.engine.imap_shards(work, [self.found], ["comparing"], 1, advance, self.lock, self.memory)
        (decided,) = list(made)
        await_files([arguments["path"], decided.flags])
        return decided

    def _count(self) -> int:
        return max(1, sum(map(bool, self.engine.cpus())))

    def _tables(self, items: list[tuple[Any, Path]], advance: Advance, copies: Path | None) -> Iterator[Table]:
        """The tables of each part, which the nodes write into the files of `items`."""
        engine, scratch, files = self.engine, self.engine.scratch, [path for _, path in items]
        how: dict[str, Any] = {"memory": self.memory, "threads": engine.threads(len(items)), "copies": copies}
        work = functools.partial(_write_tables, make=self.make, scratch=scratch, **how)
        names = [path.stem for path in files]
        list(engine.imap_shards(work, items, names, len(items), advance, self.lock, self.memory))
        await_files(files)
        self.found.extend(files)
        for path in files:
            yield from _tables_in(path)


def _tables_in(path: Path) -> Iterator[Table]:
    with path.open("rb") as file:
        while file.peek(1):
            yield np.load(file)


def _write_tables(
    item: tuple[Any, Path],
    advance: Advance,
    *,
    make: _Make,
    scratch: Path | None,
    memory: int,
    threads: int,
    copies: Path | None,
) -> None:
    """Write the exact copies of a part, or the candidates of some bands if a file tells which documents are copies."""
    (part, path), own = item, scratch_folder(scratch)
    population = make(own)
    if path.exists():
        advance(2 * population.documents * len(part))
        return
    with write_atomically(path) as file, ExitStack() as held:
        if copies is None:
            tables = find_exact(population, own, memory, part)
        else:
            flags = read_flags(copies, 0, population.documents)
            found = find_candidates(population, part, flags, own, memory, jobs=threads, advance=advance)
            tables = held.enter_context(found.rows).chunks()
        for table in tables:
            np.save(file, table)


def _decide(
    files: Sequence[Path], advance: Advance, *, make: _Make, scratch: Path | None, memory: int, **arguments: Any
) -> Decided:
    own = scratch_folder(scratch)
    population = make(own)
    decisions = Decisions(population.documents, own)
    candidates = Candidates(population.documents, own, 3 * memory // 8)
    with candidates.rows:
        for path in files:
            take = decisions.add_copies if path.name.startswith(_COPIES) else candidates.add
            for table in _tables_in(path):
                take(table)
        return decide(population, decisions, candidates, own, memory, advance, **arguments)
