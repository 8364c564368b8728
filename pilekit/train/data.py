"""From `[data]` to a stream of micro-batches: the tokenizer and the training shards of a config, found and checked."""

from __future__ import annotations

from pilekit.corpus import Corpus
from pilekit.errors import PilekitError
from pilekit.stream import PileStream
from pilekit.train.config import TrainConfig


def open_stream(config: TrainConfig) -> PileStream:
    """The stream that a config trains on, at its beginning; `.tokenizer` is the config's, or that of `model.path`.

    Val and test shards are left out, which a warning says. PilekitError if shards or tokenizer are missing.
    """
    data = config.data
    tokenizer = data.tokenizer or config.model.path
    if tokenizer is None:
        raise PilekitError("data.tokenizer is missing; name a tokenizer.json, or a model_dir as model.path")
    return PileStream(
        Corpus(data.path, data.manifest).without_held_out(),
        tokenizer=tokenizer,
        seq_len=data.seq_len,
        batch_size=config.train.micro_batch_size,
        subsets=data.subsets,
        packing=data.packing,
        seed=data.seed,
    )
