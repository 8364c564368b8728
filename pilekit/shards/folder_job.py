"""`FolderJob`: a `CorpusJob` that writes into a folder, and skips the shards that an earlier run finished there.

    with corpus_folder(job, out, kind="selection", parameters={"sample": 0.01}) as folder_job:
        results = folder_job.process_unfinished(select_shard)

    def select_shard(shard, advance, *, share, output, inputs):     # in any process
        ...                                                         # writes output.path(shard.name, ".jsonl.zst")
        inputs.check(shard)
        output.note(shard.name, {...}, file)

A run that was killed and resumed leaves the same files, because a shard's files and its result depend only on the shard
and the parameters.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

from pilekit.artifacts.folders import check_free_disk
from pilekit.artifacts.job_folder import LOCK_FILE, NOTES, Output, output_folder
from pilekit.artifacts.sealed import SealedKind
from pilekit.corpus import Shard
from pilekit.errors import PilekitError
from pilekit.shards.corpus_job import CorpusJob, Share
from pilekit.shards.fingerprint import Inputs, inputs_for
from pilekit.workers import SHARE, Advance, wait_for_file

PLAIN = (".jsonl", ".json", ".ndjson")
"""How the names of shards end that are not compressed."""


class NotedWork(Protocol):
    """The work on a shard that writes files into `output`, and notes its result there when they are complete."""

    def __call__(self, shard: Any, advance: Advance, /, *, share: Share, output: Output, inputs: Inputs) -> object:  # noqa: D102
        ...


@dataclass(frozen=True, kw_only=True)
class FolderJob(CorpusJob):
    """A job and its locked folder."""

    output: Output
    inputs: Inputs

    @property
    def lock(self) -> Path:
        """The lock of the output folder."""
        return self.output.folder / LOCK_FILE

    def process_unfinished(
        self,
        work: NotedWork,
        shards: Sequence[Shard] | None = None,
        *,
        note: str = "",
        whole: str | None = None,
        then: Callable[[str, dict[str, Any]], None] | None = None,
        room: tuple[str, float] | None = None,
        memory: int = 0,
    ) -> dict[str, dict[str, Any]]:
        """Process the shards that have no note, with `each`; returns all results by shard name.

        work     notes a shard's result under `note` + the shard's name. If lines were skipped and `on_error` is
                 "raise", the shard is processed again
        shards   are those of the job by default
        whole    names a note about all shards together: if it exists and a shard is left, all are processed again
        then     is called with the name and the result of each shard, in order, while further shards are processed
        room     is the name of the step, and the least bytes that it writes for each byte of a compressed shard. A disk
                 with less room is an error before any work. Plain text does not count, because it may shrink to little

        If a shard cannot be read, the others are finished and kept before the error is raised.
        """
        output, shards = self.output, self.shards if shards is None else shards
        results = output.results()
        finished = {name for name, result in results.items() if self.on_error == "skip" or not result.get("skipped")}
        unfinished = [shard for shard in shards if note + shard.name not in finished]
        if unfinished and whole in finished and not output.finished:
            output.forget()
            unfinished = list(shards)
        names = {shard.name for shard in unfinished}
        if self.advance is not None:
            self.advance(sum(shard.size or 0 for shard in shards if shard.name not in names))
        if room is not None:
            stored = sum(shard.size or 0 for shard in unfinished if not shard.path.endswith(PLAIN))
            check_free_disk(output.folder, int(stored * room[1]), room[0])
        noted_work = functools.partial(work, output=output, inputs=self.inputs)
        with closing(self.each(noted_work, unfinished, memory=memory)) as notings:
            for shard in shards:
                if shard.name in names:
                    next(notings)
                    if self.cluster is not None:
                        await_notes(output, [note + shard.name])
                if then is not None and (result := output.result(note + shard.name)) is not None:
                    then(shard.name, result)
        results = output.results()
        return {shard.name: results[note + shard.name] for shard in shards}


@contextmanager
def corpus_folder(
    job: CorpusJob,
    out: str | Path,
    *,
    kind: str,
    parameters: Mapping[str, Any],
    further_inputs: Iterable[Shard] = (),
    tables: Mapping[str, SealedKind] | None = None,
) -> Iterator[FolderJob]:
    """The job with the `output_folder` at `out`; fields of the corpus's manifest become parameters.

    further_inputs   are read in addition to the corpus; a slash precedes their names
    tables           as for `output_folder`
    """
    _ = job.shards  # A wrong part is an error before the folder is made.
    slashed = [replace(shard, name=f"/{shard.name}") for shard in further_inputs]
    inputs = inputs_for(out, [*job.corpus.shards, *slashed])
    with output_folder(
        out,
        kind=kind,
        parameters={**parameters, **job.corpus.manifest.record},
        inputs=inputs.fingerprints,
        versions=inputs.versions,
        shared=job.part is not None,
        tables=tables,
    ) as output:
        yield FolderJob(**vars(job), output=output, inputs=inputs)


def await_notes(output: Output, names: Collection[str]) -> None:
    """Wait until notes from other machines, and their files, appear here; `PilekitError` if they do not in time."""
    if not wait_for_file(lambda: all(output.result(name) is not None for name in names), output.folder / NOTES):
        raise PilekitError(f"{output.folder}: the files of other nodes do not appear here; {SHARE}, and run it again")
