"""Run a command's work on each shard, in as many processes as pay, and skip the shards that an earlier run finished.

The result for a document depends only on the document, so the output is the same for any number of processes, and for
a run that was killed and resumed.

Starting a process costs about a second of work, so a small corpus is processed by one process. A `memory://` URL exists
only in the process that made it. If there are fewer processes than CPUs, each process may use several threads.
"""

from __future__ import annotations

import functools
import shutil
import tempfile
from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

from pilekit.artifacts.atomic_write import write_atomically
from pilekit.artifacts.cache_folder import cache_folder
from pilekit.artifacts.file_lock import locked
from pilekit.artifacts.free_disk import check_free_disk
from pilekit.artifacts.job_folder import LOCK_FILE, NOTES, Output, output_folder
from pilekit.corpus import Corpus, Part, Shard
from pilekit.corpus.shard import STANDARD_INPUT
from pilekit.engine import Advance, Ray, appears, imap_shards, usable_cpus
from pilekit.errors import PilekitError
from pilekit.shards.fingerprint import Inputs, inputs_for
from pilekit.shards.read.reader import OnError

R = TypeVar("R")

STORED_BYTES_PER_PROCESS = 64 << 20
"""The stored bytes that justify one more process."""


def processes_for(shards: Sequence[Shard], jobs: int | None, engine: Ray | None = None) -> int:
    """The number of processes: `jobs` if given, else by the stored bytes; at most one for each shard.

    In a cluster, it is one for each CPU by default. PilekitError for shards that other machines cannot read.
    """
    if engine is not None:
        for shard in shards:
            if shard.path == STANDARD_INPUT or shard.path.startswith("memory://"):
                raise PilekitError(f"{shard.name}: other machines cannot read it; leave out the cluster")
        return max(1, min(jobs or sum(engine.cpus()), len(shards)))
    if any(shard.path.startswith("memory://") for shard in shards):
        return 1
    if jobs is None:
        sizes = [shard.size for shard in shards]
        worth = 1 + sum(size or 0 for size in sizes) // STORED_BYTES_PER_PROCESS
        jobs = usable_cpus() if None in sizes else min(usable_cpus(), worth)
    return min(jobs, max(1, len(shards)))


TINY_BYTES = 64 << 10
"""Stored bytes that are decompressed before a thread for it has started."""


def are_tiny(shards: Sequence[Shard]) -> bool:
    """Whether no shard should be decompressed in a thread of its own, because most are tiny."""
    return sum(TINY_BYTES if shard.size is None else shard.size for shard in shards) < TINY_BYTES * len(shards)


PLAIN = (".jsonl", ".json", ".ndjson")
"""How the names of shards end that are not compressed."""


