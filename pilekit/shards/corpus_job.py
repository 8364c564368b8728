"""`CorpusJob`: a command's work on each shard of a corpus, on local processes or a cluster.

    job = CorpusJob(corpus, **work)                     # the options of work.py
    for counts in job.each(count_shard, job.shards):    # def count_shard(shard, advance, *, share): ...
        ...

The result for a document depends only on the document, so the output is the same for any number of processes.
folder_job.py adds a folder that a killed run resumes.

Starting a process costs about a second of work, so a small corpus is processed by one process. A `memory://` URL exists
only in the process that made it. If there are fewer processes than CPUs, each process may use several threads.
"""

from __future__ import annotations

import functools
import tempfile
from collections.abc import Generator, Iterable, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, Protocol, Self, TypeVar

from pilekit.artifacts.atomic_write import write_atomically
from pilekit.artifacts.folders import cache_folder, make_folder
from pilekit.artifacts.sort.memory_limit import sorting_memory
from pilekit.corpus import Corpus, Part, Shard
from pilekit.corpus.shard import STANDARD_INPUT
from pilekit.display.progress import Report
from pilekit.errors import PilekitError
from pilekit.shards.read.open import ReadOptions
from pilekit.shards.read.reader import OnError
from pilekit.workers import SHARE, Advance, Ray, imap_shards, scratch_folder, usable_cpus, wait_for_file

STORED_BYTES_PER_PROCESS = 64 << 20
"""The stored bytes that justify one more process."""

TINY_BYTES = 64 << 10
"""Stored bytes that are decompressed before a thread for it has started."""

Item = TypeVar("Item", contravariant=True)
Result = TypeVar("Result", covariant=True)
T = TypeVar("T")
R = TypeVar("R")


class Share(NamedTuple):
    """The part of a machine that the work on one shard may use.

    ahead     whether to decompress in a thread of its own
    threads   the number of threads for all else
    memory    bytes, if the processes divide some; else 0
    stored    the stored bytes that a process reads in all
    """

    ahead: bool
    threads: int
    memory: int = 0
    stored: int = 0

    def read_options(self, advance: Advance | None) -> ReadOptions:
        """How the work reads its shard."""
        return ReadOptions(advance, self.ahead, self.stored)


class ShardWork(Protocol[Item, Result]):
    """The work on a shard, or on a tuple that begins with one. It reports its stored bytes to `advance`."""

    def __call__(self, item: Item, advance: Advance, /, *, share: Share) -> Result: ...  # noqa: D102


class FileWork(Protocol[Item, Result]):
    """The work on a shard, or on a tuple that begins with one, that writes most of its result into `file`."""

    def __call__(self, item: Item, file: BinaryIO, advance: Advance, /, *, share: Share) -> Result: ...  # noqa: D102


