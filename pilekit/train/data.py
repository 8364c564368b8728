"""From `[data]` of a config to a stream of batches, one per step: finds and checks the tokenizer and the shards."""

from __future__ import annotations

from collections.abc import Generator
from functools import partial

import msgspec

from pilekit.artifacts.settings import naming_settings
from pilekit.models.folder import check_folder
from pilekit.stream.batch.batch import Batch
from pilekit.stream.order.topology import rank_of_world
from pilekit.stream.pile_stream import PileStream
from pilekit.stream.read.token_files import corpus_of
from pilekit.tokenize import Tokenizer, load_tokenizer
from pilekit.train.config.check import check_world, field_of, manifest_of, naming_field, world_sizes
from pilekit.train.config.sections import TrainConfig


def open_stream(config: TrainConfig, *, world_size: int | None = None) -> PileStream:
    """The stream of a config, at its beginning. `.tokenizer` is the config's, the model's or the teacher's.

    A batch is this rank's share of an optimizer step. torch.distributed knows the rank. With `world_size`, the run is
    only planned, and the stream is that of its first rank. Val and test shards are left out with a warning. A
    PilekitError names the field that is wrong. Missing indexes are built, so on a shared disk one rank should open the
    stream first.
    """
    data, train = config.data, config.train
    rank, ranks = rank_of_world(0 if world_size is not None else None, world_size)
    check_world(config, ranks)
    tokenizer = open_tokenizer(config)
    manifest = manifest_of(data)
    with naming_field("data.path" if data.path is not None else ""):
        corpus = corpus_of(data.path, manifest)
    with naming_settings(partial(field_of, data=data)):
        return PileStream(
            corpus,
            tokenizer,
            global_batch_size=train.global_batch_size,
            grad_accum=1,
            rank=rank,
            world_size=ranks,
            objective="mlm" if train.objective == "mlm" else "clm",
            outputs=("input_ids", "labels", "position_ids", "doc_ids", "subset_ids"),
            **msgspec.structs.asdict(data.rows),
        )


def open_batches(stream: PileStream, config: TrainConfig) -> Generator[Batch, None, None]:
    """The stream's batches from its current state, made by `data.workers` processes. The caller must close it."""
    workers = config.data.workers
    # A fork of this process would wait forever for locks that its other threads hold.
    method = "forkserver" if workers else None
    yield from stream.loader(num_workers=workers, multiprocessing_context=method)


def open_tokenizer(config: TrainConfig) -> Tokenizer:
    """The tokenizer of a config, or that of its model or teacher. A PilekitError names the field."""
    data, path = config.data, config.source.path
    field = "model.path" if config.model.path is not None else "teacher.path"
    if path is not None:
        with naming_field(field):
            check_folder(path)
    with naming_field("data.tokenizer" if data.tokenizer is not None else field):
        return load_tokenizer(data.tokenizer or path or "")


def restart_sizes(config: TrainConfig, stream: PileStream) -> list[int]:
    """The numbers of ranks, increasing, on which a run of `config` can resume from the state of `stream`.

    Each divides the stream's lanes, which a run keeps, and gives every rank whole micro-batches of rows.
    """
    return [ranks for ranks in stream.share.grid.world_sizes() if ranks in world_sizes(config)]