def each_shard(
    work: Callable[..., R],
    shards: Sequence[Shard],
    *,
    jobs: int | None,
    advance: Advance | None,
    items: Sequence[Any] | None = None,
    threads: bool = False,
    engine: Ray | None = None,
    lock: Path | None = None,
    memory: int | None = None,
) -> Generator[R, None, None]:
    """Yield the results of `work(shard, advance, ahead=...)`, in the order of the shards.

    jobs      shards at a time, each in its own process; None: the usable CPUs, or fewer for a small corpus
    items     the arguments of `work` instead of the shards, one for each shard
    threads   pass `threads` (the number `work` may use) instead of `ahead` (whether to decompress in a thread)
    engine    a cluster instead of local processes; `lock` is the locked file of the folder that `work` writes into
    memory    bytes for all processes of a machine; `work` gets the share of one as `memory`
    """
    processes, names = processes_for(shards, jobs, engine), [shard.name for shard in shards]
    of_each = max(1, usable_cpus() // max(1, processes)) if engine is None else engine.threads(processes)
    # A process decompresses in a thread if there are free CPUs for it, or if it is the only one.
    ahead = ((processes <= 1 and engine is None) or of_each > 1) and not are_tiny(shards)
    work = functools.partial(work, **{"threads": of_each} if threads else {"ahead": ahead})
    items = shards if items is None else items
    options: dict[str, Any] = {"on_progress": advance, "engine": engine, "lock": lock}
    if memory is not None:
        options["memory"] = share = memory // (processes if engine is None else engine.tasks_of_a_node(processes))
        work = functools.partial(work, memory=share)
    return imap_shards(work, items, jobs=processes, names=names, **options)


def each_file(
    write: Callable[..., R],
    shards: Sequence[Shard],
    name: str,
    *,
    jobs: int | None,
    advance: Advance | None,
    engine: Ray | None,
    items: Sequence[Any] | None = None,
) -> Generator[tuple[Path, R], None, None]:
    """Like `each_shard`, for results that processes should not send: yields a file and the rest of the result.

    `write(item, file, advance, ahead=...)` writes the binary file, which is removed before the next is yielded. For a
    cluster, the files lie in the cache folder, which all nodes must share, and one command at a time uses `name` there.
    """
    with ExitStack() as held:
        lock = None if engine is None else cache_folder() / name / LOCK_FILE
        if lock is None:
            folder = Path(held.enter_context(tempfile.TemporaryDirectory(prefix=f"pilekit-{name}-")))
        else:
            held.enter_context(locked(lock, wait=False))
            folder = lock.parent
            held.callback(shutil.rmtree, folder, ignore_errors=True)
        # Other machines need what was flushed. Here, a power cut takes the command and its files.
        work = functools.partial(_write_file, write=write, flushed=engine is not None)
        given = [(item, folder / str(place)) for place, item in enumerate(shards if items is None else items)]
        options: dict[str, Any] = {"items": given, "jobs": jobs, "advance": advance, "engine": engine, "lock": lock}
        with closing(each_shard(work, shards, **options)) as results:
            for (_, path), result in zip(given, results, strict=True):
                await_files([path])
                yield path, result
                path.unlink()


def _write_file(work: tuple[Any, Path], advance: Advance, *, write: Callable[..., R], flushed: bool, ahead: bool) -> R:
    item, path = work
    with write_atomically(path, flushed=flushed) as file:
        return write(item, file, advance, ahead=ahead)


def part_of(corpus: Corpus, part: Part | None, engine: Ray | None) -> Corpus:
    """`corpus.part(part)` for local processes; a cluster gets all shards."""
    if part is not None and engine is not None:
        raise PilekitError("a cluster does all parts: leave out part, or engine")
    return corpus.part(part)


def await_files(files: Iterable[Path]) -> None:
    """Wait until files from other machines appear here; `PilekitError` if one does not appear in time."""
    for file in files:
        if not appears(file.exists, file.parent):
            raise PilekitError(f"{file}: another node wrote it, but it does not appear; run it again")


def await_notes(output: Output, names: Collection[str]) -> None:
    """Wait until notes from other machines, and their files, appear here; `PilekitError` if they do not in time."""
    if not appears(lambda: all(output.result(name) is not None for name in names), output.folder / NOTES):
        raise PilekitError(f"{output.folder}: what other nodes wrote does not appear; run it again")


@contextmanager
def corpus_folder(
    corpus: Corpus,
    out: str | Path,
    *,
    kind: str,
    parameters: Mapping[str, Any],
    shared: bool = False,
    others: Iterable[Shard] = (),
) -> Iterator[tuple[Output, Inputs]]:
    """`output_folder` for a job that reads `corpus`; fields of its manifest become parameters.

    others   more inputs; a slash precedes their names
    """
    more, manifest = (replace(shard, name=f"/{shard.name}") for shard in others), corpus.manifest
    inputs = inputs_for(out, [*corpus.shards, *more])
    parameters = {**parameters, **manifest.record}
    found, versions = inputs.fingerprints, inputs.versions
    with output_folder(out, kind=kind, parameters=parameters, inputs=found, versions=versions, shared=shared) as output:
        yield output, inputs


def finish_shards(
    work: Callable[..., object],
    shards: Sequence[Shard],
    output: Output,
    inputs: Inputs,
    *,
    jobs: int | None,
    advance: Advance | None,
    note: str = "",
    on_error: OnError = "skip",
    threads: bool = False,
    whole: str | None = None,
    engine: Ray | None = None,
    memory: int | None = None,
    then: Callable[[str, dict[str, Any]], None] | None = None,
    room: tuple[str, float] | None = None,
) -> dict[str, dict[str, Any]]:
    """Process the shards that have no note, with `each_shard`; returns all results by shard name.

    work       also gets `output` and `inputs`; it notes a shard's result under `note` + the shard's name
    on_error   "raise": shards in which an earlier run skipped lines are processed again
    whole      the name of a note about all shards together: if it exists and a shard is left, all are processed again
    then       called with the name and the result of each shard, in order, while further shards are processed
    room       (what is done, the least bytes that it writes for a byte of a compressed shard): a disk that has not that
               much free is an error before any work. Nothing is known of plain text, which zstd may make very small.

    If a shard cannot be read, the others are finished and kept before the error is raised.
    """
    results = output.results()
    done = {name for name, result in results.items() if on_error == "skip" or not result.get("skipped")}
    waiting = [shard for shard in shards if note + shard.name not in done]
    if waiting and whole in done and not output.finished:
        output.forget()
        waiting = list(shards)
    left = {shard.name for shard in waiting}
    if advance is not None:
        advance(sum(shard.size or 0 for shard in shards if shard.name not in left))
    if room is not None:
        stored = sum(shard.size or 0 for shard in waiting if not shard.path.endswith(PLAIN))
        check_free_disk(output.folder, int(stored * room[1]), room[0])
    work = functools.partial(work, output=output, inputs=inputs)
    options: dict[str, Any] = {"threads": threads, "engine": engine, "memory": memory}
    with closing(
        each_shard(work, waiting, jobs=jobs, advance=advance, lock=output.folder / LOCK_FILE, **options)
    ) as made:
        for shard in shards:
            if shard.name in left:
                next(made)
                if engine is not None:
                    await_notes(output, [note + shard.name])
            if then is not None and (result := output.result(note + shard.name)) is not None:
                then(shard.name, result)
    results = output.results()
    return {shard.name: results[note + shard.name] for shard in shards}