@dataclass(frozen=True)
class CorpusJob:
    """A corpus, and how the work on its shards runs: the options of work.py.

    report         receives the progress of a command of several steps
    cpus_per_job   says how many CPUs a process keeps busy, which decides the default number of processes
    """

    corpus: Corpus
    on_error: OnError = "raise"
    jobs: int | None = None
    advance: Advance | None = None
    report: Report | None = None
    cluster: Ray | None = None
    part: Part | None = None
    memory: int | None = None
    cpus_per_job: int = 1

    @classmethod
    def of_steps(
        cls,
        corpus: Corpus,
        *,
        on_error: OnError = "raise",
        jobs: int | None = None,
        advance: Report | None = None,
        cluster: Ray | None = None,
        memory: int | None = None,
        cpus_per_job: int = 1,
    ) -> Self:
        """The job of a command of several steps, whose `advance` is a `Report`; takes the options of `SortWork`."""
        return cls(corpus, on_error, jobs, None, advance, cluster, memory=memory, cpus_per_job=cpus_per_job)

    @property
    def sort_bytes(self) -> int:
        """The bytes of memory for sorting."""
        return sorting_memory() if self.memory is None else self.memory

    @property
    def shards(self) -> Sequence[Shard]:
        """The shards of `part`."""
        if self.part is not None and self.cluster is not None:
            raise PilekitError("a cluster does all parts: leave out part, or cluster")
        return self.corpus.part(self.part).shards

    @property
    def lock(self) -> Path | None:
        """The locked file of the folder that the work writes into; a cluster's nodes look at it."""
        return None

    def progress(self, step: str, total: int, unit: int = 1) -> Advance:
        """Reports a step of `total` bytes to `report`; called with amounts of `unit` bytes."""
        report = self.report
        return (lambda amount: None) if report is None else lambda amount: report(step, unit * amount, total)

    def step(self, name: str, total: int) -> Self:
        """The job with the progress of a step."""
        return replace(self, advance=self.progress(name, total))

    def processes(self, shards: Sequence[Shard]) -> int:
        """The number of processes: `jobs` if given, else by CPUs and stored bytes; at most one for each shard.

        PilekitError for shards that other machines of a cluster cannot read.
        """
        cpus = [usable_cpus()] if self.cluster is None else self.cluster.cpus()
        most = sum(here // self.cpus_per_job or here for here in cpus)
        if self.cluster is not None:
            for shard in shards:
                if shard.path == STANDARD_INPUT or shard.path.startswith("memory://"):
                    raise PilekitError(f"{shard.name}: other machines cannot read it; leave out the cluster")
            return max(1, min(self.jobs or most, len(shards)))
        if any(shard.path.startswith("memory://") for shard in shards):
            return 1
        if self.jobs is not None:
            return min(self.jobs, max(1, len(shards)))
        sizes = [shard.size for shard in shards]
        worth = most if None in sizes else 1 + sum(filter(None, sizes)) // STORED_BYTES_PER_PROCESS
        return max(1, min(most, worth, len(shards)))

    def share(self, shards: Sequence[Shard], memory: int = 0) -> Share:
        """The share of one process; `memory` is for all processes of a machine together."""
        cluster, processes = self.cluster, max(1, self.processes(shards))
        threads = max(1, usable_cpus() // processes) if cluster is None else cluster.threads(processes)
        is_tiny = sum(TINY_BYTES if shard.size is None else shard.size for shard in shards) < TINY_BYTES * len(shards)
        # A process decompresses in a thread if there are free CPUs for it, or if it is the only one. If most shards are
        # tiny, no thread pays.
        ahead = ((processes == 1 and cluster is None) or threads > 1) and not is_tiny
        memory //= processes if cluster is None else cluster.tasks_of_a_node(processes)
        return Share(ahead, threads, memory, sum(shard.size or 0 for shard in shards) // processes)

    def own_scratch(self, folder: Path) -> Path:
        """The folder for files without a name: `folder`, or one on this node's own disk if a cluster is used."""
        return folder if self.cluster is None else scratch_folder(self.cluster.scratch)

    def each(self, work: ShardWork[T, R], items: Sequence[T], *, memory: int = 0) -> Generator[R, None, None]:
        """Yield the results of `work(item, advance, share=...)` in the order of the items.

        items    are shards, or tuples that begin with one
        memory   is the number of bytes that the processes of a machine divide
        """
        shards = [_shard_of(item) for item in items]
        share = self.share(shards, memory)
        return imap_shards(
            functools.partial(work, share=share),
            items,
            jobs=self.processes(shards),
            names=[shard.name for shard in shards],
            on_progress=self.advance,
            cluster=self.cluster,
            lock=self.lock,
            memory=share.memory,
        )

    def each_file(self, work: FileWork[T, R], items: Sequence[T], name: str) -> Generator[tuple[Path, R], None, None]:
        """Like `each`, for results that processes should not send: yields a file and the rest of the result.

        `work(item, file, advance, share=...)` writes the file, which is removed before the next is yielded. For a
        cluster, files lie in the cache folder, which all nodes must share.
        """
        if (shared := None if self.cluster is None else cache_folder()) is not None:
            make_folder(shared)
        with tempfile.TemporaryDirectory(prefix=f"pilekit-{name}-", dir=shared) as folder:
            write = functools.partial(_write_file, work=work)
            targets = [(item, Path(folder, str(place))) for place, item in enumerate(items)]
            with closing(self.each(write, targets)) as results:
                for (_, path), result in zip(targets, results, strict=True):
                    await_files([path])
                    yield path, result
                    path.unlink()


def _shard_of(item: Any) -> Shard:
    while isinstance(item, tuple):
        item = item[0]
    shard: Shard = item
    return shard


def _write_file(target: tuple[T, Path], advance: Advance, *, share: Share, work: FileWork[T, R]) -> R:
    item, path = target
    with write_atomically(path, flushed=False) as file:  # A power cut ends the command, and nobody needs its files.
        return work(item, file, advance, share=share)


def await_files(files: Iterable[Path]) -> None:
    """Wait until files from other machines appear here; `PilekitError` if one does not appear in time."""
    for file in files:
        if not wait_for_file(file.exists, file.parent):
            raise PilekitError(f"{file}: another node wrote it, but it does not appear here; {SHARE}, and run it again")
