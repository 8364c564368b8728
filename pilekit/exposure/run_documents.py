"""The documents that each step of a run trained on: read from its log, and replayed where steps are not logged.

The stream gives the same batches again. Replaying it is slower than reading the log, because each document up to the
last step that is not logged is tokenized again. The run's newest checkpoint names the lanes, and proves that shards,
tokenizer and settings are still those of the run.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from pilekit.artifacts.header import read_header
from pilekit.corpus import Corpus, Shard
from pilekit.errors import PilekitError, counted, message_logger
from pilekit.stream.read.token_files import corpus_of
from pilekit.train.config.check import manifest_of
from pilekit.train.config.file import load_config
from pilekit.train.config.sections import ParallelConfig, TrainConfig
from pilekit.train.log.document_log import MOST_ROWS, LogPart, log_parts, logged_steps, piece_rows
from pilekit.train.run_folder import ALTERED, BEGAN_FROM, KIND, STARTS, RunFolder, run_of

if TYPE_CHECKING:
    from pilekit.stream.pile_stream import PileStream  # these import torch, which takes seconds
    from pilekit.train.checkpoint.state_file import State

logger = message_logger(__name__)


@dataclass(frozen=True, slots=True)
class RunDocuments:
    """The documents of a run's steps.

    steps       the steps whose documents can be told: up to the newest checkpoint, and without those of an earlier run
    began_from  the checkpoint of another run that it began from, as far as known
    newest      the step of the newest checkpoint; None: there is none
    parts       the files of the log
    altered     what `data.without` and `data.plant` changed: `PileStream.altered`
    """

    run: RunFolder
    config: TrainConfig
    steps: range
    began_from: str | None
    newest: int | None
    parts: Sequence[LogPart]
    altered: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, run: str | Path, last: int | None = None) -> RunDocuments:
        """Those of the run in a folder, up to the step `last`. PilekitError if it is none, or has no step yet."""
        results = read_header(run, KIND).results
        config = load_config(RunFolder(Path(run)).config_file)
        folder = run_of(run, config)
        parts = log_parts(folder.documents)
        logged, newest = logged_steps(parts), folder.newest_step()
        end = newest + 1 if newest is not None else logged[-1].stop if logged else 0
        steps = range(results.get(STARTS, [0])[0] + 1, end if last is None else min(end, last + 1))
        if not steps:
            raise PilekitError(f"{run}: has no step yet; train it first")
        began_from = results.get(BEGAN_FROM) if steps.start > 1 else None
        return cls(folder, config, steps, began_from, newest, parts, results.get(ALTERED, {}))

    def data(self) -> Corpus:
        """The shards, or token files, that the run reads. PilekitError if they are not where the config says."""
        return corpus_of(self.config.data.path, manifest_of(self.config.data), warn=False)

    def shard_names(self) -> set[str]:
        """The names of the shards that the run reads, and of planted files; if they are gone, of those in its log."""
        try:
            return {shard.name for shard in (*self.data().shards, *self.planted())}
        except PilekitError:
            return {name for table in self.tables() for name in pc.unique(table["shard"].cast(pa.string())).to_pylist()}

    def planted(self) -> list[Shard]:
        """The files of texts that were planted."""
        return [Shard(entry["file"], entry["path"]) for entry in self.altered.get("plant", ())]

    @property
    def replayed(self) -> list[range]:
        """The steps that are not logged."""
        begin, missing = self.steps.start, []
        for logged in [*logged_steps(self.parts), range(self.steps.stop, self.steps.stop)]:
            if logged.start > begin and begin < self.steps.stop:
                missing.append(range(begin, min(logged.start, self.steps.stop)))
            begin = max(begin, logged.stop)
        return missing

    def tables(self) -> Iterator[pa.Table]:
        """The pieces of all steps (`SCHEMA` of the log), some at a time, each step once, in no order of steps."""
        missing = self.replayed
        for part in self.parts:
            for table in part.tables(self.run.documents):
                yield _without(table, [range(self.steps.start), *missing, range(self.steps.stop, part.last + 1)])
        if missing:
            count = sum(map(len, missing))
            spans = ", ".join(f"{steps.start:,} to {steps.stop - 1:,}" for steps in missing)
            logger.warning(
                "%s: %s not logged (%s); replaying the stream, which takes longer",
                self.run.path,
                counted(count, "step is", "steps are"),
                spans,
            )
            yield from self._replay(missing)

    def state(self, *, whole: bool = False) -> State:
        """The state in the newest checkpoint; `whole`: all files of the checkpoint are compared with their sums.

        PilekitError if there is no checkpoint, or if it is damaged.
        """
        from pilekit.train.checkpoint.state_file import Damaged, read_state, verify

        if self.newest is None:
            raise PilekitError(f"{self.run.path}: has no checkpoint, which names its data and lanes; restore one")
        folder = self.run.checkpoints / f"step-{self.newest}"
        try:
            return (verify if whole else read_state)(folder)
        except Damaged as damage:
            raise PilekitError(f"{folder}: {damage}; restore it") from damage

    def stream(self) -> PileStream:
        """The run's stream at its beginning. PilekitError if the data or the tokenizer is not that of the run."""
        from pilekit.stream.state import Counts
        from pilekit.stream.state import read_state as read_stream_state
        from pilekit.train.data import open_stream

        state = self.state().progress.stream
        grid = read_stream_state(state).plan.grid
        data = msgspec.structs.replace(self.config.data, lanes=(grid.rows, grid.columns))
        config = msgspec.structs.replace(self.config, data=data, parallel=ParallelConfig())
        stream = open_stream(config, world_size=1)
        try:
            stream.load_state_dict(state)
        except PilekitError as error:
            raise PilekitError(f"{self.run.path}: was trained on other data than there is now ({error})") from error
        # A mixture that was changed on the way still fills the windows that lanes had open at the change, and a subset
        # that it gained has units of then.
        now = read_stream_state(stream.state_dict())
        begin = msgspec.structs.replace(now, step=0, batch=0, lanes=bytes(len(now.lanes)), counts=Counts())
        stream.load_state_dict(begin.to_json())
        return stream

    def _replay(self, missing: Sequence[range]) -> Iterator[pa.Table]:
        stream = self.stream()
        rows, shards = stream.share.row_numbers(0), stream.shard_names
        waiting, count = [], 0
        for step, batch in enumerate(stream, 1):
            if any(step in steps for steps in missing):
                waiting.append((step, batch.pieces))
                count += len(batch.pieces.length)
            is_last = step == missing[-1].stop - 1
            if waiting and (is_last or count >= MOST_ROWS):
                yield piece_rows(waiting, rows, shards, stream.subset_names, stream.without)
                waiting, count = [], 0
            if is_last:
                return


def _without(table: pa.Table, left_out: Sequence[range]) -> pa.Table:
    """The rows of all steps but these."""
    import numpy as np

    steps = table["step"].to_numpy()
    is_kept = np.ones(len(steps), bool)
    for span in left_out:
        is_kept &= (steps < span.start) | (steps >= span.stop)
    return table if is_kept.all() else table.filter(pa.array(is_kept))
