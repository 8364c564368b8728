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
from pilekit.artifacts.sort.external_sort import Table
from pilekit.artifacts.sort.scratch_files import Scratch, read_flags, write_flags
from pilekit.dedup.document_table import DocumentTable, Flags
from pilekit.dedup.matching import Candidates, find_candidates, find_exact
from pilekit.dedup.output.removed_table import DecisionResult, Decisions
from pilekit.shards.corpus_job import Share, await_files
from pilekit.shards.folder_job import FolderJob
from pilekit.workers import Advance, Ray, imap_shards, scratch_folder

_Make = Callable[[Path], DocumentTable]
_Decide = Callable[[DocumentTable, Decisions, Candidates, Scratch, Advance], DecisionResult]
_COPIES = "copies-"


@dataclass(frozen=True)
class ClusterSteps:
    """The steps on the nodes of a cluster, called in the order of the methods.

    make      makes the document table on a node, given a folder on its own disk; can be pickled
    folder    holds the tasks' files, on shared storage
    cluster   is that of the job
    files     lists the tasks' files so far
    """

    job: FolderJob
    make: _Make
    folder: Path
    cluster: Ray
    files: list[Path] = field(default_factory=list)

    def find_exact(self) -> Iterator[Table]:
        """`find_exact`, in which each node takes a range of the hash."""
        count = self._count()
        items = [((part, count), self.folder / f"{_COPIES}{part}-of-{count}.rows") for part in range(count)]
        return self._tables(items)

    def find_candidates(self, bands: int, copies: Flags, advance: Advance) -> Candidates:
        """`find_candidates`, in which each node takes a share of the bands."""
        groups = [group.tolist() for group in np.array_split(np.arange(bands), min(bands, self._count()))]
        items = [(group, self.folder / f"bands-{group[0]}-{group[-1]}.rows") for group in groups]
        candidates = Candidates(len(copies), scratch_folder(self.cluster.scratch), 0)
        for table in self._tables(items, advance, write_flags(self.folder, copies)):
            candidates.flag(table)
        return candidates

    def decide(self, decide: _Decide, path: Path, advance: Advance) -> DecisionResult:
        """`decide`, which writes `path`, with the copies and candidates found."""
        work = functools.partial(_decide, decide=decide)
        decided: DecisionResult = self._results(work, [self.files], ["comparing"], advance)[0]
        await_files([path, decided.flags])
        return decided

    def _count(self) -> int:
        return max(1, sum(map(bool, self.cluster.cpus())))

    def _tables(
        self, items: list[tuple[Any, Path]], advance: Advance | None = None, copies: Path | None = None
    ) -> Iterator[Table]:
        """The tables of each part, which the nodes write into the files of `items`."""
        files = [path for _, path in items]
        self._results(functools.partial(_write_tables, copies=copies), items, [path.stem for path in files], advance)
        await_files(files)
        self.files.extend(files)
        for path in files:
            yield from _tables_in(path)

    def _results(
        self, work: Callable[..., Any], items: Sequence[Any], names: Sequence[str], advance: Advance | None
    ) -> list[Any]:
        """The results of tasks that each take a whole node and the job's memory."""
        share = Share(ahead=False, threads=self.cluster.threads(len(items)), memory=self.job.sort_bytes)
        work = functools.partial(work, make=self.make, scratch=self.cluster.scratch, share=share)
        results = imap_shards(
            work,
            items,
            jobs=len(items),
            names=names,
            on_progress=advance,
            cluster=self.cluster,
            lock=self.job.lock,
            memory=share.memory,
        )
        return list(results)


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
    copies: Path | None,
    share: Share,
) -> None:
    """Write the exact copies of a part, or the candidates of some bands if a file tells which documents are copies."""
    (part, path), folder = item, scratch_folder(scratch)
    document_table = make(folder)
    if path.exists():
        advance(2 * document_table.documents * len(part))
        return
    with write_atomically(path) as file, ExitStack() as resources:
        if copies is None:
            tables = find_exact(document_table, Scratch(folder, share.memory), part)
        else:
            flags, sorting = read_flags(copies, 0, document_table.documents), Scratch(folder, share.memory)
            candidates = find_candidates(document_table, part, flags, sorting, jobs=share.threads, advance=advance)
            tables = resources.enter_context(candidates.rows).chunks()
        for table in tables:
            np.save(file, table)


def _decide(
    files: Sequence[Path], advance: Advance, *, make: _Make, scratch: Path | None, decide: _Decide, share: Share
) -> DecisionResult:
    folder, memory = scratch_folder(scratch), share.memory
    document_table = make(folder)
    decisions = Decisions(document_table.documents, folder)
    candidates = Candidates(document_table.documents, folder, 3 * memory // 8)
    with candidates.rows:
        for path in files:
            take = decisions.add_copies if path.name.startswith(_COPIES) else candidates.add
            for table in _tables_in(path):
                take(table)
        return decide(document_table, decisions, candidates, Scratch(folder, memory), advance)
