"""From `[data]` to a stream of batches, one per step: tokenizer and shards of a config, found and checked."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from pilekit.corpus import Corpus, load_manifest, resolve_subsets
from pilekit.errors import PilekitError
from pilekit.evaluate.model_folder import check_folder
from pilekit.stream import PileStream
from pilekit.stream.topology import rank_of_world
from pilekit.tokenize import load_tokenizer
from pilekit.train.config import TrainConfig


def open_stream(config: TrainConfig) -> PileStream:
    """The stream that a config trains on, at its beginning; `.tokenizer` is the config's, or that of `model.path`.

    A batch is an optimizer step. Val and test shards among others are left out, which a warning says. A PilekitError
    names the field that is wrong.
    """
    data, model = config.data, config.model
    _, world_size = rank_of_world(None, None)
    if world_size > 1:
        raise PilekitError(
            f"this job has {world_size} processes, and the trainer is one process so far: each would train a model of "
            "its own; run one process"
        )
    if model.path is not None:
        with _field("model.path"):
            check_folder(model.path)
    with _field("data.manifest"):
        manifest = load_manifest(data.manifest or "pile")
    with _field("data.path" if data.path is not None else ""):
        corpus = Corpus(data.path, manifest).without_held_out()
    with _field("data.subsets"):
        subsets = None if data.subsets is None else resolve_subsets(*data.subsets, manifest=manifest)
    with _field("data.tokenizer" if data.tokenizer is not None else "model.path"):
        tokenizer = load_tokenizer(data.tokenizer or model.path or "")
    return PileStream(
        corpus,
        tokenizer=tokenizer,
        seq_len=data.seq_len,
        batch_size=config.train.global_batch_size,
        subsets=subsets,
        repeats=data.repeats,
        packing=data.packing,
        window=data.window,
        dedup=data.dedup,
        lanes=data.lanes,
        seed=data.seed,
        on_error=data.on_error,
        outputs=("input_ids", "labels", "position_ids", "doc_ids", "subset_ids"),
    )


@contextmanager
def _field(name: str) -> Iterator[None]:
    """Put the field's name before the message of an error."""
    try:
        yield
    except PilekitError as error:
        raise PilekitError(f"{name}: {error}" if name else str(error)) from error
